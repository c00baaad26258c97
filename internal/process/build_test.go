package process

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Each role's metrics come from one registry, so that each names the program that reports them.
func TestNewRegistry_ReportsTheBuild(t *testing.T) {
	t.Parallel()
	families, err := newRegistry().Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "rollcall_build_info" {
			continue
		}
		require.Len(t, f.GetMetric(), 1)
		require.Equal(t, 1.0, f.GetMetric()[0].GetGauge().GetValue())
		labels := map[string]string{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		require.Equal(t, runtime.Version(), labels["goversion"])
		require.NotEmpty(t, labels["version"])
		require.NotEmpty(t, labels["revision"])
		return
	}
	require.Fail(t, "no rollcall_build_info")
}

// A metric that cannot be read is logged, and all others are served.
func TestMetrics_OneFails_ServesTheOthers(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	var log bytes.Buffer
	p := &Process{Registry: newRegistry(), Log: slog.New(slog.NewTextHandler(&log, nil))}
	p.Registry.MustRegister(failing{})
	p.Metrics().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	for _, name := range []string{"rollcall_build_info{", "go_goroutines ", "process_open_fds "} {
		require.Contains(t, w.Body.String(), "\n"+name)
	}
	require.Contains(t, log.String(), "not read")
}

// failing is a collector whose only metric cannot be read.
type failing struct{}

func (failing) Describe(chan<- *prometheus.Desc) {}

func (failing) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(prometheus.NewDesc("rollcall_failing", "x", nil, nil), errors.New("not read"))
}
