package watch

import (
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
	// rangeBlocks is how many blocks a step reads at most, and firstBlocks how many the first one of a process does.
	rangeBlocks, firstBlocks = 10_000, 100
	// rangeLogs is how many events a step should have at most: each takes some kilobytes until it is stored.
	rangeLogs = 5_000
)

// catchUp stores the events up to the final block, in ranges. The cursor is before it and on the chain. While a range is stored, the next
// one is read.
func (w *Watcher) catchUp(ctx context.Context, final events.Block) error {
	var next *reading
	defer func() { next.stop() }()
	for ctx.Err() == nil {
		if next == nil {
			next = w.startReading(ctx, max(w.chain.StartBlock, w.chain.Cursor.Number+1), final)
		}
		if next == nil {
			break
		}
		var err error
		if next, err = w.step(ctx, next, final); err != nil {
			return err
		}
		if err := w.renew(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// step stores a range of final blocks. It returns the range after it, which is being read, or nil if there is none. It stores nothing if
// the range has too many events; the next one is shorter.
func (w *Watcher) step(ctx context.Context, r *reading, final events.Block) (next *reading, err error) {
	logs, err := w.await(ctx, r)
	if tooMany, ok := errors.AsType[*tooManyError](err); ok {
		w.span = tooMany.fewer()
		return nil, nil
	}
	if err != nil {
		w.span = max(1, (r.to-r.from+1)/2) // a range of many queries may never be free of failures
		return r, err
	}
	from, to := r.from, r.to
	w.resize(to-from+1, len(logs))
	step := store.Step{Epoch: w.lease.Epoch(), From: w.chain.Cursor, Final: final, Count: to - from + 1}
	watched := withCreated{w, map[common.Address]struct{}{}}
	for len(logs) > 0 {
		number := logs[0].BlockNumber
		of := ofBlock(logs, number)
		logs = logs[len(of):]
		found, parked := w.cfg.Events.Match(w.cfg.Client.ChainID(), convert(of), watched)
		if len(found) == 0 && len(parked) == 0 {
			continue
		}
		b, err := w.blockOfLogs(ctx, of)
		if err != nil {
			return nil, err
		}
		step.Blocks = append(step.Blocks, store.Read{Block: b, Found: found, Parked: parked})
		addCreated(watched.created, found)
	}
	if step.To, err = w.header(ctx, to); err != nil {
		return nil, err
	}
	if n := len(step.Blocks); n > 0 && step.Blocks[n-1].Number == to {
		if last := step.Blocks[n-1]; last.Hash != step.To.Hash {
			return nil, fmt.Errorf("block %d: %w: its logs are of %s, its header of %s", to, errUnconfirmed, last.Hash, step.To.Hash)
		}
		step.Blocks[n-1].Block = step.To // with its parent
	}
	// The next range needs the escrows that this one creates. If the commit fails, the lease is dropped, and they are read from the database
	// before the next step. A step that fails earlier leaves none in memory: its blocks may not be those of the next try.
	for i := range step.Blocks {
		w.register(step.Blocks[i].Found)
	}
	next = w.startReading(ctx, to+1, final)
	if err := w.commit(ctx, step); err != nil {
		return next, err
	}
	w.blocks = []events.Block{step.To}
	return next, nil
}

// resize sets the number of blocks of the next step by a step that had some logs.
func (w *Watcher) resize(blocks uint64, logs int) {
	switch {
	case logs > rangeLogs:
		w.span = max(1, blocks*rangeLogs/uint64(logs))
	case logs <= rangeLogs/2 && blocks >= w.span: // the chain may have had no more blocks
		w.span = min(2*w.span, rangeBlocks)
	}
}

// blockOfLogs returns the block of confirmed logs. Its header is read only if they do not have its time. The parent of a final block is not
// needed.
func (w *Watcher) blockOfLogs(ctx context.Context, logs []evm.Log) (events.Block, error) {
	first := logs[0]
	if first.BlockTime > 0 && !slices.ContainsFunc(logs, func(l evm.Log) bool { return l.BlockTime != first.BlockTime }) {
		return events.Block{Number: first.BlockNumber, Hash: first.BlockHash, Time: time.Unix(int64(first.BlockTime), 0)}, nil
	}
	b, err := w.header(ctx, first.BlockNumber)
	if err == nil && b.Hash != first.BlockHash {
		err = fmt.Errorf("block %d: %w: its logs are of %s, its header of %s", b.Number, errUnconfirmed, first.BlockHash, b.Hash)
	}
	return b, err
}

// commit stores a step.
func (w *Watcher) commit(ctx context.Context, step store.Step) error {
	messages, err := w.cfg.Store.Commit(ctx, step)
	if err != nil {
		w.lease.Drop() // what is in memory may not be what is stored
		return err
	}
	w.chain.Cursor = step.To
	if step.Final.Number > w.chain.Final.Number {
		w.chain.Final = step.Final
	}
	w.progress()
	w.log.Debug("step stored", "from", step.From.Number, "to", step.To.Number, "final", w.chain.Final.Number, "messages", len(messages))
	return nil
}

// register adds the escrows that a block creates to those that are on the chain. The block is stored next.
func (w *Watcher) register(found []events.Occurrence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	addCreated(w.escrows, found)
}

// addCreated adds the escrows that a block creates.
func addCreated(escrows map[common.Address]struct{}, found []events.Occurrence) {
	for i := range found {
		if found[i].Event.Role == events.Factory {
			escrows[found[i].Escrow] = struct{}{}
		}
	}
}

// withCreated is a Watcher with the escrows that earlier blocks of a step create.
type withCreated struct {
	*Watcher
	created map[common.Address]struct{}
}

// Escrow implements [events.Watched].
func (w withCreated) Escrow(a common.Address) bool {
	_, ok := w.created[a]
	return ok || w.Watcher.Escrow(a)
}

func convert(logs []evm.Log) []events.Log {
	all := make([]events.Log, len(logs))
	for i := range logs {
		all[i] = converted(&logs[i])
	}
	return all
}

func converted(l *evm.Log) events.Log {
	return events.Log{Contract: l.Contract, Topics: l.Topics, Data: l.Data, Tx: l.TxHash, Index: l.Index}
}

// header returns a final block that two endpoints have, or one if no other is configured.
func (w *Watcher) header(ctx context.Context, number uint64) (events.Block, error) {
	var seen []evm.Header
	var errs []error
	for _, name := range w.cfg.Client.Endpoints("eth_getBlockByNumber") {
		h, err := w.cfg.Client.HeaderAt(ctx, name, number)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, other := range append(seen, h)[:len(seen)] {
			if other.Hash == h.Hash && other.Parent == h.Parent && other.Time.Equal(h.Time) {
				return blockOf(h), nil
			}
		}
		if seen = append(seen, h); w.cfg.Alone {
			return blockOf(h), nil
		}
	}
	return events.Block{}, fmt.Errorf("block %d: %w: %d endpoints answer, and no two of them agree: %w", number, errUnconfirmed, len(seen), reasons(errs))
}

func blockOf(h evm.Header) events.Block {
	return events.Block{Number: h.Number, Hash: h.Hash, Parent: h.Parent, Time: h.Time}
}
