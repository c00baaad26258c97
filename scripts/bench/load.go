package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// load is a number of callers. Without a rate it is a closed loop: each calls again as soon as it is answered.
type load struct {
	Callers      int
	Warm, Window time.Duration
	// Count, if not 0, is the number of calls. It replaces Warm and Window.
	Count int
	// Rate, if not 0, makes an open loop: each call is due at its own time, and its latency counts from that time,
	// regardless of when a caller was free.
	Rate float64
}

func (s *suite) load(callers int) load { return load{Callers: callers, Warm: s.warm, Window: s.window} }

// result is the result of a load. Calls are counted if they end within the window.
type result struct {
	Began, Ended time.Time // of the window; with a count, of the first call and of the last answer
	Operations   int64
	PerSecond    float64
	P50, P99     time.Duration
}

// call makes the n-th call of a load, and returns how many operations it did.
type call func(ctx context.Context, caller, n int) (int, error)

// run makes calls, numbered from 0 on. The first error ends the load, because no call fails in a healthy cluster, and
// the time of a rejected call is not a time of work.
func (l load) run(ctx context.Context, do call) (result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg       sync.WaitGroup
		next     atomic.Int64
		mu       sync.Mutex
		lateness = newLatencies()
		began    = time.Now()
		res      = result{Began: began.Add(l.Warm), Ended: began.Add(l.Warm + l.Window)}
	)
	if l.Count > 0 {
		res.Began, res.Ended = began, began
	}
	call := func(caller int) (more bool) {
		n, due := int(next.Add(1))-1, time.Now()
		if l.Rate > 0 {
			due = began.Add(time.Duration(float64(n) / l.Rate * float64(time.Second)))
			pause(ctx, time.Until(due))
		}
		if ctx.Err() != nil || (l.Count > 0 && n >= l.Count) || (l.Count == 0 && !due.Before(res.Ended)) {
			return false
		}
		operations, err := do(ctx, caller, n)
		if err != nil {
			cancel(fmt.Errorf("call %d: %w", n, err))
			return false
		}
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if l.Count > 0 && now.After(res.Ended) {
			res.Ended = now
		}
		if !now.Before(res.Began) && !now.After(res.Ended) {
			res.Operations += int64(operations)
			lateness.add(now.Sub(due))
		}
		return true
	}
	for caller := range l.Callers {
		wg.Go(func() {
			for call(caller) {
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return result{}, err
	}
	if res.Operations == 0 {
		return result{}, fmt.Errorf("nothing was done in %s", time.Since(began))
	}
	res.PerSecond = float64(res.Operations) / res.Ended.Sub(res.Began).Seconds()
	res.P50, res.P99 = lateness.quantile(0.5), lateness.quantile(0.99)
	return res, nil
}

// latencies is a histogram of durations, with a precision of three digits.
type latencies struct{ *hdrhistogram.Histogram }

func newLatencies() latencies { return latencies{hdrhistogram.New(1, time.Hour.Microseconds(), 3)} }

func (l latencies) add(d time.Duration) {
	_ = l.RecordValue(min(d, time.Hour).Microseconds()) // fails only above the highest value
}

func (l latencies) quantile(q float64) time.Duration {
	return time.Duration(l.ValueAtQuantile(100*q)) * time.Microsecond
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
