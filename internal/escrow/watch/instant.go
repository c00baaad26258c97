package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

const (
	// A block that one endpoint has is read again after a pause that doubles from minPause to the interval: others get it later.
	minPause = 25 * time.Millisecond
	// lateBlock is how long a block may stay with one endpoint before the round fails, and before another one of its number is tried.
	lateBlock = 3 * time.Second
	// maxRemoved bounds how many blocks that were taken back are remembered.
	maxRemoved = 10_000
)

var (
	// errUnsettled means that the endpoints do not agree on the chain.
	errUnsettled = errors.New("the endpoints do not agree")
	// errLate means that fewer than two endpoints have a block.
	errLate = errors.New("too few endpoints have the block")
	// errAhead means that no endpoint has a block after the stored one, although one has reported a head.
	errAhead = errors.New("no endpoint has the next block")
)

// follower is the state of a process that follows the head.
type follower struct {
	stop   func()      // ends the client's run; nil while it does not run
	head   common.Hash // the newest
	came   time.Time   // when it came
	tip    common.Hash // the newest stored block that two endpoints have shown
	tries  int         // rounds since the cursor moved that ended with errLate or errUnsettled
	since  time.Time   // when the first of them was
	passed common.Hash // the block after the cursor that was not confirmed: others are tried before it
	// removed are blocks that were taken back. The endpoint that has them may be on a branch of its own, so they are stored again only if two
	// have them, and others are tried before.
	removed map[common.Hash]bool
}

// followHeads runs the client while this process follows the head, and reports whether it does.
func (w *Watcher) followHeads(ctx context.Context) bool {
	if w.cfg.Delivery != Instant || !w.lease.Held() || w.chain.Halted != "" || ctx.Err() != nil {
		w.leaveHeads()
		return false
	}
	if w.stop == nil {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = w.cfg.Client.Run(ctx) // it returns nil
		}()
		w.stop = func() { cancel(); <-done }
	}
	return true
}

func (w *Watcher) leaveHeads() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// pause returns how long to wait for a head.
func (w *Watcher) pause() time.Duration {
	if w.tries == 0 {
		return w.cfg.Interval
	}
	return min(minPause<<min(w.tries-1, 10), w.cfg.Interval)
}

// block returns the stored block of a number, if it is a final one or after it.
func (w *Watcher) block(number uint64) (events.Block, bool) {
	i, ok := slices.BinarySearchFunc(w.blocks, number, func(b events.Block, n uint64) int { return cmp.Compare(b.Number, n) })
	if !ok {
		return events.Block{}, false
	}
	return w.blocks[i], true
}

// stored reports whether a block is stored.
func (w *Watcher) stored(b events.Block) bool {
	at, ok := w.block(b.Number)
	return ok && at.Hash == b.Hash
}

// follow stores the blocks up to the head.
func (w *Watcher) follow(ctx context.Context) error {
	head := w.cfg.Client.Head()
	if head.IsZero() {
		return nil
	}
	if head.Hash != w.head {
		w.head, w.came = head.Hash, time.Now()
	}
	if len(w.blocks) == 0 {
		return w.anchor(ctx, head)
	}
	var err error
	if at, ok := w.block(head.Number); ok && at.Hash != head.Hash {
		err = w.reorganize(ctx, head.Number)
	}
	for err == nil && ctx.Err() == nil && w.chain.Cursor.Number < head.Number {
		if err = w.extend(ctx, head); err == nil {
			err = w.renew(ctx)
		}
	}
	if errors.Is(err, errAhead) || errors.Is(err, errLate) || errors.Is(err, errUnsettled) {
		return w.delay(ctx, err)
	}
	if err == nil {
		w.tries = 0
	}
	return cmp.Or(err, ctx.Err())
}

// delay returns nil if the chain could not be followed for a short time only: endpoints receive a block one after the other. Then it is
// read again soon. With errAhead all is stored that two endpoints have, unless they report later heads themselves: then they serve no blocks
// by number, and another process may have better ones.
func (w *Watcher) delay(ctx context.Context, err error) error {
	if w.tries == 0 {
		w.since = time.Now()
	}
	if w.tries++; time.Since(w.since) < lateBlock {
		return nil
	}
	if errors.Is(err, errAhead) && newest(ctx, w.cfg.Client, evm.Finality{}, w.cfg.Alone) <= w.chain.Cursor.Number {
		return nil
	}
	return err
}

// moved records that the cursor has moved.
func (w *Watcher) moved() { w.tries, w.passed = 0, common.Hash{} }

// checkTip looks whether two endpoints have the newest stored block, or an earlier one if they have not come that far. That of a block without
// logs may come from one endpoint, because its header excludes them; the endpoint may be on a branch of its own.
func (w *Watcher) checkTip(ctx context.Context) error {
	tip := w.chain.Cursor
	if w.cfg.Alone || tip.Hash == w.tip {
		return nil
	}
	for behind := uint64(0); behind < tip.Number; behind = max(1, 2*behind) {
		at, ok := w.block(tip.Number - behind)
		if !ok || at.Number <= w.chain.Final.Number {
			return nil
		}
		err := w.reorganize(ctx, at.Number)
		if errors.Is(err, errLate) {
			continue
		}
		if err == nil && w.chain.Cursor.Hash == at.Hash {
			w.tip = at.Hash
		}
		return err
	}
	return nil
}

// anchor stores the block before the first one to read, which is not final yet.
func (w *Watcher) anchor(ctx context.Context, head evm.Header) error {
	before := max(w.chain.StartBlock, 1) - 1
	if head.Number < before {
		return nil
	}
	b, err := w.header(ctx, before)
	if err != nil {
		return err
	}
	if err := w.commit(ctx, store.Step{Epoch: w.lease.Epoch(), From: w.chain.Cursor, To: b}); err != nil {
		return err
	}
	w.blocks = []events.Block{b}
	return nil
}

// extend stores the block after the cursor. It returns errLate if too few endpoints have it.
func (w *Watcher) extend(ctx context.Context, head evm.Header) error {
	from := w.chain.Cursor
	h, err := w.successor(ctx, head)
	if err != nil {
		return err
	}
	if h.Parent != from.Hash {
		if err := w.reorganize(ctx, from.Number); err != nil {
			return err
		}
		if w.chain.Cursor == from {
			return fmt.Errorf("block %d %s: %w: it follows another block than %s, which is on the chain", h.Number, h.Hash, errAhead, from.Hash)
		}
		return nil
	}
	logs, seen, err := w.confirm.readBlock(ctx, h, w.removed[h.Hash])
	if err != nil {
		w.passed = h.Hash
		return err
	}
	b := store.Read{Block: blockOf(h)}
	b.Found, b.Parked = w.cfg.Events.Match(w.cfg.Client.ChainID(), convert(logs), w)
	if len(b.Found)+len(b.Parked) > 0 && !h.Proven() && !w.cfg.Alone {
		if err := w.authentic(ctx, h); err != nil {
			return err
		}
	}
	w.register(b.Found)
	if err := w.commit(ctx, store.Step{Epoch: w.lease.Epoch(), From: from, Blocks: []store.Read{b}, To: b.Block, Count: 1}); err != nil {
		return err
	}
	w.blocks = append(w.blocks, b.Block)
	w.moved()
	if seen {
		w.tip = b.Hash
	}
	return nil
}

// successor returns the block after the cursor, or a block of its number that follows another one if no endpoint has better.
func (w *Watcher) successor(ctx context.Context, head evm.Header) (h evm.Header, err error) {
	from := w.chain.Cursor
	rank := func(h evm.Header) int {
		switch {
		case h.IsZero():
			return 0
		case h.Parent != from.Hash:
			return 1
		case w.removed[h.Hash], h.Hash == w.passed && time.Since(w.since) > lateBlock/3:
			return 2
		}
		return 3
	}
	if head.Number == from.Number+1 {
		h = head
	}
	var errs []error
	names := w.cfg.Client.Endpoints("eth_getBlockByNumber")
	away := len(names) < 2 && !w.cfg.Alone || len(names) == 0 // some give no answer
	for _, name := range names {
		if rank(h) == 3 {
			break
		}
		other, err := w.cfg.Client.HeaderAt(ctx, name, from.Number+1)
		if err != nil {
			away = away || !errors.Is(err, evm.ErrMissing)
			errs = append(errs, err)
		} else if rank(other) > rank(h) {
			h = other
		}
	}
	switch {
	case h.IsZero() && away:
		return h, fmt.Errorf("block %d: %w: %w", from.Number+1, errLate, reasons(errs))
	case h.IsZero():
		return h, fmt.Errorf("block %d: %w", from.Number+1, errAhead)
	}
	return h, nil
}

// authentic returns nil if another endpoint gives the same header. It is for chains whose headers prove nothing.
func (w *Watcher) authentic(ctx context.Context, h evm.Header) error {
	same := 0
	var errs []error
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByHash") {
		other, err := w.cfg.Client.SealedHeader(ctx, name, h.Hash)
		if err != nil {
			errs = append(errs, err)
		} else if other.Number == h.Number && other.Parent == h.Parent && other.Time.Equal(h.Time) {
			if same++; same == 2 {
				return nil
			}
		}
	}
	return fmt.Errorf("header of block %d %s: %w: %w", h.Number, h.Hash, errUnconfirmed, reasons(errs))
}

// reorganize takes back the stored blocks up to a number, and those after it, that are not on the chain any more. Two endpoints decide
// for each, the newest first. It returns errUnsettled or errLate if they do not, and errContradiction if a final block is gone.
func (w *Watcher) reorganize(ctx context.Context, upto uint64) error {
	for _, b := range slices.Backward(w.blocks) {
		if b.Number > upto {
			continue
		}
		on, err := w.onChain(ctx, b)
		switch {
		case err != nil:
			return err
		case on && b.Number == upto:
			return nil
		case on:
			return w.retract(ctx, b)
		}
	}
	first := w.blocks[0]
	if first.Number > w.chain.Final.Number { // the block before the first one
		b, err := w.header(ctx, first.Number)
		if err != nil {
			return err
		}
		return w.retract(ctx, b)
	}
	if err := w.compare(ctx, w.chain.Final); err != nil {
		return err
	}
	// Endpoints without the final block are excluded now. The next round reads the chain from the others.
	return fmt.Errorf("%w: no stored block is on the chain that most had", errUnsettled)
}

// retract stores that the blocks after an ancestor were removed.
func (w *Watcher) retract(ctx context.Context, ancestor events.Block) error {
	from := w.chain.Cursor
	if err := w.commit(ctx, store.Step{Epoch: w.lease.Epoch(), From: from, Ancestor: &ancestor, To: ancestor, Between: w.renew}); err != nil {
		return err
	}
	if w.removed == nil || len(w.removed) > maxRemoved {
		w.removed = map[common.Hash]bool{}
	}
	for _, b := range w.blocks {
		if b.Number > ancestor.Number {
			w.removed[b.Hash] = true
		}
	}
	w.log.Warn("blocks were removed by a reorganization", "from", ancestor.Number+1, "to", from.Number, "tip", from.Hash)
	w.moved()
	if err := w.load(ctx); err != nil { // without the escrows that the blocks had created
		w.lease.Drop()
		return err
	}
	return nil
}

// onChain reports whether a stored block is on the chain. An endpoint with another one is distrusted if two have it.
func (w *Watcher) onChain(ctx context.Context, b events.Block) (bool, error) {
	need := 2
	if w.cfg.Alone {
		need = 1
	}
	var same, other []string
	var errs []error
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByNumber") {
		switch h, err := w.cfg.Client.HeaderAt(ctx, name, b.Number); {
		case err != nil:
			errs = append(errs, err)
		case h.Hash == b.Hash:
			same = append(same, name)
		default:
			other = append(other, name)
		}
		switch {
		case len(same) >= need:
			for _, name := range other {
				err := w.cfg.Client.Distrust(name, "eth_getBlockByNumber", fmt.Errorf("it has another block %d", b.Number))
				w.log.Warn("endpoint is on another branch", "endpoint", name, "block", b.Number, "hash", b.Hash, "err", err)
			}
			return true, nil
		case len(other) >= need:
			return false, nil
		}
	}
	cause := errUnsettled
	if len(other) == 0 {
		cause = errLate
	}
	return false, fmt.Errorf("block %d %s: %w: %d endpoints have it, and %d have another one: %w", b.Number, b.Hash, cause, len(same), len(other), errors.Join(errs...))
}
