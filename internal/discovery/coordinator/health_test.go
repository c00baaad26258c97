package coordinator_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The gRPC health service must list each service by name, and report the ones that the node cannot serve as not
// serving.
func TestHealth_FollowsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		const discovery, administration, peer = "rollcall.v1.DiscoveryService", "rollcall.v1.ClusterService", "rollcall.v1.PeerService"
		c.client(leader)
		client := healthpb.NewHealthClient(c.conns[leader])
		check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
			resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			require.NoError(t, err, service)
			return resp.Status
		}
		for _, service := range []string{"", discovery, administration, peer} {
			c.await("serving", func() bool { return check(service) == healthpb.HealthCheckResponse_SERVING })
		}
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "rollcall.v1.NoService"})
		require.Equal(t, codes.NotFound, status.Code(err))

		for id := range c.nodes {
			if id != leader {
				c.stop(id)
			}
		}
		for _, service := range []string{discovery, administration} {
			c.await("not serving without a leader", func() bool { return check(service) == healthpb.HealthCheckResponse_NOT_SERVING })
		}
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, check(peer), "the others need it to elect a leader")
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, check(""), "the process is well")
	})
}

// A kind or page token that no service can have must be refused, not answered with an empty list.
func TestListServices_RefusesBadKindAndPageToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, func(*coordinator.Config) {})
		leader, _ := c.leader()
		for _, stale := range []bool{false, true} {
			_, err := c.client(leader).ListServices(t.Context(), &rollcallv1.ListServicesRequest{Kind: "Relayer", PageToken: "a b", Stale: stale})
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			var fields []string
			for _, v := range detail[*errdetails.BadRequest](t, err).FieldViolations {
				fields = append(fields, v.Field)
				require.NotEmpty(t, v.Description)
			}
			require.Equal(t, []string{"kind", "page_token"}, fields)
		}
		stream, err := c.client(leader).WatchServices(t.Context(), &rollcallv1.WatchServicesRequest{Kind: "Relayer"})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Equal(t, "kind", detail[*errdetails.BadRequest](t, err).FieldViolations[0].Field)

		c.register("a", "b")
		page, err := c.client(leader).ListServices(t.Context(), &rollcallv1.ListServicesRequest{Kind: "relayer", PageSize: 1})
		require.NoError(t, err)
		page, err = c.client(leader).ListServices(t.Context(), &rollcallv1.ListServicesRequest{Kind: "relayer", PageToken: page.NextPageToken})
		require.NoError(t, err)
		require.Equal(t, "b", page.Records[0].Service.Id)
	})
}
