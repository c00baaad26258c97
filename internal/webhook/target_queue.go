package webhook

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	// downAfter is for how many subjects in a row a target fails before it counts as down. One alone may be to blame itself.
	downAfter = 3
	// prefetchFactor is how many are claimed for each that may run: enough to go on with during a turn, few enough to be begun
	// before their claims end.
	prefetchFactor = 4
	// sweepEvery is how often a claim begins at the oldest delivery that is due, and sweepMargin is how far before the last one claimed
	// the other claims begin: a delivery is due since the begin of the transaction that writes it, which may commit later than others.
	sweepEvery  = time.Second
	sweepMargin = 5 * time.Second
)

// targetQueue is what is sent to one target. It starts nothing itself and has no clock; the Deliverer holds its lock.
type targetQueue struct {
	name   string
	sender *sender
	limit  int // of window

	window   int // how many may run now
	queue    []*claim
	inFlight int

	failing  map[uuid.UUID]struct{} // subjects that failed since the last success
	pause    time.Duration          // the latest, of a target that is down
	resumeAt time.Time              // nothing is sent before
	retryNow bool                   // it is back: see want
	newest   time.Time              // the latest next_at among the last claims
	sweepAt  time.Time              // when a claim begins at the oldest delivery again
}

func newLane(s *sender) *targetQueue {
	return &targetQueue{name: s.to.name, sender: s, limit: s.to.limit, window: s.to.limit, failing: map[uuid.UUID]struct{}{}}
}

// down reports whether the target fails whatever it is sent.
func (l *targetQueue) down() bool { return len(l.failing) >= downAfter }

// demand is how many to claim: none while what is there keeps the window busy.
func (l *targetQueue) demand(now time.Time) int {
	if now.Before(l.resumeAt) {
		return 0
	}
	if l.down() {
		return max(0, l.window-l.inFlight-len(l.queue))
	}
	if len(l.queue) >= l.window {
		return 0
	}
	return max(0, prefetchFactor*l.window-l.inFlight-len(l.queue))
}

// since returns the time at which a claim begins, by the deliveries' next_at. An index keeps entries of delivered ones until it is
// vacuumed, and behind a long history, or beside a long transaction, that may be a while. So not each claim passes by all of them.
func (l *targetQueue) since(now time.Time) time.Time {
	if l.retryNow || l.newest.IsZero() || !now.Before(l.sweepAt) {
		l.sweepAt = now.Add(sweepEvery)
		return time.Time{}
	}
	return l.newest.Add(-sweepMargin)
}

// add queues the claims of a turn. They were the oldest, so the next ones begin at the latest of them, also where that is earlier
// than before: there may be many old ones.
func (l *targetQueue) add(claims []*claim) {
	if len(claims) == 0 {
		return
	}
	l.queue = append(l.queue, claims...)
	l.newest = slices.MaxFunc(claims, func(a, b *claim) int { return a.nextAt.Compare(b.nextAt) }).nextAt
}

// next takes what is to be sent now; nil when nothing is.
func (l *targetQueue) next(now time.Time) *claim {
	if len(l.queue) == 0 || l.inFlight >= l.window || now.Before(l.resumeAt) {
		return nil
	}
	c := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.inFlight++
	return c
}

// drop empties the queue.
func (l *targetQueue) drop() []*claim {
	queue := l.queue
	l.queue = nil
	return queue
}

// succeeded takes in a success; back says that the target had been down.
func (l *targetQueue) succeeded() (back bool) {
	l.inFlight--
	back = l.down()
	clear(l.failing)
	l.pause = 0
	if back {
		l.resumeAt = time.Time{}
	}
	l.window = min(l.limit, l.window+1)
	l.retryNow = l.retryNow || back
	return back
}

// failed takes in a failure; down says that the target is so from now on. wait is how long the target itself wants to
// be left alone.
func (l *targetQueue) failed(now time.Time, subject uuid.UUID, wait time.Duration, t tuning) (down bool) {
	l.inFlight--
	was := l.down()
	if !was {
		l.failing[subject] = struct{}{}
	}
	if l.down() {
		if !was || now.After(l.resumeAt) { // of several that failed together only one makes the pause longer
			l.pause = min(max(t.pause, 2*l.pause), t.maxPause)
			l.resumeAt = now.Add(spread(l.pause, t))
		}
		l.window = 1
	}
	if until := now.Add(wait); wait > 0 && until.After(l.resumeAt) {
		l.resumeAt = until
	}
	return l.down() && !was
}

// abandoned takes in an attempt that was broken off.
func (l *targetQueue) abandoned() { l.inFlight-- }

// spread keeps those that failed together from coming back together: it takes up to half of a pause away.
func spread(d time.Duration, t tuning) time.Duration {
	return d - time.Duration(t.jitter()*float64(d/2))
}

// backoff is the pause after the given attempt, counted from 1.
func backoff(attempt int, limit time.Duration, t tuning) time.Duration {
	d := t.backoff
	for range attempt - 1 {
		if d *= 2; d >= limit {
			break
		}
	}
	return spread(min(d, limit), t)
}
