package health_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/health"
	"github.com/rollcall-dev/rollcall/internal/relay/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// depth is a store that can be made to fail.
type depth struct{ err atomic.Pointer[error] }

func (d *depth) Depth(context.Context) (store.Depth, error) {
	if err := d.err.Load(); err != nil {
		return store.Depth{}, *err
	}
	return store.Depth{
		Counts: map[relay.Status]int{relay.Queued: 3}, Oldest: map[relay.Status]time.Duration{relay.Queued: time.Minute}, Blocked: 2,
	}, nil
}

func TestMonitor_DependenciesFail_ReportsThem(t *testing.T) {
	t.Parallel()
	stored := new(depth)
	var broker atomic.Pointer[error]
	reg := prometheus.NewRegistry()
	m := health.New(health.Config{
		Store: stored, Interval: time.Millisecond, Registerer: reg, Logger: slog.New(slog.DiscardHandler),
		Components: map[string]func() error{"queue": func() error {
			if err := broker.Load(); err != nil {
				return *err
			}
			return nil
		}},
	})
	require.False(t, m.Health().Ready, "it has read nothing yet")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	becomes := func(status string) health.Report {
		t.Helper()
		require.Eventually(t, func() bool { return m.Health().Status == status }, 20*time.Second, time.Millisecond)
		return m.Health()
	}
	becomes("healthy")
	away := errors.New("away")
	broker.Store(&away)
	r := becomes("degraded")
	require.True(t, r.Ready)
	require.Equal(t, "queue: away", r.Reason)
	stored.err.Store(&away)
	r = becomes("unhealthy")
	require.False(t, r.Ready)
	require.Equal(t, map[string]string{"database": "away", "queue": "away"}, r.Components)

	server := httptest.NewServer(health.Handler(m.Health, http.NotFoundHandler()))
	resp, err := http.Get(server.URL + "/ready")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.JSONEq(t, `{"ready": false, "status": "unhealthy", "reason": "database: away; queue: away", "components": {"database": "away", "queue": "away"}}`, string(body))
	server.Close()
	http.DefaultClient.CloseIdleConnections()

	stored.err.Store(nil)
	broker.Store(nil)
	becomes("healthy")
	families, err := reg.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	cancel()
	require.NoError(t, <-done)
}
