package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/params"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	// comparedKeys bounds the keys that a request is simulated from, and comparedAtOnce how many of them concurrently.
	comparedKeys, comparedAtOnce = 16, 4
	// senderCheckAge is how long a result stays valid that a contract's function treats all keys alike.
	senderCheckAge = time.Minute
	// senderCheckLimit bounds the number of remembered functions.
	senderCheckLimit = 1024
)

// estimate simulates the request from its key. Without a key it uses the richest, or, if no value is sent, any, because gas
// costs nothing in a simulation. The gas limit is the simulated gas plus up to 10%, for changes until the transaction runs.
// It returns the only key that may send the request, zero for any. If a contract checks its sender, that is a key for which
// the simulation passed.
func (s *Service) estimate(ctx context.Context, key common.Address, r *relayer.Request) (only common.Address, err error) {
	from := key
	if from == (common.Address{}) {
		from = s.allocation.Held[rand.IntN(len(s.allocation.Held))]
		if r.Value != nil && r.Value.Sign() > 0 {
			if from, err = s.richest(ctx); err != nil {
				return key, err
			}
		}
	}
	gas, err := s.simulate(ctx, from, r)
	if key == (common.Address{}) && s.maySenderMatter(r, err) {
		key, gas, err = s.compare(ctx, from, r, gas, err)
	}
	if err != nil {
		return key, s.refusal(ctx, key, r, err)
	}
	r.GasLimit = gas
	if gas > params.TxGas {
		r.GasLimit += gas / 10
	}
	if most := s.maxGas(); gas <= most { // the margin alone must not make checkGas reject the request
		r.GasLimit = min(r.GasLimit, most)
	}
	return key, nil
}

func (s *Service) simulate(ctx context.Context, from common.Address, r *relayer.Request) (gas uint64, err error) {
	return s.cfg.Chain.EstimateGas(ctx, evm.Message{From: from, To: r.To, Value: r.Value, Data: r.Data})
}

func reverts(err error) bool {
	_, ok := errors.AsType[*evm.RevertError](err)
	return ok
}

// maySenderMatter reports whether a request to the pool has to be simulated from other keys too. err is the result of its
// simulation.
func (s *Service) maySenderMatter(r *relayer.Request, err error) bool {
	if len(s.allocation.Held) == 1 || r.To == nil || len(r.Data) == 0 {
		return false
	}
	return reverts(err) || err == nil && !s.senders.alike(functionOf(r))
}

// compare simulates the request from the other usable keys. If it passes for some keys and reverts for others, compare
// returns one of the former as the only key that may send it. Otherwise the returned gas is enough for all.
func (s *Service) compare(ctx context.Context, from common.Address, r *relayer.Request, gas uint64, first error) (common.Address, uint64, error) {
	keys, err := s.keys(ctx)
	if err != nil {
		return common.Address{}, gas, first
	}
	type result struct {
		key common.Address
		gas uint64
		err error
	}
	var results []result
	for _, k := range keys {
		if k.Enabled && !k.Paused && !k.Funding && len(results) < comparedKeys {
			results = append(results, result{key: k.Address})
		}
	}
	var simulations errgroup.Group
	simulations.SetLimit(comparedAtOnce)
	for i := range results {
		one := &results[i]
		if one.key == from {
			one.gas, one.err = gas, first
			continue
		}
		simulations.Go(func() error {
			one.gas, one.err = s.simulate(ctx, one.key, r)
			return nil
		})
	}
	_ = simulations.Wait() // the functions return no errors
	var passed []result
	reverted, unknown := reverts(first), 0
	for _, one := range results {
		switch {
		case one.err == nil:
			passed = append(passed, one)
		case reverts(one.err):
			reverted = true
		default: // no response, or no funds for the value
			unknown++
		}
	}
	switch {
	case len(passed) == 0:
		return common.Address{}, gas, first
	case reverted:
		one := passed[rand.IntN(len(passed))]
		return one.key, one.gas, nil
	}
	for _, one := range passed {
		gas = max(gas, one.gas)
	}
	if unknown == 0 {
		s.senders.remember(functionOf(r))
	}
	return common.Address{}, gas, nil
}

// refusal returns the caller's error for a failed simulation.
func (s *Service) refusal(ctx context.Context, key common.Address, r *relayer.Request, err error) error {
	if revert, ok := errors.AsType[*evm.RevertError](err); ok {
		return &relayer.RevertError{Reason: revert.Reason, Data: revert.Data}
	}
	refused, answered := errors.AsType[*evm.RPCError](err)
	switch {
	case errors.Is(err, evm.ErrInsufficientFunds) && s.exceedsBalance(ctx, key, r.Value):
		return errValueExceedsBalance
	case errors.Is(err, evm.ErrInsufficientFunds): // its balance was committed to pending transactions, or changed since it was read
		return &relayer.FundsError{Need: cmp.Or(r.Value, new(big.Int))}
	case errors.Is(err, evm.ErrGasAllowance):
		return relayer.Invalidf("", "the simulation ran out of gas")
	case answered && !evm.IsNoAnswer(err):
		return relayer.Invalidf("", "the simulation failed: %s", refused.Message)
	}
	return fmt.Errorf("%w: the transaction could not be simulated: %w", relayer.ErrUnavailable, err)
}

// function identifies a contract's function.
type function struct {
	contract common.Address
	selector [4]byte
}

func functionOf(r *relayer.Request) function {
	f := function{contract: *r.To}
	copy(f.selector[:], r.Data)
	return f
}

// senderChecks records functions that treated all keys alike.
type senderChecks struct {
	mu   sync.Mutex
	seen map[function]time.Time
}

func (s *senderChecks) alike(f function) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.seen[f]
	return ok && time.Since(at) < senderCheckAge
}

func (s *senderChecks) remember(f function) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil || len(s.seen) >= senderCheckLimit {
		s.seen = map[function]time.Time{}
	}
	s.seen[f] = time.Now()
}
