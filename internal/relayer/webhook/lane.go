package webhook

import "time"

const (
	// downAfter is for how many subjects in a row a target fails before it counts as down. One alone may be to blame itself.
	downAfter = 3
	// ahead is how many are claimed for each that may run: enough to go on with during a turn, few enough to be begun
	// before their claims end.
	ahead = 4
)

// lane is what is sent to one target. It starts nothing itself and has no clock; the Deliverer holds its lock.
type lane struct {
	name   string
	sender *sender
	limit  int // of window

	window   int // how many may run now
	queue    []*claim
	inFlight int

	failing  map[string]struct{} // subjects that failed since the last success
	pause    time.Duration       // the latest, of a target that is down
	resumeAt time.Time           // nothing is sent before
	hurry    bool                // it is back: see want
}

func newLane(s *sender) *lane {
	return &lane{name: s.to.name, sender: s, limit: s.to.limit, window: s.to.limit, failing: map[string]struct{}{}}
}

// down reports whether the target fails whatever it is sent.
func (l *lane) down() bool { return len(l.failing) >= downAfter }

// want is how many to claim: none while what is there keeps the window busy.
func (l *lane) want(now time.Time) int {
	if now.Before(l.resumeAt) {
		return 0
	}
	if l.down() {
		return max(0, l.window-l.inFlight-len(l.queue))
	}
	if len(l.queue) >= l.window {
		return 0
	}
	return max(0, ahead*l.window-l.inFlight-len(l.queue))
}

// next takes what is to be sent now; nil when nothing is.
func (l *lane) next(now time.Time) *claim {
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
func (l *lane) drop() []*claim {
	queue := l.queue
	l.queue = nil
	return queue
}

// succeeded takes in a success; back says that the target had been down.
func (l *lane) succeeded() (back bool) {
	l.inFlight--
	back = l.down()
	clear(l.failing)
	l.pause = 0
	if back {
		l.resumeAt = time.Time{}
	}
	l.window = min(l.limit, l.window+1)
	l.hurry = l.hurry || back
	return back
}

// failed takes in a failure; down says that the target is so from now on. wait is how long the target itself wants to
// be left alone.
func (l *lane) failed(now time.Time, subject string, wait time.Duration, t tuning) (down bool) {
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
func (l *lane) abandoned() { l.inFlight-- }

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
