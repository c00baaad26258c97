package watch

import "time"

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
