package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// readmitLooks is the time after which an excluded endpoint is compared again, in looks for finality.
const readmitLooks = 10

const (
	// violations is how many rounds in a row all endpoints must contradict a final block before the chain is halted.
	violations = 3
	// silentIntervals is for how many intervals they must, if an endpoint does not answer: it may have the block.
	silentIntervals = 20
)

var (
	// errNoFinality means that too few endpoints have a final block.
	errNoFinality = errors.New("no final block")
	// errContradiction means that all endpoints contradict a final block.
	errContradiction = errors.New("a final block has changed at all endpoints")
	// errDivided means that most endpoints contradict a final block, and one has it.
	errDivided = errors.New("a final block has changed at most endpoints")
)

// allLooks is how often finality is looked for until an endpoint whose final block is the stored one is compared with the others: its tag
// may have stalled.
const allLooks = 4

// claim is the block that an endpoint calls final.
type claim struct {
	endpoint string
	evm.Header
}

// final returns the newest block that two endpoints call final and have with the same hash, or one if no other is configured. It never goes
// back. Whenever it moves, the former one is compared. Most often the first endpoint alone shows that it has not moved.
func (w *Watcher) final(ctx context.Context) (events.Block, error) {
	var claims []claim
	var best evm.Header
	var errs []error
	stored := w.chain.Final
	w.looks++
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByNumber") {
		h, err := w.finalOf(ctx, name)
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case w.cfg.Alone:
			return w.advance(ctx, blockOf(h))
		case h.Hash == stored.Hash && len(claims) == 0 && w.looks%allLooks != 0:
			w.violations = 0
			return stored, nil
		}
		one := claim{name, h}
		for _, other := range claims {
			low, err := w.lower(ctx, one, other)
			if err != nil {
				errs = append(errs, err)
			} else if best.IsZero() || low.Number > best.Number {
				best = low
			}
		}
		if best.Number > stored.Number {
			break
		}
		claims = append(claims, one)
	}
	if best.IsZero() {
		return events.Block{}, fmt.Errorf("%w (%s): %w", errNoFinality, w.cfg.Finality, reasons(errs))
	}
	return w.advance(ctx, blockOf(best))
}

// finalOf returns the newest block that an endpoint calls final.
func (w *Watcher) finalOf(ctx context.Context, endpoint string) (evm.Header, error) {
	h, found, err := w.cfg.Client.FinalOf(ctx, endpoint, w.cfg.Finality)
	if err == nil && !found {
		err = fmt.Errorf("endpoint %s has no block for %s", endpoint, w.cfg.Finality)
	}
	if err == nil {
		w.confirm.metrics.finals.WithLabelValues(endpoint).Set(float64(h.Number))
	}
	return h, err
}

// lower returns the lower block of two claims. The endpoint of the higher one must have it, too.
func (w *Watcher) lower(ctx context.Context, low, high claim) (evm.Header, error) {
	if low.Number > high.Number {
		low, high = high, low
	}
	at := high.Header
	if low.Number != high.Number {
		var err error
		if at, err = w.cfg.Client.HeaderAt(ctx, high.endpoint, low.Number); err != nil {
			return evm.Header{}, err
		}
	}
	if at.Hash != low.Hash {
		return evm.Header{}, fmt.Errorf("block %d is %s at %s and %s at %s", low.Number, low.Hash, low.endpoint, at.Hash, high.endpoint)
	}
	return low.Header, nil
}

// advance returns the newer one of the stored final block and another, after it has compared the stored one with the endpoints.
func (w *Watcher) advance(ctx context.Context, final events.Block) (events.Block, error) {
	stored := w.chain.Final
	switch {
	case final.Number < stored.Number: // tags lag, or the endpoints have left the stored block
		if err := w.compare(ctx, stored); errors.Is(err, errContradiction) {
			return stored, err
		}
		return stored, nil
	case stored.Number == 0, final.Number == stored.Number && final.Hash == stored.Hash, w.stored(stored) && w.stored(final): // each has the one before it as parent
		w.violations = 0
		return final, nil
	}
	return final, w.compare(ctx, stored)
}

// compare asks all endpoints, also those that it has excluded, for the stored final block. It returns nil if endpoints have it, and excludes
// one that has another one, or several if two have it. If all of them have another one, for several rounds, it halts the chain. An endpoint
// that does not answer delays that, and one alone of several halts nothing.
func (w *Watcher) compare(ctx context.Context, stored events.Block) error {
	names := w.cfg.Client.Endpoints("eth_getBlockByNumber")
	for name := range w.excluded { // otherwise endpoints that change one after the other would never count together
		w.cfg.Client.Exclude(name, evm.Exclusion{})
		names = append(names, name)
	}
	var same, other []string
	var errs []error
	have := map[string]string{}
	for _, name := range names {
		h, err := w.cfg.Client.HeaderAt(ctx, name, stored.Number)
		switch {
		case err != nil:
			errs = append(errs, err)
			if _, before := w.excluded[name]; before {
				w.exclude(name, "not been compared since: "+err.Error())
			}
		case h.Hash == stored.Hash:
			same = append(same, name)
			delete(w.excluded, name)
		default:
			other, have[name] = append(other, name), h.Hash.Hex()
			delete(w.excluded, name)
		}
	}
	switch {
	case len(same) > 1, len(same) == 1 && len(other) <= 1:
		w.violations = 0
		for _, name := range other {
			w.exclude(name, have[name])
			w.log.Error("endpoint excluded: it contradicts a final block", "endpoint", name, "block", stored.Number, "final", stored.Hash, "has", have[name])
		}
		return nil
	case len(same) == 1:
		w.violations = 0
		return fmt.Errorf("%w: block %d was final as %s, and %d endpoints have other blocks", errDivided, stored.Number, stored.Hash, len(other))
	case len(other) == 0:
		return fmt.Errorf("compare the final block %d: %w", stored.Number, reasons(errs))
	}
	has := have[other[len(other)-1]]
	if w.violations++; w.violations == 1 {
		w.violated = time.Now()
	}
	err := fmt.Errorf("%w: block %d was final as %s and is %s", errContradiction, stored.Number, stored.Hash, has)
	silent := len(other)+len(w.excluded) < len(w.cfg.Client.Status().Endpoints)
	alone := len(other) == 1 && !w.cfg.Alone
	if w.violations < violations || alone || silent && time.Since(w.violated) < silentIntervals*w.cfg.Interval {
		return err
	}
	w.log.Error("chain halted: nothing is stored or published until an operator resumes it", "block", stored.Number, "final", stored.Hash, "has", has)
	if err := w.cfg.Store.Halt(ctx, err.Error()); err != nil {
		return err
	}
	w.chain.Halted = err.Error()
	return err
}

// exclude excludes an endpoint that has another block than the stored final one.
func (w *Watcher) exclude(endpoint, have string) {
	stored := w.chain.Final
	w.cfg.Client.Exclude(endpoint, evm.Exclusion{Reason: fmt.Sprintf("block %d was final as %s, and it has %s", stored.Number, stored.Hash, have)})
	if w.excluded == nil {
		w.excluded = map[string]time.Time{}
	}
	w.excluded[endpoint] = time.Now()
}

// readmit ends the exclusion of endpoints that have the stored final block by now. An operator may have repaired them.
func (w *Watcher) readmit(ctx context.Context) {
	for name, since := range w.excluded {
		if time.Since(since) < readmitLooks*w.cfg.FinalInterval {
			continue
		}
		w.cfg.Client.Exclude(name, evm.Exclusion{})
		switch h, err := w.cfg.Client.HeaderAt(ctx, name, w.chain.Final.Number); {
		case err != nil:
			w.exclude(name, "not been compared since: "+err.Error())
		case h.Hash != w.chain.Final.Hash:
			w.exclude(name, h.Hash.Hex())
		default:
			delete(w.excluded, name)
			w.log.Info("endpoint used again: it has the final block", "endpoint", name, "block", h.Number)
		}
	}
}

// finalize stores what has become final.
func (w *Watcher) finalize(ctx context.Context) error {
	w.readmit(ctx)
	final, err := w.final(ctx)
	if errors.Is(err, errNoFinality) && len(w.excluded) > 0 && w.chain.Final.Number > 0 {
		err = errors.Join(err, w.compare(ctx, w.chain.Final))
	}
	if err != nil {
		return err
	}
	tip := w.chain.Cursor
	switch at, ok := w.block(final.Number); {
	case final.Number > tip.Number:
		// The cursor may be a block that was not final when it was stored.
		if tip.Number > w.chain.Final.Number {
			err = w.reorganize(ctx, tip.Number)
		}
	case ok && at.Hash != final.Hash:
		err = w.reorganize(ctx, final.Number)
	}
	if err == nil {
		err = w.finalizeStored(ctx, final)
	}
	if err != nil {
		return err
	}
	return w.catchUp(ctx, final)
}

// finalizeStored makes the stored blocks up to a final one final, in steps of a limited number of events: there are many if the final block
// moves far, such as after its tag has stalled. If the final block is after the cursor, that is on the chain.
func (w *Watcher) finalizeStored(ctx context.Context, final events.Block) error {
	upto := min(final.Number, w.chain.Cursor.Number)
	if upto == final.Number && !w.stored(final) { // it is before the stored blocks, or contradicts one that endpoints have shown
		return nil
	}
	for upto > w.chain.Final.Number {
		number, err := w.cfg.Store.FinalizeUpTo(ctx, upto, w.finalizeMost)
		if err != nil {
			return err
		}
		at, ok := w.block(number)
		if !ok { // another process has stored a step
			return store.ErrFenced
		}
		if err := w.commit(ctx, store.Step{Epoch: w.lease.Epoch(), From: w.chain.Cursor, To: w.blocks[len(w.blocks)-1], Final: at}); err != nil {
			return err
		}
		w.blocks = w.blocks[slices.IndexFunc(w.blocks, func(b events.Block) bool { return b.Number == number }):]
		if err := w.renew(ctx); err != nil {
			return err
		}
	}
	return nil
}
