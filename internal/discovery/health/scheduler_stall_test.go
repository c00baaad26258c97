package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChecker_ProcessFrozen_MarksNoServiceDown(t *testing.T) {
	t.Parallel()
	for name, freeze := range map[string]struct {
		frozen time.Duration
		// response of a service whose check was running
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
				require.Equal(t, 1000, len(take(c)), "all targets are checked as before")
			})
		})
	}
}

// A failure after the scheduler has already detected the freeze, within its timeout, must be void.
func TestChecker_FailureAfterFreeze_IsVoid(t *testing.T) {
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

// The scheduler was on time, but the check's goroutine had to wait: the failure must be void.
func TestChecker_FailureNoticedLate_IsVoid(t *testing.T) {
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

func TestChecker_DefiniteAnswerReadLate_Counts(t *testing.T) {
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

func TestChecker_LocalFault_IsRepeatedAtLimitedRate(t *testing.T) {
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

func TestChecker_VoidCheck_IsRepeatedSoon(t *testing.T) {
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

var noAddress = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EADDRNOTAVAIL}

// A relayer with an IPv6 address alone must not stay listed for ever, because the leader has none.
func TestChecker_OneTargetWithoutAddress_IsDownAfterTwoIntervals(t *testing.T) {
	t.Parallel()
	for others, fall := range map[int]int{1: 1, 2: 3} {
		synctest.Test(t, func(t *testing.T) {
			w := new(world)
			w.set("*", after(200*time.Millisecond, nil))
			c := start(t, w, Config{Fall: fall})
			c.Set(relayers(1 + others)...)
			pause(12 * time.Second)
			require.Equal(t, Up, take(c)["relayer-0"].Verdict)
			w.set("http://relayer-0:3000", fails(noAddress))
			pause(19 * time.Second)
			require.NotContains(t, take(c), "relayer-0", "void")
			pause(22 * time.Second)
			r := take(c)["relayer-0"]
			require.Equal(t, Down, r.Verdict)
			require.Contains(t, r.Reason, "assign requested address")
			failures := r.Failures
			pause(10 * time.Second)
			require.Equal(t, failures+1, take(c)["relayer-0"].Failures, "from then on once per interval")

			w.set("http://relayer-0:3000", nil)
			pause(10 * time.Second)
			require.Equal(t, Up, take(c)["relayer-0"].Verdict)
			w.set("http://relayer-0:3000", fails(noAddress))
			pause(19 * time.Second)
			require.NotContains(t, take(c), "relayer-0", "void again")
		})
	}
}

// A target that never had a verdict must get one, because the recovery of a director waits for it.
func TestChecker_NewTargetWithoutAddress_GetsVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("http://relayer-0:3000", fails(noAddress))
		c := start(t, w, Config{})
		c.Set(relayers(2)...)
		pause(31 * time.Second)
		require.Equal(t, Down, take(c)["relayer-0"].Verdict)
	})
}

func TestChecker_NoTargetHasAddress_StaysVoid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(100)...)
		pause(12 * time.Second)
		take(c)
		w.set("*", fails(noAddress))
		pause(5 * time.Minute)
		require.Empty(t, take(c))

		// The fault ends, for one target after the other.
		for i := range 50 {
			w.set(fmt.Sprintf("http://relayer-%d:3000", i), after(0, nil))
			pause(300 * time.Millisecond)
			for _, r := range take(c) {
				require.Equal(t, Up, r.Verdict, r.ID)
			}
		}
		w.set("*", nil)
		pause(11 * time.Second)
		results := take(c)
		require.Len(t, results, 100)
		for _, r := range results {
			require.Equal(t, Up, r.Verdict)
		}
	})
}

// Connections that are kept give results, although this machine cannot open others.
func TestChecker_OneTargetWithoutFileDescriptor_StaysVoid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("http://relayer-0:3000", fails(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.EMFILE}))
		c := start(t, w, Config{})
		c.Set(relayers(10)...)
		pause(5 * time.Minute)
		require.NotContains(t, take(c), "relayer-0")
	})
}

func TestAdaptConcurrency_ProcessCrowded_StartsFewerChecks(t *testing.T) {
	t.Parallel()
	var seen waits
	c, err := New(Config{MaxInFlight: 4096, newConcurrencyLimiter: func() waits { return seen }})
	require.NoError(t, err)
	now := time.Now()
	look := func(w waits, inFlight int) {
		now = now.Add(tick)
		seen, c.inFlight = w, inFlight
		c.adaptConcurrency(now)
	}
	for range 10 {
		look(waits{crowded: 1, late: 1}, minInFlight)
	}
	require.Equal(t, 4096, c.limit, "so few checks are no overload")
	for range 10 {
		look(waits{crowded: 1}, 4096)
	}
	require.Equal(t, minInFlight, c.limit)
	require.True(t, c.lastStall.IsZero())
	look(waits{late: 1}, minInFlight)
	require.Equal(t, now, c.lastStall, "a failure now is void")
	for range 20 {
		look(waits{}, minInFlight)
	}
	require.Equal(t, 4096, c.limit)
}

func TestConcurrencyLimiter_Look_SharesAreConsistent(t *testing.T) {
	t.Parallel()
	var c concurrencyLimiter
	require.Zero(t, c.measure())
	// On any machine, the shares must be consistent.
	for range 10 {
		w := c.measure()
		require.LessOrEqual(t, w.late, w.crowded)
		require.LessOrEqual(t, w.crowded, 1.0)
	}
}
