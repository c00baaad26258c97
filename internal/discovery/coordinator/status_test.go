package coordinator_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The status of a very large fleet, above the usual message limit, must be available from every node and to clients.
func TestGetStatus_VeryLargeFleet_IsAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := make([]*rollcallv1.ServiceStatus, 300)
		for i := range fleet {
			fleet[i] = &rollcallv1.ServiceStatus{Id: "x", Url: strings.Repeat("u", 100_000)}
		}
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			var epoch atomic.Uint64
			cfg.Lead = func(ctx context.Context, l coordinator.Leadership) (uint64, error) {
				epoch.Store(l.Epoch)
				<-ctx.Done()
				return 0, nil
			}
			cfg.Status = func(asked uint64) *rollcallv1.GetStatusResponse {
				if asked != epoch.Load() {
					return nil
				}
				return &rollcallv1.GetStatusResponse{Epoch: asked, Leader: cfg.ID, Services: fleet, Notes: []string{"a note"}}
			}
		})
		leader, epoch := c.leader()
		for id, n := range c.nodes {
			c.await("the node knows who leads", func() bool { return n.HasLeader() })
			got, err := n.Status(t.Context())
			require.NoError(t, err, id)
			require.Len(t, got.Services, len(fleet))
			require.Equal(t, leader, got.Leader)
			require.Equal(t, epoch, got.Epoch)
		}
		client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: []string{"c1:7400", "c2:7400", "c3:7400"}, DialContext: c.net.Dialer("client")})
		require.NoError(t, err)
		defer client.Close()
		got, err := client.Status(t.Context())
		require.NoError(t, err)
		require.Len(t, got.Services, len(fleet))
		require.Equal(t, []string{"a note"}, got.Notes)
	})
}

// Before the leader's work begins, the status must list the services and everything else that is known.
func TestGetStatus_LeadersWorkNotBegun_ListsTheServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			cfg.RelayerCount, cfg.RelayerURLTemplate = 2, "http://oz-relayer-{N}:3000"
			cfg.Status = func(uint64) *rollcallv1.GetStatusResponse { return nil }
		})
		leader, epoch := c.leader()
		var got *rollcallv1.GetStatusResponse
		c.await("the static fleet is registered", func() bool {
			var err error
			got, err = c.client(leader).GetStatus(t.Context(), &rollcallv1.GetStatusRequest{})
			return err == nil && len(got.Services) == 2
		})
		require.Equal(t, leader, got.Leader)
		require.Equal(t, epoch, got.Epoch)
		require.EqualValues(t, 2, got.RelayerCount)
		require.Equal(t, "the leader's work has not begun", got.Mirror.Error)
		require.Equal(t, rollcallv1.Verdict_VERDICT_UNKNOWN, got.Services[1].Verdict)
		require.Equal(t, "http://oz-relayer-1:3000", got.Services[1].Url)
	})
}

func TestStatus_NoLeader_CallsNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		n := c.nodes[leader]
		for id := range c.nodes {
			if id != leader {
				c.stop(id)
			}
		}
		c.await("it notices", func() bool { return !n.HasLeader() })
		began := time.Now()
		_, err := n.Status(t.Context())
		require.Error(t, err)
		require.Zero(t, time.Since(began))
	})
}
