package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// world is a network in which tests say how each URL answers.
type world struct {
	mu      sync.Mutex
	answers map[string]func(ctx context.Context) error // by URL; the default is healthy at once
	began   map[string][]time.Time                     // by id
	running int
	most    int // that ran at the same time
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

// set says how a URL answers from now on; "*" stands for all others.
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
	cfg.crowd = func() waits { return waits{} }
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

// take gives all results that wait, by id.
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

// pause lets fake time pass, and everything that is due then happen.
func pause(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestFirstRoundIsAtOnceButBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", hangs)
		c := start(t, w, Config{})
		c.Set(relayers(1000)...)
		synctest.Wait()
		total, most := w.counts()
		require.Equal(t, 256, total)
		require.Equal(t, 256, most)
		require.Empty(t, take(c))
		// Four rounds of one timeout each, and nothing that waits for its turn loses its own half second.
		pause(2*time.Second + time.Millisecond)
		results := take(c)
		require.Equal(t, 1000, len(results))
		for _, r := range results {
			require.Equal(t, Down, r.Verdict)
			require.Equal(t, 500*time.Millisecond, r.Latency)
			require.Equal(t, "no answer", r.Reason)
		}
	})
}

func TestChecksAreOneIntervalApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{Interval: 5 * time.Second})
		w.set("http://relayer-1:3000", hangs)
		w.set("http://relayer-2:3000", after(300*time.Millisecond, nil))
		c.Set(relayers(5)...)
		pause(time.Minute)
		for i := range 5 {
			at := w.checks(fmt.Sprintf("relayer-%d", i))
			require.InDelta(t, 13, len(at), 1)
			require.LessOrEqual(t, at[1].Sub(at[0]), 5*time.Second)
			for j := 2; j < len(at); j++ {
				require.InDelta(t, 5*time.Second, at[j].Sub(at[j-1]), float64(2*time.Millisecond))
			}
		}
	})
}

func TestChecksSpreadOverTheInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(10_000)...)
		pause(10 * time.Second)
		perSlot := make(map[time.Duration]int)
		begin := time.Now()
		pause(10 * time.Second)
		n := 0
		for _, target := range relayers(10_000) {
			for _, at := range w.checks(target.ID) {
				if at.After(begin) {
					perSlot[at.Sub(begin)/(100*time.Millisecond)]++
					n++
				}
			}
		}
		require.InDelta(t, 10_000, n, 20)
		for slot, count := range perSlot {
			require.InDelta(t, 100, count, 60, "slot %d", slot)
		}
	})
}

func TestPhaseOutlivesTheChecker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at [2]time.Time
		for i := range at {
			w := new(world)
			c := start(t, w, Config{})
			c.Set(relayers(1)...)
			pause(21 * time.Second)
			at[i] = w.checks("relayer-0")[2]
		}
		require.Zero(t, at[1].Sub(at[0]).Round(2*time.Millisecond)%(10*time.Second))
	})
}

func TestOneFailureRemovesOneSuccessRestores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(1)...)
		pause(0)
		r := take(c)["relayer-0"]
		require.Equal(t, Up, r.Verdict)
		require.Zero(t, r.Failures)
		require.EqualValues(t, 1, r.Version)
		require.Equal(t, "relayer", r.Kind)

		w.set("*", fails(answer("status 503")))
		pause(20 * time.Second)
		r = take(c)["relayer-0"]
		require.Equal(t, Down, r.Verdict)
		require.Equal(t, 2, r.Failures)
		require.Equal(t, "status 503", r.Reason)

		w.set("*", nil)
		pause(10 * time.Second)
		r = take(c)["relayer-0"]
		require.Equal(t, Up, r.Verdict)
		require.Zero(t, r.Failures)
		require.Empty(t, r.Reason)
	})
}

func TestRiseAndFall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{Rise: 2, Fall: 3})
		c.Set(relayers(1)...)
		pause(0)
		require.Equal(t, Up, take(c)["relayer-0"].Verdict, "what answers for the first time is up")
		pause(11 * time.Second) // past its first phase
		take(c)

		w.set("*", hangs)
		n := len(w.checks("relayer-0"))
		pause(10 * time.Second)
		at := w.checks("relayer-0")[n:]
		// Removal takes at most interval + fall × timeout + gaps.
		require.GreaterOrEqual(t, len(at), 3)
		require.Equal(t, 750*time.Millisecond, at[1].Sub(at[0]))
		require.Equal(t, 750*time.Millisecond, at[2].Sub(at[1]))
		pause(2 * time.Second)
		require.Equal(t, Down, take(c)["relayer-0"].Verdict)

		w.set("*", nil)
		n = len(w.checks("relayer-0"))
		pause(10*time.Second + reprobeGap)
		at = w.checks("relayer-0")[n:]
		require.Equal(t, reprobeGap, at[1].Sub(at[0]))
		require.Equal(t, Up, take(c)["relayer-0"].Verdict)
	})
}

func TestBlipsBelowFallChangeNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		w := new(world)
		w.set("*", func(context.Context) error {
			if n.Add(1)%3 == 0 {
				return nil
			}
			return answer("status 500")
		})
		c := start(t, w, Config{Fall: 3})
		c.Set(relayers(1)...)
		pause(time.Second)
		require.Equal(t, Up, take(c)["relayer-0"].Verdict)
		for range 20 {
			pause(5 * time.Second)
			for _, r := range take(c) {
				require.Equal(t, Up, r.Verdict)
			}
		}
	})
}

func TestUnknownNeedsFallFailuresToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", fails(answer("status 500")))
		c := start(t, w, Config{Fall: 2})
		c.Set(relayers(1)...)
		pause(0)
		require.Equal(t, Unknown, take(c)["relayer-0"].Verdict)
		pause(reprobeGap)
		require.Equal(t, Down, take(c)["relayer-0"].Verdict)
	})
}

func TestNewURLIsUnknownUntilChecked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("http://old", after(400*time.Millisecond, nil))
		w.set("http://new", after(100*time.Millisecond, answer("status 503")))
		c := start(t, w, Config{})
		c.Set(Target{ID: "a", URL: "http://old", Version: 1})
		pause(300 * time.Millisecond)
		// The check of the old URL is under way, and succeeds later.
		c.Set(Target{ID: "a", URL: "http://new", Version: 2})
		pause(150 * time.Millisecond)
		r := take(c)["a"]
		require.Equal(t, Down, r.Verdict)
		require.EqualValues(t, 2, r.Version)
		pause(300 * time.Millisecond)
		require.Empty(t, take(c), "the result for the old URL is dropped")

		// The same URL under a new version keeps the verdict and is not checked out of turn.
		n := len(w.checks("a"))
		c.Set(Target{ID: "a", URL: "http://new", Version: 3})
		pause(0)
		require.Len(t, w.checks("a"), n)
		pause(10 * time.Second)
		r = take(c)["a"]
		require.Equal(t, Down, r.Verdict)
		require.EqualValues(t, 3, r.Version)
		require.Equal(t, 2, r.Failures)
	})
}

func TestRemovedTargetReportsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", after(400*time.Millisecond, nil))
		c := start(t, w, Config{})
		c.Set(relayers(3)...)
		pause(200 * time.Millisecond)
		c.Remove("relayer-0", "nobody") // while it is checked
		pause(300 * time.Millisecond)
		c.Remove("relayer-1") // while its result waits
		require.Len(t, take(c), 1)
		n0, n1 := len(w.checks("relayer-0")), len(w.checks("relayer-1"))
		pause(30 * time.Second)
		require.Len(t, w.checks("relayer-0"), n0)
		require.Len(t, w.checks("relayer-1"), n1)
		// It comes back as a new one.
		c.Set(relayers(1)...)
		pause(0)
		require.Len(t, w.checks("relayer-0"), n0+1)
	})
}

func TestCheckNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(300)...)
		pause(0)
		before := take(c)
		require.Equal(t, 300, len(before))
		w.set("*", after(100*time.Millisecond, nil))
		ids := []string{"nobody"}
		for id := range before {
			ids = append(ids, id)
		}
		c.CheckNow(ids...)
		pause(10 * time.Millisecond)
		_, most := w.counts()
		require.Equal(t, 256, most)
		c.CheckNow(ids...) // those under way are checked again, those that wait just once
		pause(time.Second)
		require.Equal(t, 300, len(take(c)))
		n := 0
		for id := range before {
			n += len(w.checks(id))
		}
		require.InDelta(t, 300+300+256, n, 40) // and some had their phase in that second
	})
}

// A process frozen for seconds finds every deadline passed; no service is to blame.
func TestFrozenCheckerRemovesNobody(t *testing.T) {
	t.Parallel()
	for name, freeze := range map[string]struct {
		frozen time.Duration
		// answer of a service whose check was under way.
		err error
	}{
		"past the deadline":     {5 * time.Second, errors.New("no answer")},
		"shorter than a check":  {100 * time.Millisecond, errors.New("no answer")},
		"the server gave up":    {2 * time.Second, io.EOF},
		"deadline of the dial":  {5 * time.Second, errLate},
		"just above the margin": {71 * time.Millisecond, errors.New("no answer")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var lost atomic.Int64 // time that passed unnoticed
				clock := func() time.Time { return time.Now().Add(time.Duration(lost.Load())) }
				metrics := NewMetrics(nil)
				w := new(world)
				c := start(t, w, Config{clock: clock, Metrics: metrics})
				c.Set(relayers(1000)...)
				pause(10 * time.Second)
				require.Equal(t, 1000, len(take(c)))

				thaw := make(chan struct{})
				w.set("*", func(context.Context) error {
					<-thaw
					return freeze.err
				})
				pause(400 * time.Millisecond)
				w.set("*", nil)
				lost.Store(int64(freeze.frozen))
				close(thaw)
				pause(2 * time.Second)
				for _, r := range take(c) {
					require.Equal(t, Up, r.Verdict, r.Reason)
				}
				require.NotZero(t, value(t, metrics.voidLate))
				require.NotZero(t, value(t, metrics.stalls))
				require.Zero(t, value(t, metrics.failures))
				pause(10 * time.Second)
				require.Equal(t, 1000, len(take(c)), "everybody is checked as before")
			})
		})
	}
}

// The scheduler has noticed the freeze already when the check fails, within its time.
func TestFailureSomeTimeAfterAFreezeIsVoid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(lost.Load())) }
		w := new(world)
		w.set("*", after(200*time.Millisecond, io.EOF))
		c := start(t, w, Config{clock: clock})
		c.Set(relayers(1)...)
		pause(100 * time.Millisecond)
		lost.Store(int64(150 * time.Millisecond))
		pause(110 * time.Millisecond)
		require.Empty(t, take(c))
		pause(time.Second)
		require.Equal(t, Down, take(c)["relayer-0"].Verdict, "the repeat counts")
	})
}

// The scheduler was punctual, the check was not: its goroutine had to wait.
func TestFailureNoticedLateIsVoid(t *testing.T) {
	t.Parallel()
	for late, verdict := range map[time.Duration]Verdict{40 * time.Millisecond: Down, 60 * time.Millisecond: Unknown} {
		synctest.Test(t, func(t *testing.T) {
			w := new(world)
			w.set("*", func(ctx context.Context) error {
				<-ctx.Done()
				<-time.After(late)
				return errors.New("no answer")
			})
			c := start(t, w, Config{})
			c.Set(relayers(1)...)
			pause(time.Second)
			require.Equal(t, verdict, take(c)["relayer-0"].Verdict)
		})
	}
}

func TestAnswersReadLateStillCount(t *testing.T) {
	t.Parallel()
	for _, err := range []error{answer("status 503"), &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}} {
		synctest.Test(t, func(t *testing.T) {
			var lost atomic.Int64
			clock := func() time.Time { return time.Now().Add(time.Duration(lost.Load())) }
			w := new(world)
			c := start(t, w, Config{clock: clock})
			thaw := make(chan struct{})
			w.set("*", func(context.Context) error {
				<-thaw
				return err
			})
			c.Set(relayers(1)...)
			pause(0)
			lost.Store(int64(5 * time.Second))
			close(thaw)
			pause(0)
			require.Equal(t, Down, take(c)["relayer-0"].Verdict)
		})
	}
}

func TestCatchingUpDoesNotBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(lost.Load())) }
		w := new(world)
		c := start(t, w, Config{clock: clock})
		c.Set(relayers(5000)...)
		pause(10 * time.Second)
		w.set("*", after(100*time.Millisecond, nil))
		lost.Store(int64(9 * time.Second))
		pause(time.Second)
		_, most := w.counts()
		require.GreaterOrEqual(t, most, 256)
		require.Less(t, most, 400) // and those due in that second
	})
}

func TestLocalFaultIsVoidAndRepeatedAtABoundedRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		metrics := NewMetrics(nil)
		w := new(world)
		c := start(t, w, Config{Metrics: metrics})
		c.Set(relayers(5000)...)
		pause(10 * time.Second)
		take(c)
		w.set("*", fails(&net.OpError{Op: "dial", Err: syscall.EMFILE}))
		before, _ := w.counts()
		pause(10 * time.Second)
		require.Empty(t, take(c), "nothing was learnt")
		after, _ := w.counts()
		// 5,000 regular checks, and at most 1,000 repeats a second.
		require.Greater(t, after-before, 6_000)
		require.LessOrEqual(t, after-before, 5_000+10_000)
		require.EqualValues(t, after-before, value(t, metrics.voidLocal))

		w.set("*", nil)
		pause(10 * time.Second)
		results := take(c)
		require.Equal(t, 5000, len(results))
		for _, r := range results {
			require.Equal(t, Up, r.Verdict)
		}
	})
}

func TestVoidCheckIsRepeatedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", fails(syscall.ENOBUFS))
		c := start(t, w, Config{Interval: time.Minute})
		c.Set(relayers(1)...)
		pause(time.Second)
		at := w.checks("relayer-0")
		require.Len(t, at, 5) // after 50, 100, 200 and 400 ms
		w.set("*", nil)
		pause(time.Second)
		require.Equal(t, Up, take(c)["relayer-0"].Verdict)
	})
}

func TestCrowdedProcessTakesFewerChecksOn(t *testing.T) {
	t.Parallel()
	var seen waits
	c, err := New(Config{MaxInFlight: 4096, crowd: func() waits { return seen }})
	require.NoError(t, err)
	now := time.Now()
	look := func(w waits, inFlight int) {
		now = now.Add(pulse)
		seen, c.inFlight = w, inFlight
		c.noticeCrowd(now)
	}
	for range 10 {
		look(waits{crowded: 1, late: 1}, 256)
	}
	require.Equal(t, 4096, c.limit, "so few crowd nobody")
	for range 10 {
		look(waits{crowded: 1}, 4096)
	}
	require.Equal(t, 256, c.limit)
	require.True(t, c.lastStall.IsZero())
	look(waits{late: 1}, 256)
	require.Equal(t, now, c.lastStall, "what fails now is void")
	for range 20 {
		look(waits{}, 256)
	}
	require.Equal(t, 4096, c.limit)
}

func TestCrowdSeesWaiting(t *testing.T) {
	t.Parallel()
	var c crowd
	require.Zero(t, c.look())
	// Whatever the machine does meanwhile: shares.
	for range 10 {
		w := c.look()
		require.LessOrEqual(t, w.late, w.crowded)
		require.LessOrEqual(t, w.crowded, 1.0)
	}
}

func TestRunFinishesRunningChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", after(400*time.Millisecond, nil))
		c, err := New(Config{Probe: w.probe, crowd: func() waits { return waits{} }})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		c.Set(relayers(1000)...)
		pause(100 * time.Millisecond)
		stop()
		began := time.Now()
		require.NoError(t, <-done)
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		require.Equal(t, 256, len(take(c)), "their results are in")
		total, _ := w.counts()
		require.Equal(t, 256, total, "no other check began")
	})
}

// A target that hangs, with a long timeout, keeps nobody: neither who hands over nor who has been deposed.
func TestHangingChecksAreBrokenOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		abandon bool
		want    time.Duration
	}{
		"stopped": {false, time.Second},
		"deposed": {true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				metrics := NewMetrics(nil)
				var out bytes.Buffer
				w := new(world)
				w.set("*", hangs)
				checker, err := New(Config{
					Timeout: 9 * time.Second, Probe: w.probe, crowd: func() waits { return waits{} },
					Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&out, nil)),
				})
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- checker.Run(ctx) }()
				checker.Set(relayers(300)...)
				pause(100 * time.Millisecond)
				began := time.Now()
				if c.abandon {
					checker.Abandon()
				}
				stop()
				require.NoError(t, <-done)
				require.Equal(t, c.want, time.Since(began))
				require.Empty(t, take(checker), "nothing was found out")
				require.Zero(t, value(t, metrics.failures))
				require.Empty(t, out.String())
				total, _ := w.counts()
				require.Equal(t, 256, total, "no other check began")
			})
		})
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		w := new(world)
		c := start(t, w, Config{Logger: log, Auth: Auth{Header: "X-Key", Value: "s3cret", Hosts: []string{"*"}}})
		c.Set(relayers(1)...)
		pause(0)
		w.set("*", after(120*time.Millisecond, answer("status 503")))
		pause(20 * time.Second)
		w.set("*", fails(syscall.EMFILE))
		pause(10 * time.Second)

		var lines []map[string]any
		for line := range strings.Lines(out.String()) {
			var attrs map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &attrs))
			require.Equal(t, "relayer-0", attrs["relayer"])
			require.Equal(t, "health", attrs["component"])
			require.Contains(t, attrs, "healthCheckDuration")
			lines = append(lines, attrs)
		}
		require.Equal(t, "DEBUG", lines[0]["level"])
		require.Equal(t, "health check", lines[0]["msg"])
		require.Equal(t, "healthy", lines[0]["result"])
		for i, level := range []string{"WARN", "INFO"} { // the change, and that it stays so
			line := lines[1+i]
			require.Equal(t, level, line["level"])
			require.Equal(t, "health check failed", line["msg"])
			require.Equal(t, "unhealthy", line["result"])
			require.Equal(t, "status 503", line["reason"])
			require.InDelta(t, 120, line["healthCheckDuration"], 1)
			require.EqualValues(t, 1+i, line["failures"])
		}
		require.Equal(t, "WARN", lines[3]["level"])
		require.Equal(t, "DEBUG", lines[4]["level"], "not a warning each")
		require.Equal(t, "void", lines[3]["result"])
		require.Equal(t, "local", lines[3]["void"])
		require.NotContains(t, out.String(), "s3cret")
	})
}

func TestMetricsAndLatenessHook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		metrics := NewMetrics(nil)
		w := new(world)
		var late []time.Duration
		c := start(t, w, Config{Metrics: metrics, Lateness: func(id string, d time.Duration) {
			require.Equal(t, "relayer-0", id)
			late = append(late, d)
		}})
		c.Set(relayers(1)...)
		pause(20 * time.Second)
		w.set("*", fails(answer("status 500")))
		pause(30 * time.Second)
		require.EqualValues(t, 3, value(t, metrics.successes))
		require.EqualValues(t, 3, value(t, metrics.failures))
		require.Zero(t, value(t, metrics.inFlight))
		require.Len(t, late, 5, "the first check is not scheduled")
		for _, d := range late {
			require.Less(t, d, 2*time.Millisecond)
		}
	})
}

// Whatever is set, removed and asked for meanwhile, the checker ends up with what was set last and checks all of
// it each interval.
func TestConcurrentChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			w := new(world)
			w.set("*", after(10*time.Millisecond, nil))
			c := start(t, w, Config{Interval: time.Second})
			var editors sync.WaitGroup
			for editor := range uint64(4) {
				editors.Go(func() {
					rnd := rand.New(rand.NewPCG(seed, editor))
					for range 500 {
						id := fmt.Sprintf("relayer-%d", rnd.IntN(20)*4+int(editor))
						switch rnd.IntN(4) {
						case 0:
							c.Remove(id)
						case 1:
							c.CheckNow(id)
						default:
							c.Set(Target{ID: id, URL: fmt.Sprint("http://", rnd.IntN(3)), Version: rnd.Uint64()})
						}
						if rnd.IntN(10) == 0 {
							<-time.After(time.Duration(rnd.IntN(20)) * time.Millisecond)
						}
						_ = c.Take(nil)
					}
				})
			}
			editors.Wait()
			c.Remove("relayer-0")
			c.Set(Target{ID: "relayer-1", URL: "http://last", Version: 7})
			pause(time.Second)
			take(c)
			pause(time.Second + 50*time.Millisecond)
			c.mu.Lock()
			n := len(c.targets)
			require.Zero(t, c.bursting)
			require.Empty(t, c.queue)
			require.Equal(t, n, len(c.schedule)+c.inFlight)
			c.mu.Unlock()
			results := take(c)
			require.Equal(t, n, len(results))
			require.NotContains(t, results, "relayer-0")
			require.EqualValues(t, 7, results["relayer-1"].Version)
			_, most := w.counts()
			require.LessOrEqual(t, most, 256)
		})
	}
}

// Real sockets and real time, since a check under a real timeout is what a service meets.
func TestCheckerOverTheNetwork(t *testing.T) {
	t.Parallel()
	accepted := make(chan struct{}, 100)
	hung := serveRaw(t, func(conn net.Conn) {
		accepted <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
	})
	healthy := serveHTTP(t, nil)
	healthy.Config.Handler = nil
	c, err := New(Config{Interval: time.Second, Codes: Codes{404}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = c.Run(ctx) })
	defer done.Wait()
	defer stop()
	c.Set(
		Target{ID: "up", URL: healthy.URL},
		Target{ID: "hung", URL: "http://" + hung},
		Target{ID: "refused", URL: "tcp://" + refused(t)},
	)
	verdicts := make(map[string]Result)
	for len(verdicts) < 3 {
		<-c.Ready()
		for _, r := range c.Take(nil) {
			verdicts[r.ID] = r
		}
	}
	require.Equal(t, Up, verdicts["up"].Verdict, verdicts["up"].Reason)
	require.Equal(t, Down, verdicts["hung"].Verdict)
	require.Equal(t, "no answer within 500ms", verdicts["hung"].Reason)
	require.InDelta(t, 500, verdicts["hung"].Latency.Milliseconds(), 50, "otherwise it were void")
	require.Equal(t, Down, verdicts["refused"].Verdict)
	<-accepted
}
