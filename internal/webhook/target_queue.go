package webhook

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	// downAfter is for how many consecutive subjects a target fails before it counts as down. One subject alone may be
	// at fault itself.
	downAfter = 3
	// prefetchFactor is how many deliveries are claimed for each that may run concurrently: enough for the duration of
	// a turn, few enough to be started before their claims end.
	prefetchFactor = 4
	// sweepEvery is how often a claim begins at the oldest due delivery. The other claims begin sweepMargin before the
	// last one claimed. A delivery is due since the begin of the transaction that writes it, which may commit later
	// than others.
	sweepEvery  = time.Second
	sweepMargin = 5 * time.Second
)

// targetQueue holds the claims for one target. It starts nothing itself and reads no clock; the Deliverer holds its
// lock.
type targetQueue struct {
	name   string
	sender *sender
	limit  int // of window

	window   int // how many attempts may run now
	queue    []*claim
	inFlight int

	failing  map[uuid.UUID]struct{} // subjects that failed since the last success
	pause    time.Duration          // the latest pause of a target that is down
	resumeAt time.Time              // no delivery is sent before
	retryNow bool                   // the target is back: see demand
	newest   time.Time              // the latest next_at among the last claims
	sweepAt  time.Time              // when a claim begins at the oldest delivery again
}

func newTargetQueue(s *sender) *targetQueue {
	return &targetQueue{name: s.to.name, sender: s, limit: s.to.limit, window: s.to.limit, failing: map[uuid.UUID]struct{}{}}
}

// down reports whether the target fails every delivery.
func (q *targetQueue) down() bool { return len(q.failing) >= downAfter }

// demand returns how many deliveries to claim: none while the queue keeps the window busy.
func (q *targetQueue) demand(now time.Time) int {
	if now.Before(q.resumeAt) {
		return 0
	}
	if q.down() {
		return max(0, q.window-q.inFlight-len(q.queue))
	}
	if len(q.queue) >= q.window {
		return 0
	}
	return max(0, prefetchFactor*q.window-q.inFlight-len(q.queue))
}

// since returns the lowest next_at of a claim. An index keeps entries of delivered rows until it is vacuumed. With a
// long history, or during a long transaction, that takes a while. So not every claim reads past all of them.
func (q *targetQueue) since(now time.Time) time.Time {
	if q.retryNow || q.newest.IsZero() || !now.Before(q.sweepAt) {
		q.sweepAt = now.Add(sweepEvery)
		return time.Time{}
	}
	return q.newest.Add(-sweepMargin)
}

// add queues the claims of a turn. They were the oldest, so the next claim begins at the latest of them. That may be
// earlier than before, because there may be many old ones.
func (q *targetQueue) add(claims []*claim) {
	if len(claims) == 0 {
		return
	}
	q.queue = append(q.queue, claims...)
	q.newest = slices.MaxFunc(claims, func(a, b *claim) int { return a.nextAt.Compare(b.nextAt) }).nextAt
}

// next returns the next claim to send; nil if there is none.
func (q *targetQueue) next(now time.Time) *claim {
	if len(q.queue) == 0 || q.inFlight >= q.window || now.Before(q.resumeAt) {
		return nil
	}
	c := q.queue[0]
	q.queue[0] = nil
	q.queue = q.queue[1:]
	q.inFlight++
	return c
}

// drop empties the queue and returns its claims.
func (q *targetQueue) drop() []*claim {
	queue := q.queue
	q.queue = nil
	return queue
}

// succeeded records a success; back reports whether the target had been down.
func (q *targetQueue) succeeded() (back bool) {
	q.inFlight--
	back = q.down()
	clear(q.failing)
	q.pause = 0
	if back {
		q.resumeAt = time.Time{}
	}
	q.window = min(q.limit, q.window+1)
	q.retryNow = q.retryNow || back
	return back
}

// failed records a failure; down reports whether the target is down from now on. wait is the pause that the target
// itself asked for.
func (q *targetQueue) failed(now time.Time, subject uuid.UUID, wait time.Duration, t tuning) (down bool) {
	q.inFlight--
	was := q.down()
	if !was {
		q.failing[subject] = struct{}{}
	}
	if q.down() {
		if !was || now.After(q.resumeAt) { // of several concurrent failures only one makes the pause longer
			q.pause = min(max(t.pause, 2*q.pause), t.maxPause)
			q.resumeAt = now.Add(spread(q.pause, t))
		}
		q.window = 1
	}
	if until := now.Add(wait); wait > 0 && until.After(q.resumeAt) {
		q.resumeAt = until
	}
	return q.down() && !was
}

// abandoned records that an attempt ended without a result.
func (q *targetQueue) abandoned() { q.inFlight-- }

// spread subtracts up to half of a pause as jitter, so that deliveries that failed together are not retried together.
func spread(d time.Duration, t tuning) time.Duration {
	return d - time.Duration(t.jitter()*float64(d/2))
}

// backoff returns the pause after the given attempt, counted from 1.
func backoff(attempt int, limit time.Duration, t tuning) time.Duration {
	d := t.backoff
	for range attempt - 1 {
		if d *= 2; d >= limit {
			break
		}
	}
	return spread(min(d, limit), t)
}
