package health

import (
	"runtime/metrics"
	"time"
)

// concurrencyLimiter measures how long runnable goroutines of this process wait for a processor. Timers are hardly
// affected by that wait, so a check whose response is unread because of a long run queue would time out on time.
type concurrencyLimiter struct {
	sample [1]metrics.Sample
	before []uint64
}

// waits are the shares of goroutines that waited longer than crowdedWait and longer than lateLimit.
type waits struct{ crowded, late float64 }

// crowdedWait is the processor wait above which more concurrency slows all checks down without completing more.
const crowdedWait = 10 * time.Millisecond

// measure returns the waits since its last call. It takes a few hundred nanoseconds.
func (c *concurrencyLimiter) measure() waits {
	c.sample[0].Name = "/sched/latencies:seconds"
	metrics.Read(c.sample[:])
	if c.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return waits{} // a runtime without this metric
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

// behindLimit is how late a check must be before the log reports it.
const behindLimit = 500 * time.Millisecond

// lag is a period in which checks were late because there were more than this machine can do.
type lag struct {
	on    bool
	since time.Time
	// worst is the maximum lateness in the period.
	worst time.Duration
	// late is when a check was last late.
	late time.Time
}

// notice records how late the longest-due check is, and reports whether a lag has begun or ended. A lag ends when no
// check was late for an interval, so that it is reported once and not at each turn. No lag begins while a frozen
// process catches up.
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
