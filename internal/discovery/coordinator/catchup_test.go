package coordinator_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// narrowConn is a connection with a bandwidth of rate bytes a second.
type narrowConn struct {
	net.Conn
	rate int
}

func (c narrowConn) Write(p []byte) (int, error) {
	pass(time.Duration(len(p)) * time.Second / time.Duration(c.rate))
	return c.Conn.Write(p)
}

// Missed entries must be sent in messages that a usual link carries within Raft's timeout.
func TestReplication_LargeEntriesOverSlowLink_FollowerCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				return narrowConn{conn, 4 << 20}, err
			}
		})
		c.register("a")
		late := c.follower()
		stores := c.nodes[late].stores
		c.stop(late)
		leader, _ := c.leader()
		for i := range 100 {
			req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
			for j := range 30 {
				s := service(fmt.Sprintf("s-%d", j))
				s.WorkerRef.Labels = labels(40, 250)
				s.WorkerRef.Node = fmt.Sprintf("n%d", i)
				req.Services = append(req.Services, s)
			}
			_, err := c.client(leader).RegisterServices(t.Context(), req)
			require.NoError(t, err)
		}
		c.start(late, stores)
		want := c.nodes[leader].Directory().State().Index()
		c.await("it has caught up", func() bool { return c.nodes[late].Directory().State().Index() >= want })
	})
}
