package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// registerRetry is the longest pause between two attempts to register.
const registerRetry = time.Second

// register registers all keys with the store, and retries until that succeeds or ctx ends. A key that is not registered
// gets no transactions.
func (s *Service) register(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = registerRetry/64, registerRetry
	for began := time.Now(); ; {
		level, err := slog.LevelDebug, s.cfg.Ready() // Ready logs the cause itself
		if err == nil {
			level, err = slog.LevelWarn, s.registerOnce(ctx)
		}
		if err == nil {
			s.cfg.Log.Info("keys registered", "keys", len(s.allocation.Held))
			return
		}
		if time.Since(began) > registerRetry { // transient failures at startup are not logged
			s.cfg.Log.Log(ctx, level, "keys not registered, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// registerOnce registers the keys that the store has already, once per process, and then the new ones.
func (s *Service) registerOnce(ctx context.Context) error {
	all := slices.Concat(s.allocation.Held, s.cfg.Funding)
	unknown, err := s.cfg.Store.Unknown(ctx, all)
	if err != nil {
		return err
	}
	if !s.registered {
		known := slices.DeleteFunc(slices.Clone(all), func(a common.Address) bool { return slices.Contains(unknown, a) })
		if err := s.cfg.Store.Register(ctx, s.registrations(known, nil)); err != nil {
			return err
		}
		s.registered = true
	}
	if len(unknown) == 0 {
		return nil
	}
	nonces, err := s.firstNonces(ctx, unknown)
	if len(nonces) > 0 {
		unknown = slices.DeleteFunc(unknown, func(a common.Address) bool { _, ok := nonces[a]; return !ok })
		err = errors.Join(s.cfg.Store.Register(ctx, s.registrations(unknown, nonces)), err)
	}
	return err
}

func (s *Service) registrations(keys []common.Address, nonces map[common.Address]uint64) []store.Registration {
	all := make([]store.Registration, len(keys))
	for i, key := range keys {
		all[i] = store.Registration{Address: key, NextNonce: nonces[key], MinBalance: s.cfg.MinBalance}
		if !slices.Contains(s.allocation.Held, key) {
			all[i].Funding, all[i].MinBalance = true, nil
		}
	}
	return all
}

// countsTimeout is how long one reading waits for the counts of all endpoints. An endpoint that takes longer counts as
// unavailable. A thousand new keys cost an endpoint some twenty calls, one after the other.
const countsTimeout = 15 * time.Second

// readCounts reads the counts of keys at all endpoints. The deadline is necessary, because the client asks an endpoint that
// lacks the newest block's state again until the context ends.
func (s *Service) readCounts(ctx context.Context, keys []common.Address) []evm.Counts {
	ctx, cancel := context.WithTimeout(ctx, countsTimeout)
	defer cancel()
	return s.cfg.Chain.Counts(ctx, common.Hash{}, keys)
}

// disagreement is the largest accepted difference between the counts of a new key, over endpoints and readings.
const disagreement = 64

// firstNonces returns the first nonces of keys that the store does not have: the highest count, mined or pending, of any
// endpoint in two readings. A key whose counts differ too much gets none, and the error names it, because one of the
// endpoints is wrong. An endpoint that is reported as lagging may count less than the others, because it is still syncing.
func (s *Service) firstNonces(ctx context.Context, keys []common.Address) (map[common.Address]uint64, error) {
	reports := slices.Concat(s.readCounts(ctx, keys), s.readCounts(ctx, keys))
	lags := map[string]bool{}
	for _, ep := range s.cfg.Chain.Status().Endpoints {
		lags[ep.Endpoint] = !ep.OK && ep.Lag > 0
	}
	nonces := map[common.Address]uint64{}
	var problems []error
	for i, key := range keys {
		var low, high *evm.Counts
		count := func(c *evm.Counts) uint64 { return max(c.Mined[i], c.Pending[i]) }
		for j := range reports {
			c := &reports[j]
			if c.Err != nil {
				continue
			}
			if !lags[c.Endpoint] && (low == nil || count(c) < count(low)) {
				low = c
			}
			if high == nil || count(c) > count(high) {
				high = c
			}
		}
		switch {
		case low == nil && high != nil:
			problems = append(problems, fmt.Errorf("count the transactions of new key %s: only %s answers, and it lags", key, high.Endpoint))
		case low == nil:
			return nil, fmt.Errorf("count the transactions of new keys: no endpoint answers: %w", reports[0].Err)
		case count(high)-count(low) > disagreement || count(high) > store.MaxNonce:
			problems = append(problems, fmt.Errorf("%s counts %d transactions of new key %s, and %s counts %d: take the endpoint that is wrong out of the configuration",
				low.Endpoint, count(low), key, high.Endpoint, count(high)))
		default:
			nonces[key] = count(high)
		}
	}
	return nonces, errors.Join(problems...)
}
