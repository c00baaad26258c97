package health

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// More checks than possible must only delay them: concurrency must not grow, no check may run twice to catch up, each
// service must get its turn, and the log must report the beginning and the end.
func TestChecker_Overloaded_OnlyDelaysChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const services, limit = 2_000, 256
		var out bytes.Buffer
		metrics := NewMetrics(nil)
		w := new(world)
		w.set("*", after(400*time.Millisecond, nil))
		c := start(t, w, Config{
			Interval: time.Second, MaxInFlight: limit, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&out, nil)),
		})
		c.Set(relayers(services)...)
		pause(40 * time.Second) // 640 checks a second, of 2,000
		total, most := w.counts()
		require.Equal(t, limit, most)
		require.InDelta(t, 100*limit, total, 5*limit)
		for i := range services {
			at := w.checks(fmt.Sprintf("relayer-%d", i))
			require.InDelta(t, total/services, len(at), 4, "relayer-%d", i)
			for j := len(at) / 2; j < len(at); j++ { // earlier, first checks alternated with them
				require.InDelta(t, 3, at[j].Sub(at[j-1]).Seconds(), 2, "relayer-%d", i)
			}
		}
		require.Greater(t, value(t, metrics.behind), 1.0)
		require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
		require.Contains(t, out.String(), `level=WARN msg="health checks fall behind`)

		for i := range services - 300 {
			c.Remove(fmt.Sprintf("relayer-%d", i))
		}
		pause(10 * time.Second)
		require.Less(t, value(t, metrics.behind), 0.01)
		require.Equal(t, 2, strings.Count(out.String(), "\n"), out.String())
		require.Contains(t, out.String(), `level=INFO msg="health checks are on time again"`)
		var at [2]time.Time
		for i, m := range regexp.MustCompile(`(?m)^time=(\S+)`).FindAllStringSubmatch(out.String(), -1) {
			at[i], _ = time.Parse(time.RFC3339, m[1])
		}
		after, err := time.ParseDuration(regexp.MustCompile(`after=(\S+)`).FindStringSubmatch(out.String())[1])
		require.NoError(t, err)
		require.InDelta(t, (at[1].Sub(at[0]) - time.Second).Seconds(), after.Seconds(), 0.1, "without the quiet interval")
	})
}

// A frozen process must be reported as a stall, not as an overload.
func TestChecker_ProcessFrozen_ReportsStallNotOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		var out bytes.Buffer
		w := new(world)
		c := start(t, w, Config{
			clock:  func() time.Time { return time.Now().Add(time.Duration(lost.Load())) },
			Logger: slog.New(slog.NewTextHandler(&out, nil)),
		})
		c.Set(relayers(5000)...)
		pause(10 * time.Second)
		w.set("*", after(100*time.Millisecond, nil))
		for _, frozen := range []time.Duration{750 * time.Millisecond, 9 * time.Second} {
			lost.Add(int64(frozen))
			pause(30 * time.Second)
		}
		require.Equal(t, 2, strings.Count(out.String(), "checker was held up"), out.String())
		require.NotContains(t, out.String(), "fall behind")
	})
}

// Neither new targets nor existing ones may wait for all of the others.
func TestChecker_ManyNewTargets_AlternateWithOldOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", after(100*time.Millisecond, nil))
		c := start(t, w, Config{Interval: time.Second, MaxInFlight: 64})
		all := relayers(20_000)
		c.Set(all[:600]...) // exactly the capacity
		pause(5 * time.Second)
		c.Set(all[600:]...)
		pause(10 * time.Second)
		for i, target := range all {
			at := w.checks(target.ID)
			switch {
			case i < 600: // they share their half with those that had their first check
				require.WithinDuration(t, time.Now(), at[len(at)-1], 7*time.Second, target.ID)
			case i < 600+3000:
				require.NotEmpty(t, at, target.ID)
			}
		}
	})
}

func TestReady_VerdictChanges_SignalsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{Interval: time.Second})
		c.Set(relayers(1000)...)
		pause(2 * time.Second)
		take(c)
		ready := 0
		var taken []Result
		drain := func() {
			select {
			case <-c.Ready():
				ready++
				taken = c.Take(taken)
			default:
			}
		}
		drain()
		ready, taken = 0, nil
		for range 1000 {
			pause(time.Millisecond)
			drain()
		}
		require.InDelta(t, 1000, len(taken), 50)
		require.InDelta(t, 50, ready, 5)

		w.set("*", fails(answer("status 503")))
		for range 20 {
			pause(time.Millisecond)
			taken = nil
			drain()
			for _, r := range taken {
				if r.Verdict != Down {
					continue // from before
				}
				require.WithinDuration(t, time.Now(), r.At, time.Millisecond)
			}
		}
	})
}

func TestChecker_UnchangedResult_DoesNotNotify(t *testing.T) {
	t.Parallel()
	c, err := New(Config{})
	require.NoError(t, err)
	c.Set(relayers(2)...)
	require.Len(t, c.wake, 1)
	<-c.wake
	c.Set(relayers(2)...)
	c.Set()
	c.CheckNow("absent")
	require.Empty(t, c.wake)
}
