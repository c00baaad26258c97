package watch

import (
	"context"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

const (
	// lookEvery is the time between two looks for blocks that should be stored. On a chain whose final block moves each six minutes, the looks
	// of three processes are a tenth of the calls.
	lookEvery = 2 * time.Minute
	// farBehind is how many blocks before a head that was received the cursor counts as behind, although it moves.
	farBehind = 50
)

// Newest returns the newest block whose events should be stored: the final one, or with Instant the head. It is 0 before Look has asked for
// one. It may be before the cursor.
func (w *Watcher) Newest() uint64 { return w.newest.Load() }

// Look asks the endpoints for that block until ctx ends, and returns nil then. It asks only while the stored cursor does not move or is far
// behind the head, whichever process reads the chain: so the lag is known also if none does. It may run beside Run.
func (w *Watcher) Look(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var before common.Hash
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			before = w.look(ctx, before)
		}
	}
}

// look is a single look. before is the cursor that the former one has returned.
func (w *Watcher) look(ctx context.Context, before common.Hash) (cursor common.Hash) {
	chain, err := w.cfg.Store.Chain(ctx)
	if err != nil { // the process's other parts report it
		return before
	}
	if chain.Cursor.Hash != before && w.cfg.Client.Head().Number <= chain.Cursor.Number+farBehind {
		w.newest.Store(0) // the cursor may have gone back
		return chain.Cursor.Hash
	}
	finality := w.cfg.Finality
	if w.cfg.Delivery == Instant {
		finality = evm.Finality{}
	}
	if n := newest(ctx, w.cfg.Client, finality, w.cfg.Alone); n > 0 {
		w.newest.Store(n)
	}
	return chain.Cursor.Hash
}

// newest returns the highest block that two endpoints have reached, by the final block that each reports, or one endpoint if alone; 0 if
// fewer answer. They may be on different branches.
func newest(ctx context.Context, client *evm.Client, f evm.Finality, alone bool) uint64 {
	var highest, second uint64
	for _, name := range client.Endpoints("eth_getBlockByNumber") {
		if h, found, err := client.FinalOf(ctx, name, f); err == nil && found {
			highest, second = max(highest, h.Number), max(second, min(highest, h.Number))
		}
	}
	if alone {
		return highest
	}
	return second
}
