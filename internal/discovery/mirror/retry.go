package mirror

import (
	"context"
	"errors"
	"time"
)

// failure is a kind of trouble, and how patient the Writer is with it. The pauses are random by a quarter.
type failure struct {
	reason         string // label of the errors metric
	first, longest time.Duration
	// down says that Redis counts as away.
	down bool
}

var (
	unreachable = failure{reason: reasonUnreachable, first: 50 * time.Millisecond, longest: 4 * time.Second, down: true}
	// Redis is there but loading, a replica, full, or wants a password. Asking each second costs it nothing, and a
	// promotion is noticed soon.
	refused = failure{reason: reasonRefused, first: 50 * time.Millisecond, longest: time.Second, down: true}
	// Leadership could not be confirmed, the write came too late, or Redis was emptied meanwhile. The fence has
	// counted that for itself.
	fenced = failure{first: 10 * time.Millisecond, longest: 250 * time.Millisecond}
)

// fenceError marks errors of the fence: trying again is all there is to do.
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

// What the fence holds back for long counts as Redis being away: nothing reaches readers, whoever is at fault.
const (
	// missedBeats is how many heartbeats may be held back before it does.
	missedBeats = 3
	// fencedAttempts, about a second's worth, are made before an operator hears of them.
	fencedAttempts = 8
	// warnEvery is how often the operator hears of it again.
	warnEvery = time.Minute
)

// probeEvery is how often an unreachable Redis is asked whether it is back, so that its return is noticed soon
// however long the pauses between attempts have become.
const probeEvery = 500 * time.Millisecond

// retryState reports a failure and waits until it is time to try again.
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

// reachable reports whether Redis says anything at all.
func (w *Writer) reachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	_, err := w.store.Read(ctx, nil)
	_, refused := errors.AsType[*ReplyError](err)
	return err == nil || refused
}

// failed notes an error for Status.
func (w *Writer) failed(err error, down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Err = err
	if down {
		w.report.Connected = false
		w.m.connected.Set(0)
	}
}

// succeeded notes a write for Status, and ends an outage.
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
