package queue_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestVerdict_InvalidParts_AreReplaced(t *testing.T) {
	t.Parallel()
	require.Equal(t, queue.MaxDelay, queue.Later(time.Hour).Delay)
	require.Zero(t, queue.Later(-time.Second).Delay)
	require.Equal(t, "a  b \uFFFD é", queue.Dead("\x00a\r\nb \xff é\t").Reason)
	require.Equal(t, strings.Repeat("é", 500), queue.Failed(strings.Repeat("é", 501), 0).Reason)
	require.Equal(t, "no reason given", queue.Failed("\n", 0).Reason)
	for _, kind := range []queue.Kind{queue.KindNone, -1, 99} {
		v := queue.Verdict{Kind: kind, Delay: time.Hour, Reason: "x"}.Normal()
		require.Equal(t, queue.KindFailed, v.Kind)
		require.Equal(t, time.Second, v.Delay)
	}
	require.Equal(t, queue.Verdict{Kind: queue.KindDone}, queue.Done().Normal())
	require.Equal(t, "failed or was delivered without a result 3 times, the latest failure: a b", queue.LostReason(3, "a\nb"))
}

func TestOutage_RepeatedCause_LoggedOnceAndPausesGrow(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	reg := prometheus.NewRegistry()
	cfg, err := queue.Config{Logger: slog.New(slog.NewTextHandler(&out, nil)), Metrics: queue.NewMetrics(reg)}.Complete()
	require.NoError(t, err)
	o := cfg.NewOutage("consumer", func(err error) string { return strings.ReplaceAll(err.Error(), "secret", "…") })
	require.NoError(t, o.Err())
	first := o.Failed(errors.New("refused, secret"))
	require.Greater(t, first, 40*time.Millisecond)
	require.LessOrEqual(t, first, 100*time.Millisecond)
	// A concurrent failure does not make the pause longer.
	require.LessOrEqual(t, o.Failed(errors.New("refused, secret")), first)
	require.Equal(t, 1, strings.Count(out.String(), "queue unavailable"))
	o.Failed(errors.New("timeout"))
	require.Equal(t, 2, strings.Count(out.String(), "queue unavailable"))
	require.ErrorContains(t, o.Err(), "timeout")
	require.NotContains(t, out.String(), "secret")
	o.Succeeded()
	o.Succeeded()
	require.NoError(t, o.Err())
	require.Equal(t, 1, strings.Count(out.String(), "queue available again"))

	var longest time.Duration
	for range 200 {
		if longest = max(longest, o.Failed(errors.New("refused"))); longest > time.Second {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	require.LessOrEqual(t, longest, 5*time.Second)
}
