package pool

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer/ledger"
)

// registerRetry bounds the pause between two tries to register.
const registerRetry = time.Second

// register has the store know all keys, and tries until it does, or ctx ends. A key that is not registered gets nothing.
func (p *Pool) register(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = registerRetry/64, registerRetry
	for began := time.Now(); ; {
		level, err := slog.LevelDebug, p.cfg.Ready() // which logs the cause itself
		if err == nil {
			level, err = slog.LevelWarn, p.registerOnce(ctx)
		}
		if err == nil {
			p.cfg.Log.Info("keys registered", "keys", len(p.terms.Held))
			return
		}
		if time.Since(began) > registerRetry { // what passes by itself at a start is not worth a word
			p.cfg.Log.Log(ctx, level, "keys not registered, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

func (p *Pool) registerOnce(ctx context.Context) error {
	all := slices.Concat(p.terms.Held, p.cfg.Funding)
	pending, err := p.cfg.Chain.PendingNonces(ctx, all)
	if err != nil {
		return err
	}
	registrations := make([]ledger.Registration, len(all))
	for i, address := range all {
		registrations[i] = ledger.Registration{Address: address, NextNonce: pending[i], MinBalance: p.cfg.MinBalance}
		if i >= len(p.terms.Held) {
			registrations[i].Funding, registrations[i].MinBalance = true, nil
		}
	}
	return p.cfg.Ledger.Register(ctx, registrations)
}
