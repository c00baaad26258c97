package health

import (
	"runtime/metrics"
	"time"
)

// concurrencyLimiter watches how long the goroutines of this process wait for a processor once they could run. Timers hardly
// suffer from that, so a check whose answer lies unread behind a long run queue would time out punctually.
type concurrencyLimiter struct {
	sample [1]metrics.Sample
	before []uint64
}

// waits are the shares of goroutines that had to wait longer than crowdedWait and longer than lateLimit.
type waits struct{ crowded, late float64 }

// crowdedWait is the wait for a processor from which on more checks make all of them slower, not more.
const crowdedWait = 10 * time.Millisecond

// look gives what has happened since it was called last. It takes a few hundred nanoseconds.
func (c *concurrencyLimiter) look() waits {
	c.sample[0].Name = "/sched/latencies:seconds"
	metrics.Read(c.sample[:])
	if c.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return waits{} // a runtime without it
	}
	h := c.sample[0].Value.Float64Histogram()
	var all, crowded, late uint64
	if len(c.before) == len(h.Counts) {
		for i, n := range h.Counts {
			n -= c.before[i]
			all += n
			if h.Buckets[i] >= crowdedWait.Seconds() {
				crowded += n
			}
			if h.Buckets[i] >= lateLimit.Seconds() {
				late += n
			}
		}
	}
	c.before = append(c.before[:0], h.Counts...)
	if all == 0 {
		return waits{}
	}
	return waits{float64(crowded) / float64(all), float64(late) / float64(all)}
}

// behindLimit is how late a check must be before that is worth a line in the log.
const behindLimit = 500 * time.Millisecond

// lag is a time in which checks were late because there were more of them than this machine can do.
type lag struct {
	on    bool
	since time.Time
	// worst lateness in it.
	worst time.Duration
	// late is when a check was last late.
	late time.Time
}

// notice takes in how late the latest check is, and reports whether a lag has begun or ended. It lasts until none has
// been late for an interval, so that it says so once and not at each turn. None begins while what a frozen process
// missed is caught up with.
func (l *lag) notice(now time.Time, behind, interval time.Duration, catchingUp bool) (began, ended bool) {
	if behind > lateLimit {
		l.late = now
	}
	switch {
	case !l.on && behind > behindLimit && !catchingUp:
		*l = lag{on: true, since: now, worst: behind, late: now}
		return true, false
	case l.on && now.Sub(l.late) >= interval:
		l.on = false
		return false, true
	}
	l.worst = max(l.worst, behind)
	return false, false
}
