package process

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

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

func TestMetrics_ServesTheRegistry(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	(&Process{Registry: newRegistry()}).Metrics().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	for _, name := range []string{"rollcall_build_info{", "go_goroutines ", "process_open_fds "} {
		require.Contains(t, string(body), "\n"+name)
	}
}
