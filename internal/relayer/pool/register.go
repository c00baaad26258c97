package pool

import (
	"context"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer/ledger"
)

// registerRetry is the pause between two tries to register.
const registerRetry = time.Second

// register has the store know all keys, and tries until it does, or ctx ends. A key that is not registered gets nothing.
func (p *Pool) register(ctx context.Context) {
	for {
		err := p.registerOnce(ctx)
		if err == nil {
			p.cfg.Log.Info("keys registered", "keys", len(p.terms.Held))
			return
		}
		p.cfg.Log.Warn("keys could not be registered, trying again", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(registerRetry):
		}
	}
}

func (p *Pool) registerOnce(ctx context.Context) error {
	if err := p.cfg.Ready(); err != nil {
		return err
	}
	pending, err := p.cfg.Chain.PendingNonces(ctx, p.terms.Held)
	if err != nil {
		return err
	}
	registrations := make([]ledger.Registration, len(p.terms.Held))
	for i, address := range p.terms.Held {
		registrations[i] = ledger.Registration{Address: address, NextNonce: pending[i], MinBalance: p.cfg.MinBalance}
	}
	return p.cfg.Ledger.Register(ctx, registrations)
}
