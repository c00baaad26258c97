package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// outage tracks whether a part reaches its backend: the database or a broker. It writes the log lines, and returns the pauses
// between attempts. It is safe for concurrent use.
type outage struct {
	log      *slog.Logger
	part     string
	observer Observer
	reason   func(error) string

	mu       sync.Mutex
	err      error // nil while the backend answers
	since    time.Time
	failures int
	resumeAt time.Time // the end of the latest pause
}

func newOutage(part string, log *slog.Logger, observer Observer, reason func(error) string) *outage {
	observer.Available(part, true)
	return &outage{log: log.With("part", part), part: part, observer: observer, reason: reason}
}

// failed records a failed attempt and returns the pause before the next one. A cause is logged once.
func (o *outage) failed(err error) time.Duration {
	text := o.reason(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.since = time.Now()
	}
	if o.err == nil || o.err.Error() != text {
		o.log.Warn("backend unavailable", "err", text)
	}
	o.err = errors.New(text)
	o.observer.Available(o.part, false)
	if left := time.Until(o.resumeAt); left > 0 { // of several concurrent failures only one makes the pause longer
		return left
	}
	o.failures++
	pause := Backoff(o.failures, minPause, maxPause)
	o.resumeAt = time.Now().Add(pause)
	return pause
}

// succeeded records that the backend answered.
func (o *outage) succeeded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return
	}
	o.log.Info("backend available again", "outage", time.Since(o.since).Round(time.Millisecond))
	o.err, o.failures = nil, 0
	o.observer.Available(o.part, true)
}

// health returns the cause while the backend does not answer, nil otherwise.
func (o *outage) health() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("%s: backend unavailable since %s: %w", o.part, o.since.UTC().Format(time.RFC3339), o.err)
}
