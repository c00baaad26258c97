package upstream

import (
	"net/http"
	"sync"
	"time"
)

const (
	// dateAge is the largest age of a Date: it has full seconds, and servers renew it each second or so.
	dateAge = 2 * time.Second
	// clockMemory is how long an offset counts that a later answer contradicts. Times that the relayer has stored may be from before.
	clockMemory = time.Hour
)

// Clock is the offset of a relayer's clock from this process's. A positive one is ahead. The true offset is between Min and Max.
type Clock struct{ Min, Max time.Duration }

// Offset returns the middle of what is possible, or 0 if 0 is possible.
func (c Clock) Offset() time.Duration {
	if c.Min <= 0 && c.Max >= 0 {
		return 0
	}
	return (c.Min + c.Max) / 2
}

// clock measures a relayer's clock by the Date of its answers. Each answer bounds the offset. Its zero value has no measurement. It is
// safe for concurrent use.
type clock struct {
	mu     sync.Mutex
	known  bool
	now    Clock
	before time.Duration // Min before the clock was set
	until  time.Time     // end of clockMemory for before
}

// observe measures by an answer. sent is before the request, received after the header.
func (c *clock) observe(h http.Header, sent, received time.Time) {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return
	}
	// Round(0): the wall clock is compared, not the monotonic one.
	one := Clock{date.Sub(received.Round(0)), date.Add(dateAge).Sub(sent.Round(0))}
	if one.Min > one.Max { // this process's clock was set back meanwhile
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	both := Clock{max(c.now.Min, one.Min), min(c.now.Max, one.Max)}
	switch {
	case !c.known:
		c.known, c.now = true, one
	case both.Min <= both.Max:
		c.now = both
	default: // a clock was set, or drifts
		c.before, c.until = c.now.Min, received.Add(clockMemory)
		c.now = one
	}
}

// earliest returns the earliest time that the relayer's clock may have shown at the time at; at itself without a measurement.
func (c *clock) earliest(at time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.IsZero() || !c.known {
		return at
	}
	offset := c.now.Min
	if time.Now().Before(c.until) {
		offset = min(offset, c.before)
	}
	return at.Add(offset)
}

// Clock returns the relayer's clock; ok is false before the first answer with a Date.
func (c *Client) Clock() (now Clock, ok bool) {
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	return c.clock.now, c.clock.known
}
