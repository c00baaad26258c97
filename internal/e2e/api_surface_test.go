package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// The gRPC health and reflection services, which load balancers and grpcurl use, answer.
func TestGRPC_HealthAndReflection_Answer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, options{size: 1})
	n, _ := c.leader()
	h, err := healthpb.NewHealthClient(n.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, h.Status)

	stream, err := reflectionpb.NewServerReflectionClient(n.conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		require.NoError(t, stream.Send(req))
		resp, err := stream.Recv()
		require.NoError(t, err)
		return resp
	}
	list := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	require.Subset(t, names, []string{"rollcall.v1.DiscoveryService", "rollcall.v1.ClusterService", "grpc.health.v1.Health"})
	file := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "rollcall.v1.DiscoveryService.RegisterServices",
	}})
	require.NotEmpty(t, file.GetFileDescriptorResponse().GetFileDescriptorProto())
}

func TestMetrics_Leader_HasDashboardFamilies(t *testing.T) {
	t.Parallel()
	c, relayers, ids := fleetInRedis(t, options{})
	n, epoch := c.leader()
	for seen := uint64(0); seen != epoch; n, epoch = c.leader() { // both readings must be of the same leader
		seen = epoch
		relayers[0].crash()
		c.awaitActive(patience, ids[1:]...)
		relayers[0].start()
		c.awaitActive(patience, ids...)
	}
	_, body := n.page(t, "/metrics")
	for _, family := range []string{
		"rollcall_check_successes_total", "rollcall_check_failures_total", "rollcall_check_duration_seconds",
		"rollcall_removals_total", "rollcall_service_recoveries_total", "rollcall_active", "rollcall_configured",
		"rollcall_leader", "rollcall_epoch", "rollcall_leadership_changes_total",
		"rollcall_mirror_writes_total", "rollcall_mirror_errors_total", "rollcall_mirror_repairs_total", "rollcall_mirror_lag_seconds",
		"rollcall_registration_batch_services", "rollcall_raft_commitTime", "rollcall_raft_term", "rollcall_raft_commit_index",
	} {
		require.True(t, strings.Contains(body, "# TYPE "+family+" "), "no %s in\n%s", family, body)
	}
	require.InDelta(t, 1, n.metric(t, "rollcall_leader"), 0)
	require.InDelta(t, float64(epoch), n.metric(t, "rollcall_epoch"), 0)
	require.InDelta(t, 3, n.metric(t, `rollcall_active{kind="relayer"}`), 0)
	require.InDelta(t, 3, n.metric(t, `rollcall_configured{kind="relayer"}`), 0)
	require.GreaterOrEqual(t, n.metric(t, `rollcall_removals_total{reason="health"}`), 1.0)
	require.GreaterOrEqual(t, n.metric(t, "rollcall_service_recoveries_total"), 1.0)
	require.Zero(t, c.follower().metric(t, "rollcall_leader"))
}

// All invalid settings are reported together, each with its name.
func TestSettings_SeveralInvalid_AllAreReported(t *testing.T) {
	t.Parallel()
	wrong := map[string]string{
		"ROLLCALL_NODE_ID": "Not A Label", "ROLLCALL_PEERS": "a=b", "ROLLCALL_LISTEN": "nowhere", "ROLLCALL_RAFT_TIMING": "quick",
		"RELAYER_COUNT": "11", "HEALTH_CHECK_INTERVAL_MS": "999", "HEALTH_CHECK_TIMEOUT_MS": "none", "HEALTH_CHECK_PATH": "health",
		"HEALTH_CHECK_EXPECTED_CODES": "99", "HEALTH_CHECK_RISE": "0", "REDIS_URL": "http://x", "ROLLCALL_TLS_CERT": "x.crt",
		"ROLLCALL_MIN_LIVE": "relayer=many", "ROLLCALL_MASS_FAILURE_THRESHOLD": "2", "ROLLCALL_LOG_LEVEL": "loud",
	}
	var env []string
	for name, value := range wrong {
		env = append(env, name+"="+value)
	}
	stdout, stderr, code := rollcall(t, env, "coordinator")
	require.Equal(t, 2, code)
	require.Empty(t, stdout)
	for name := range wrong {
		if name == "ROLLCALL_TLS_CERT" {
			name = "--tls-key" // which is missing
		}
		require.Contains(t, stderr, name)
	}
}
