package foreman

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Checker probes a service from this host. It limits its own time, and its error is the reason of the failure.
type Checker interface {
	Check(ctx context.Context, service *rollcallv1.Service) error
}

// maxChecks is how many local checks run at once.
const maxChecks = 64

// startCheckLocked starts checking a service until it is offered, if Run runs.
func (f *Foreman) startCheckLocked(id string, e *entry) {
	if f.life == nil || f.life.Err() != nil || e.offered || e.stop != nil {
		return
	}
	var ctx context.Context
	ctx, e.stop = context.WithCancel(f.life)
	f.checks.Go(func() { f.checkUntilOffered(ctx, id, e) })
}

func (f *Foreman) checkUntilOffered(ctx context.Context, id string, e *entry) {
	pause := backoff.ExponentialBackOff{
		InitialInterval: f.cfg.CheckPause / 10, RandomizationFactor: 0.3, Multiplier: 1.5, MaxInterval: f.cfg.CheckPause,
	}
	for {
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
		service := e.service
		f.mu.Unlock()
		err := f.cfg.Checker.Check(ctx, service)
		<-f.slots
		if ctx.Err() != nil || f.takeVerdict(id, e, service, err) || !sleep(ctx, pause.NextBackOff()) {
			return
		}
	}
}

// takeVerdict records the result of a check. It reports whether the service is offered now.
func (f *Foreman) takeVerdict(id string, e *entry, checked *rollcallv1.Service, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.service != checked {
		return false // the definition has changed since the check began
	}
	e.checks++
	e.checked, e.err = time.Now(), err
	signal(f.firstChecks)
	if err != nil {
		f.cfg.Metrics.failed.Inc()
		level := slog.LevelDebug
		if e.checks == 1 {
			level = slog.LevelWarn
		}
		f.log.Log(context.Background(), level, "service not offered yet: local check failed", "service", id, "checks", e.checks, "err", err)
		return false
	}
	f.cfg.Metrics.passed.Inc()
	e.offered = true
	e.stop()
	f.log.Info("service offered", "service", id, "checks", e.checks)
	f.countLocked()
	signal(f.changed)
	return true
}

// awaitVerdicts waits until every service has been checked once, for at most FirstVerdicts.
func (f *Foreman) awaitVerdicts(ctx context.Context) {
	patience := time.NewTimer(f.cfg.FirstVerdicts)
	defer patience.Stop()
	for {
		f.mu.Lock()
		open := 0
		for _, e := range f.entries {
			if !e.offered && e.checks == 0 {
				open++
			}
		}
		f.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-f.firstChecks:
		case <-patience.C:
			f.log.Warn("startup wait elapsed; offering services without a verdict", "services", open)
			return
		case <-ctx.Done():
			return
		}
	}
}
