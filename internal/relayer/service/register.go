package service

import (
	"cmp"
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

const (
	// countsTimeout is how long one reading waits for the first endpoint. A thousand new keys cost an endpoint some twenty
	// calls, one after the other. The client asks an endpoint that lacks the newest block's state again until then.
	countsTimeout = time.Minute
	// silentGrace is how much longer than the first endpoint the others have for both readings. An endpoint that takes longer
	// has no say; secondGrace is the least that they have for the second reading.
	silentGrace, secondGrace = 10 * time.Second, time.Second
)

// readCounts reads the counts of keys at all endpoints twice.
func (s *Service) readCounts(ctx context.Context, keys []common.Address) []evm.Counts {
	began := time.Now()
	once := func(grace time.Duration) []evm.Counts {
		ctx, cancel := context.WithTimeout(ctx, countsTimeout)
		defer cancel()
		return s.cfg.Chain.CountsWithin(ctx, grace, common.Hash{}, keys)
	}
	return slices.Concat(once(silentGrace), once(max(secondGrace, silentGrace-time.Since(began))))
}

// firstNonces returns the first nonces of keys that the store does not have: the highest count, mined or pending, on which
// more than half of the endpoints that answer agree. Counts agree that differ by no more than MaxNonceJump, over endpoints and
// readings. A key without such a count gets none, and the error names it, because one of the endpoints is wrong. An endpoint
// that is reported as lagging may count less than the others, because it is still syncing.
func (s *Service) firstNonces(ctx context.Context, keys []common.Address) (map[common.Address]uint64, error) {
	reports := s.readCounts(ctx, keys)
	lags := map[string]bool{}
	for _, ep := range s.cfg.Chain.Status().Endpoints {
		lags[ep.Endpoint] = !ep.OK && (ep.Lag > 0 || ep.Syncing)
	}
	nonces := map[common.Address]uint64{}
	var problems []error
	for i, key := range keys {
		endpoints := countsOf(reports, i)
		if len(endpoints) == 0 {
			return nil, fmt.Errorf("count the transactions of new keys: no endpoint answers: %w", reports[0].Err)
		}
		nonce, agreed := agreedCount(endpoints, lags, s.cfg.MaxNonceJump)
		if !agreed || nonce > store.MaxNonce {
			problems = append(problems, disagreement(key, endpoints, lags))
			continue
		}
		for _, e := range endpoints {
			if e.high > nonce || e.low+s.cfg.MaxNonceJump < nonce {
				s.cfg.Log.Warn("endpoint disagrees with the others about a new key's transactions", "endpoint", e.endpoint, "key", key,
					"counts", e.high, "next", nonce)
			}
		}
		nonces[key] = nonce
	}
	return nonces, errors.Join(problems...)
}

// endpointCounts are the lowest and the highest count of one key that an endpoint has reported.
type endpointCounts struct {
	endpoint  string
	low, high uint64
}

// countsOf returns the counts of the endpoints that answered about a key, given by its index in the reports.
func countsOf(reports []evm.Counts, key int) (endpoints []endpointCounts) {
	for _, r := range reports {
		if r.Err != nil {
			continue
		}
		count := max(r.Mined[key], r.Pending[key])
		i := slices.IndexFunc(endpoints, func(e endpointCounts) bool { return e.endpoint == r.Endpoint })
		if i < 0 {
			endpoints = append(endpoints, endpointCounts{r.Endpoint, count, count})
			continue
		}
		endpoints[i].low, endpoints[i].high = min(endpoints[i].low, count), max(endpoints[i].high, count)
	}
	return endpoints
}

// agreedCount returns the highest count on which a majority agrees, of the endpoints that do not lag or count more.
func agreedCount(endpoints []endpointCounts, lags map[string]bool, tolerance uint64) (count uint64, agreed bool) {
	for _, candidate := range endpoints {
		voters, votes := 0, 0
		for _, e := range endpoints {
			if lags[e.endpoint] && e.high <= candidate.high {
				continue
			}
			if voters++; e.high <= candidate.high && candidate.high-e.low <= tolerance {
				votes++
			}
		}
		if 2*votes > voters && candidate.high >= count {
			count, agreed = candidate.high, true
		}
	}
	return count, agreed
}

// disagreement returns why a new key gets no first nonce.
func disagreement(key common.Address, endpoints []endpointCounts, lags map[string]bool) error {
	settled := slices.DeleteFunc(slices.Clone(endpoints), func(e endpointCounts) bool { return lags[e.endpoint] })
	if len(settled) == 0 {
		return fmt.Errorf("count the transactions of new key %s: only %s answers, and it lags", key, endpoints[0].endpoint)
	}
	low := slices.MinFunc(settled, func(a, b endpointCounts) int { return cmp.Compare(a.low, b.low) })
	high := slices.MaxFunc(endpoints, func(a, b endpointCounts) int { return cmp.Compare(a.high, b.high) })
	return fmt.Errorf("%s counts %d transactions of new key %s, and %s counts %d: take the endpoint that is wrong out of the configuration",
		low.endpoint, low.low, key, high.endpoint, high.high)
}
