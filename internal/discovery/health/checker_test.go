package health

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRun_Stopped_FinishesRunningChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", after(400*time.Millisecond, nil))
		c, err := New(Config{Probe: w.probe, newConcurrencyLimiter: func() waits { return waits{} }})
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

// A target that hangs, with a long timeout, must not delay a handover or the end of a deposed leader.
func TestRun_ChecksHang_AreCanceled(t *testing.T) {
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
					Timeout: 9 * time.Second, Probe: w.probe, newConcurrencyLimiter: func() waits { return waits{} },
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

func TestChecker_VerdictsChange_AreLoggedWithoutSecrets(t *testing.T) {
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
			require.Equal(t, "relayer-0", attrs["service"])
			require.Equal(t, "health", attrs["component"])
			require.Contains(t, attrs, "healthCheckDuration")
			lines = append(lines, attrs)
		}
		require.Equal(t, "DEBUG", lines[0]["level"])
		require.Equal(t, "health check", lines[0]["msg"])
		require.Equal(t, "healthy", lines[0]["result"])
		for i, level := range []string{"WARN", "INFO"} { // the change, and that it persists
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

func TestChecker_MetricsAndLatenessHook_ReportChecks(t *testing.T) {
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

// Under concurrent Set, Remove and CheckNow, the checker must end with the last targets and check all of them each
// interval.
func TestChecker_ConcurrentChanges_ChecksTheLastTargets(t *testing.T) {
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

// The test uses real sockets and real time, because services meet real timeouts.
func TestChecker_RealSockets_ReportsVerdicts(t *testing.T) {
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
