package watch

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

var (
	// errNoFinality means that too few endpoints have a final block.
	errNoFinality = errors.New("no final block")
	// errContradiction means that all endpoints contradict a final block.
	errContradiction = errors.New("a final block has changed at all endpoints")
)

// final returns the newest block that two endpoints call final and have with the same hash, or one if no other is configured. It never goes
// back. Whenever it moves, the former one is compared.
func (w *Watcher) final(ctx context.Context) (events.Block, error) {
	type claim struct {
		endpoint string
		h        evm.Header
	}
	var claims []claim
	var errs []error
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByNumber") {
		h, found, err := w.cfg.Client.FinalOf(ctx, name, w.cfg.Finality)
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case !found:
			errs = append(errs, fmt.Errorf("endpoint %s has no block for %s", name, w.cfg.Finality))
			continue
		}
		claims = append(claims, claim{name, h})
		if w.cfg.Alone {
			return w.advance(ctx, blockOf(h))
		}
		// The highest block that two call final: for each pair it is the lower one, which the other must have, too.
		for _, other := range claims[:len(claims)-1] {
			low, high := other, claims[len(claims)-1]
			if low.h.Number > high.h.Number {
				low, high = high, low
			}
			at := high.h
			if low.h.Number != high.h.Number {
				if at, err = w.cfg.Client.HeaderAt(ctx, high.endpoint, low.h.Number); err != nil {
					errs = append(errs, err)
					continue
				}
			}
			if at.Hash == low.h.Hash {
				return w.advance(ctx, blockOf(low.h))
			}
			errs = append(errs, fmt.Errorf("block %d is %s at %s and %s at %s", low.h.Number, low.h.Hash, low.endpoint, at.Hash, high.endpoint))
		}
	}
	return events.Block{}, fmt.Errorf("%w (%s): %w", errNoFinality, w.cfg.Finality, reasons(errs))
}

// advance returns the newer one of the stored final block and another, after it has compared the stored one with the endpoints.
func (w *Watcher) advance(ctx context.Context, final events.Block) (events.Block, error) {
	stored := w.chain.Final
	if stored.Number == 0 || final.Number < stored.Number || final.Number == stored.Number && final.Hash == stored.Hash {
		w.violations = 0
		if final.Number < stored.Number {
			final = stored
		}
		return final, nil
	}
	var same, other []string
	var errs []error
	var have string
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByNumber") {
		h, err := w.cfg.Client.HeaderAt(ctx, name, stored.Number)
		switch {
		case err != nil:
			errs = append(errs, err)
		case h.Hash == stored.Hash:
			same = append(same, name)
		default:
			other, have = append(other, name), h.Hash.Hex()
		}
	}
	switch {
	case len(same) > 0:
		w.violations = 0
		for _, name := range other {
			w.cfg.Client.Exclude(name, evm.Exclusion{Reason: fmt.Sprintf("block %d was final as %s, and it has %s", stored.Number, stored.Hash, have)})
			w.log.Error("endpoint excluded: it contradicts a final block", "endpoint", name, "block", stored.Number, "final", stored.Hash, "has", have)
		}
		return final, nil
	case len(other) == 0:
		return events.Block{}, fmt.Errorf("compare the final block %d: %w", stored.Number, reasons(errs))
	}
	w.violations++
	err := fmt.Errorf("%w: block %d was final as %s and is %s", errContradiction, stored.Number, stored.Hash, have)
	if w.violations >= violations {
		w.log.Error("chain halted: nothing is stored or published until an operator resumes it", "block", stored.Number, "final", stored.Hash, "has", have)
		if err := w.cfg.Store.Halt(ctx, err.Error()); err != nil {
			return events.Block{}, err
		}
		w.chain.Halted = err.Error()
	}
	return events.Block{}, err
}
