package webhook

import (
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// downAfter is for how many consecutive subjects a target fails before it counts as down. One subject alone may be at fault itself.
const downAfter = 3

// target decides how many deliveries may be sent to a target. It is safe for concurrent use.
type target struct {
	name   string
	sender *sender
	limit  int // of window

	mu       sync.Mutex
	window   int                 // how many attempts may run now
	failing  map[string]struct{} // subjects that failed since the last success
	pauses   int                 // of a target that is down
	resumeAt time.Time           // no delivery is sent before
}

func newTarget(s *sender) *target {
	return &target{name: s.to.name, sender: s, limit: s.to.limit, window: s.to.limit, failing: map[string]struct{}{}}
}

// allowed returns how many attempts may run at a time.
func (t *target) allowed(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.resumeAt) {
		return 0
	}
	return t.window
}

func (t *target) downLocked() bool { return len(t.failing) >= downAfter }

// succeeded records a success; back reports whether the target had been down.
func (t *target) succeeded() (back bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	back = t.downLocked()
	clear(t.failing)
	t.pauses = 0
	if back {
		t.resumeAt = time.Time{}
	}
	t.window = min(t.limit, t.window+1)
	return back
}

// failed records a failure. wait is the pause that the target itself asked for. It returns the time before which no delivery is
// sent, and whether the target is down from now on.
func (t *target) failed(now time.Time, subject string, wait time.Duration, tune tuning) (resumeAt time.Time, down bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.downLocked()
	if !was {
		t.failing[subject] = struct{}{}
	}
	if t.downLocked() {
		if !was || now.After(t.resumeAt) { // of several concurrent failures only one makes the pause longer
			t.pauses++
			t.resumeAt = now.Add(outbox.Backoff(t.pauses, tune.pause, tune.maxPause))
		}
		t.window = 1
	}
	if until := now.Add(wait); wait > 0 && until.After(t.resumeAt) {
		t.resumeAt = until
	}
	return t.resumeAt, t.downLocked() && !was
}
