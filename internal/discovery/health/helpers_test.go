package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// world is a network in which tests set the response of each URL.
type world struct {
	mu      sync.Mutex
	answers map[string]func(ctx context.Context) error // by URL; the default is healthy at once
	began   map[string][]time.Time                     // by id
	running int
	most    int // maximum concurrency
	total   int
}

func (w *world) probe(ctx context.Context, t Target) error {
	w.mu.Lock()
	if w.began == nil {
		w.began = make(map[string][]time.Time)
	}
	w.began[t.ID] = append(w.began[t.ID], time.Now())
	w.running++
	w.total++
	w.most = max(w.most, w.running)
	answer := w.answers[t.URL]
	if answer == nil {
		answer = w.answers["*"]
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
	}()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

// set sets the response of a URL; "*" is the default for all others.
func (w *world) set(url string, answer func(ctx context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answers == nil {
		w.answers = make(map[string]func(context.Context) error)
	}
	w.answers[url] = answer
}

func (w *world) checks(id string) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.began[id])
}

func (w *world) counts() (total, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total, w.most
}

func fails(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("no answer")
}

func after(d time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return errors.New("no answer")
		case <-time.After(d):
			return err
		}
	}
}

// start runs a checker in the world until the test ends.
func start(t *testing.T, w *world, cfg Config) *Checker {
	t.Helper()
	cfg.Probe = w.probe
	cfg.newConcurrencyLimiter = func() waits { return waits{} }
	c, err := New(cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() {
		stop()
		done.Wait()
	})
	return c
}

func relayers(n int) []Target {
	ts := make([]Target, n)
	for i := range ts {
		ts[i] = Target{ID: fmt.Sprintf("relayer-%d", i), Kind: "relayer", URL: fmt.Sprintf("http://relayer-%d:3000", i), Version: 1}
	}
	return ts
}

// take returns all pending results, by id.
func take(c *Checker) map[string]Result {
	byID := make(map[string]Result)
	for _, r := range c.Take(nil) {
		byID[r.ID] = r
	}
	return byID
}

func value(t *testing.T, m prometheus.Metric) float64 {
	var out dto.Metric
	require.NoError(t, m.Write(&out))
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// pause advances fake time, and waits until everything due then has happened.
func pause(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
