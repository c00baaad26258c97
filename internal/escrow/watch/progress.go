package watch

import (
	"context"
	"time"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// progress records that the loop turns, and whether the process has the lease. The goroutine of Run calls it.
func (w *Watcher) progress() {
	w.turns()
	w.leading.Store(w.lease.Held())
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

// read reads a confirmed range of blocks, which may take longer than the lease: endpoints with small limits need many queries. So it renews
// the lease while queries are answered. Otherwise another process would be elected in the middle, and neither would end a step. It returns
// [store.ErrFenced] if the lease is lost.
func (w *Watcher) read(ctx context.Context, from, to uint64) ([]evm.Log, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var logs []evm.Log
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		logs, failed = w.confirm.read(ctx, from, to)
	}()
	ticker := time.NewTicker(w.cfg.Interval)
	defer ticker.Stop()
	for last := w.turned.Load(); ; {
		select {
		case <-done:
			return logs, failed
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
		cancel()
		<-done
		if err == nil {
			err = store.ErrFenced
		}
		return nil, err
	}
}
