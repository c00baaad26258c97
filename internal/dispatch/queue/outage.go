package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// Outage tracks whether a part of the queue reaches its backend. It writes the log lines and the metric, and returns the
// pauses between attempts. It is safe for concurrent use.
type Outage struct {
	log    *slog.Logger
	reason func(error) string
	gauge  prometheus.Gauge

	mu       sync.Mutex
	err      error // nil while the backend answers
	since    time.Time
	attempts int
	resumeAt time.Time // the end of the latest pause
}

// NewOutage returns the Outage of a part. reason returns an error's text without secrets.
func (c Config) NewOutage(part string, reason func(error) string) *Outage {
	o := &Outage{log: c.Logger.With("component", part), reason: reason, gauge: c.Metrics.available.WithLabelValues(part)}
	o.gauge.Set(1)
	return o
}

// Failed records a failed attempt and returns the pause before the next one. A cause is logged once.
func (o *Outage) Failed(err error) time.Duration {
	text := o.reason(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.since = time.Now()
	}
	if o.err == nil || o.err.Error() != text {
		o.log.Warn("queue unavailable", "err", text)
	}
	o.err = errors.New(text)
	o.gauge.Set(0)
	if left := time.Until(o.resumeAt); left > 0 { // of several concurrent failures only one makes the pause longer
		return left
	}
	pause := min(minPause<<min(o.attempts, 10), maxPause)
	pause -= time.Duration(rand.Float64() * float64(pause/2))
	o.attempts++
	o.resumeAt = time.Now().Add(pause)
	return pause
}

// Succeeded records that the backend answered.
func (o *Outage) Succeeded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return
	}
	o.log.Info("queue available again", "outage", time.Since(o.since).Round(time.Millisecond))
	o.err, o.attempts = nil, 0
	o.gauge.Set(1)
}

// Err returns the cause while the backend does not answer, nil otherwise.
func (o *Outage) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("queue unavailable since %s: %w", o.since.UTC().Format(time.RFC3339), o.err)
}
