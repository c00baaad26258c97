package coordinator_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// A sequence number belongs to one body. The leader must refuse another body under it. Repeating the first answer
// would report a write as done that was never applied. A new leader must refuse it as well.
func TestRegister_RefusesReusedSequenceNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		register := func(w *rollcallv1.Writer, mutate func(*rollcallv1.RegisterServicesRequest), ids ...string) (*rollcallv1.RegisterServicesResponse, error) {
			req := &rollcallv1.RegisterServicesRequest{Writer: w}
			for _, id := range ids {
				req.Services = append(req.Services, service(id))
			}
			if mutate != nil {
				mutate(req)
			}
			return c.client(leader).RegisterServices(t.Context(), req)
		}
		requireReused := func(err error) {
			t.Helper()
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		}
		first, err := register(gatewayWriter("a", 1, 5), nil, "x", "y")
		require.NoError(t, err)

		check := func() {
			t.Helper()
			_, err := register(gatewayWriter("a", 1, 5), nil, "x", "z")
			requireReused(err)
			_, err = register(gatewayWriter("a", 1, 5), func(r *rollcallv1.RegisterServicesRequest) { r.FullSet = true }, "x", "y")
			requireReused(err)
			_, err = register(gatewayWriter("a", 1, 5), func(r *rollcallv1.RegisterServicesRequest) { r.Services[1].WorkerRef.Url = "http://moved:1" }, "x", "y")
			requireReused(err)
			_, err = c.client(leader).DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: gatewayWriter("a", 1, 5), Ids: []string{"x"}})
			requireReused(err)

			again, err := register(gatewayWriter("a", 1, 5), nil, "x", "y")
			require.NoError(t, err)
			require.True(t, proto.Equal(first, again), "the first body still gets its answer: %v, %v", first, again)
		}
		check()

		c.stop(leader)
		leader, _ = c.leader()
		check()

		// A write that changes nothing has no log entry, but must use its number all the same.
		_, err = register(gatewayWriter("a", 1, 6), nil, "x")
		require.NoError(t, err)
		_, err = register(gatewayWriter("a", 1, 6), nil, "z")
		requireReused(err)

		_, err = register(gatewayWriter("a", 1, 7), nil, "z")
		require.NoError(t, err, "the writer continues with its next number")
	})
}
