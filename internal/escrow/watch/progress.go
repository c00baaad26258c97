package watch

import (
	"context"
	"time"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// progress records that the loop turns, and whether the process has the lease. The goroutine of Run calls it.
func (w *Watcher) progress() {
	w.turns()
	if w.leading.Swap(w.lease.Held()) && !w.lease.Held() {
		w.confirm.metrics.finals.Reset() // this process asks for no final block any more
	}
}

// turns records that the loop turns.
func (w *Watcher) turns() { w.turned.Store(time.Now().UnixNano()) }

// Turned returns when the loop of Run last made progress: a turn, or a step or a query within one. The zero time before the first.
func (w *Watcher) Turned() time.Time {
	if at := w.turned.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Leading reports whether this process had the lease then.
func (w *Watcher) Leading() bool { return w.leading.Load() }

// reading is a range of blocks that is being read.
type reading struct {
	from, to uint64
	cancel   context.CancelFunc
	done     chan struct{}
	logs     []evm.Log
	err      error
}

// stop ends a reading. It may be called again, and for nil.
func (r *reading) stop() {
	if r != nil {
		r.cancel()
		<-r.done
	}
}

// startReading begins to read the confirmed logs of the blocks from a number on, up to the final one at most. It returns nil if there is
// none. The caller stops it.
func (w *Watcher) startReading(ctx context.Context, from uint64, final events.Block) *reading {
	if from > final.Number {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &reading{from: from, to: min(from+w.span-1, final.Number), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.logs, r.err = w.confirm.read(ctx, r.from, r.to)
	}()
	return r
}

// await returns the logs of a reading, which may take longer than the lease: endpoints with small limits need many queries. So it renews
// the lease while queries are answered. Otherwise another process would be elected in the middle, and neither would end a step. It returns
// [store.ErrFenced] if the lease is lost.
func (w *Watcher) await(ctx context.Context, r *reading) ([]evm.Log, error) {
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	for last := w.turned.Load(); ; {
		select {
		case <-r.done:
			r.cancel()
			return r.logs, r.err
		case <-ticker.C:
		}
		if w.turned.Load() == last {
			continue
		}
		last = w.turned.Load()
		w.claimed = time.Now()
		_, err := w.lease.Claim(ctx)
		if err == nil && w.lease.Held() {
			continue
		}
		if err == nil {
			err = store.ErrFenced
		}
		return nil, err
	}
}
