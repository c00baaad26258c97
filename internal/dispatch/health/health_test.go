package health_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/health"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// depth is a store that can be made to fail.
type depth struct{ err atomic.Pointer[error] }

func (d *depth) Depth(context.Context) (store.Depth, error) {
	if err := d.err.Load(); err != nil {
		return store.Depth{}, *err
	}
	return store.Depth{
		Counts: map[dispatch.Status]int{dispatch.Queued: 3}, Oldest: map[dispatch.Status]time.Duration{dispatch.Queued: time.Minute}, Blocked: 2,
	}, nil
}

// syncBuffer is a log that is written and read concurrently.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestMonitor_DependenciesFail_ReportsThem(t *testing.T) {
	t.Parallel()
	stored := new(depth)
	var broker atomic.Pointer[error]
	reg := prometheus.NewRegistry()
	var log syncBuffer
	failure := func() error {
		if err := broker.Load(); err != nil {
			return *err
		}
		return nil
	}
	m := health.New(health.Config{
		Store: stored, Interval: time.Millisecond, Registerer: reg, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Components: map[string]health.Component{"queue": {Problem: failure}, "relayers": {Problem: failure, Class: error.Error}},
	})
	require.False(t, m.Health().Ready, "it has read nothing yet")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	becomes := func(status string) process.Health {
		t.Helper()
		require.Eventually(t, func() bool { return m.Health().Status == status }, 2*time.Minute, time.Millisecond)
		return m.Health()
	}
	becomes("healthy")
	away := errors.New("none is listed")
	broker.Store(&away)
	r := becomes("degraded")
	require.True(t, r.Ready)
	require.Equal(t, "queue: unavailable; relayers: none is listed", r.Reason)
	_, refused := pgx.Connect(t.Context(), "postgres://alice:secret@127.0.0.1:1/sales")
	require.ErrorContains(t, refused, "alice")
	stored.err.Store(&refused)
	r = becomes("unhealthy")
	require.False(t, r.Ready)
	require.Equal(t, map[string]string{"database": "unreachable", "queue": "unavailable", "relayers": "none is listed"}, r.Components)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "user=alice database=sales") }, 2*time.Minute, time.Millisecond)

	require.Equal(t, "database: unreachable; queue: unavailable; relayers: none is listed", r.Reason)

	stored.err.Store(nil)
	broker.Store(nil)
	becomes("healthy")
	families, err := reg.Gather()
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "rollcall_relay_blocked_transactions" })
	require.InDelta(t, 2, families[i].GetMetric()[0].GetGauge().GetValue(), 0)
	cancel()
	require.NoError(t, <-done)
}
