package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// load is a closed loop: a number of callers, each calling again as soon as it is answered.
type load struct {
	Callers      int
	Warm, Window time.Duration
	// Mark, if not nil, is called when the window begins and when it ends. It is not part of the JSON that a raft node
	// receives.
	Mark func() error `json:"-"`
}

func (s *suite) load(callers int) load { return load{Callers: callers, Warm: s.warm, Window: s.window} }

// result is the result of a load. Operations are counted if they end within the window.
type result struct {
	PerSecond  float64
	Operations int64
	P50, P99   time.Duration
}

// run calls do, which returns how many operations it did, from all callers. The first error ends it, because no call
// fails in a healthy cluster, and the time of a rejected call is not a time of work.
func (l load) run(ctx context.Context, do func(ctx context.Context, caller int) (int, error)) (result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg        sync.WaitGroup
		ops       atomic.Int64
		measuring atomic.Bool
		stopping  atomic.Bool
		latencies = make([][]float64, l.Callers)
	)
	for caller := range l.Callers {
		wg.Go(func() {
			for !stopping.Load() {
				counts, began := measuring.Load(), time.Now()
				n, err := do(ctx, caller)
				if err != nil {
					cancel(err)
					return
				}
				ops.Add(int64(n))
				if counts {
					latencies[caller] = append(latencies[caller], float64(time.Since(began)))
				}
			}
		})
	}
	pause(ctx, l.Warm)
	l.mark(cancel)
	measuring.Store(true)
	began, before := time.Now(), ops.Load()
	pause(ctx, l.Window)
	after, took := ops.Load(), time.Since(began)
	l.mark(cancel)
	stopping.Store(true)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return result{}, err
	}
	if after == before {
		return result{}, fmt.Errorf("nothing was done in %s", l.Window)
	}
	var all []float64
	for _, some := range latencies {
		all = append(all, some...)
	}
	return result{
		PerSecond:  float64(after-before) / took.Seconds(),
		Operations: after - before,
		P50:        time.Duration(quantile(all, 0.5)),
		P99:        time.Duration(quantile(all, 0.99)),
	}, nil
}

func (l load) mark(fail context.CancelCauseFunc) {
	if l.Mark == nil {
		return
	}
	if err := l.Mark(); err != nil {
		fail(err)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// until calls ready every few milliseconds until it returns nil.
func until(ctx context.Context, limit time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		attempt, done := context.WithTimeout(ctx, time.Second)
		last = ready(attempt)
		done()
		if last == nil {
			return nil
		}
		pause(ctx, 5*time.Millisecond)
	}
	return fmt.Errorf("not ready in %s: %w", limit, last)
}
