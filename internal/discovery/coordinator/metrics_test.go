package coordinator

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestMetrics_DiskUsage_IsReported(t *testing.T) {
	reg := prometheus.NewRegistry()
	n, err := Open(t.Context(), Config{
		ID: "a", Listen: "127.0.0.1:0", Peers: []Peer{{"a", "127.0.0.1:1"}}, DataDir: t.TempDir(), Registerer: reg,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	_, _, err = n.startRaft()
	require.NoError(t, err)
	families, err := reg.Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	require.Positive(t, values["rollcall_raft_log_bytes"])
	require.Contains(t, values, "rollcall_raft_snapshot_bytes")
}
