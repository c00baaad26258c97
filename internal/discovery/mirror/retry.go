package mirror

import (
	"context"
	"errors"
	"time"
)

// failure is a kind of failure with its backoff. The pauses vary by ±25 %.
type failure struct {
	reason         string // label of the errors metric
	first, longest time.Duration
	// down reports whether Redis counts as away.
	down bool
}

var (
	unreachable = failure{reason: reasonUnreachable, first: 50 * time.Millisecond, longest: 4 * time.Second, down: true}
	// Redis responds, but is loading, a replica, full, or requires a password. A retry each second costs it nothing,
	// and detects a promotion soon.
	refused = failure{reason: reasonRefused, first: 50 * time.Millisecond, longest: time.Second, down: true}
	// The leadership could not be confirmed, the write was too late, or Redis was emptied in the meantime. The
	// refusals metric has counted it.
	fenced = failure{first: 10 * time.Millisecond, longest: 250 * time.Millisecond}
)

// fenceError marks errors of the fence, which only need a retry.
type fenceError struct{ error }

func (e *fenceError) Unwrap() error { return e.error }

func classify(err error) failure {
	if _, ok := errors.AsType[*fenceError](err); ok {
		return fenced
	}
	if _, ok := errors.AsType[*ReplyError](err); ok {
		return refused
	}
	return unreachable
}

// If the fence holds writes back for long, Redis counts as away, because readers receive nothing, whatever the cause.
const (
	// missedBeats is how many heartbeats may be held back before that.
	missedBeats = 3
	// fencedAttempts is how many attempts, about a second's worth, fail before the log has a warning.
	fencedAttempts = 8
	// warnEvery is how often the warning is repeated.
	warnEvery = time.Minute
)

// probeEvery is how often an unreachable Redis is probed, so that its return is detected soon, however long the pauses
// between attempts are.
const probeEvery = 500 * time.Millisecond

// retryState reports a failure and waits until the next attempt is due.
func (w *Writer) retryState(ctx context.Context, err error) {
	f := classify(err)
	if f != w.failing {
		w.failing, w.attempt, w.since, w.warned = f, 0, time.Now(), time.Time{}
		w.retry.InitialInterval, w.retry.MaxInterval = f.first, f.longest
		w.retry.Reset()
	}
	w.attempt++
	if f.reason != "" {
		w.m.errors.WithLabelValues(f.reason).Inc()
	}
	w.failed(err, f.down || time.Since(w.wrote) > missedBeats*w.cfg.Heartbeat)
	pause := w.retry.NextBackOff()
	facts := []any{"err", err, "attempt", w.attempt, "retry_in", pause.Round(time.Millisecond)}
	switch {
	case f == unreachable:
		w.log.Error("Redis connection failed", facts...) //nolint:sloglint // operators' alerts look for these words
	case f == refused:
		w.log.Error("redis refused the mirror", facts...)
	case w.attempt >= fencedAttempts && (w.warned.IsZero() || time.Since(w.warned) >= warnEvery):
		w.warned = time.Now()
		w.log.Warn("mirror writes are held back by their fence", append(facts, "for", time.Since(w.since).Round(time.Millisecond))...)
	default:
		w.log.Debug("mirror write held back by its fence", facts...)
	}

	until := time.NewTimer(pause)
	defer until.Stop()
	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-until.C:
			return
		case <-probe.C:
			if f == unreachable && w.reachable(ctx) {
				return
			}
		}
	}
}

// reachable reports whether Redis responds, even with an error.
func (w *Writer) reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	_, err := w.store.Read(ctx, nil)
	_, refused := errors.AsType[*ReplyError](err)
	return err == nil || refused
}

// failed records an error for Status.
func (w *Writer) failed(err error, down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Err = err
	if down {
		w.report.Connected = false
		w.m.connected.Set(0)
	}
}

// succeeded records a write for Status, and ends an outage.
func (w *Writer) succeeded() {
	facts := []any{"after", time.Since(w.since).Round(time.Millisecond), "attempts", w.attempt}
	switch {
	case w.failing.down:
		w.log.Info("redis connection restored", facts...)
	case !w.warned.IsZero():
		w.log.Info("mirror writes pass their fence again", facts...)
	}
	w.failing, w.attempt, w.warned = failure{}, 0, time.Time{}
	w.m.connected.Set(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Connected, w.report.Claimed, w.report.Err = true, true, nil
	w.report.Seq, w.report.LastWrite = w.token.Seq, w.wrote
}
