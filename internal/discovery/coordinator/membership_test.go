package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func (c *simCluster) admin(id string) rollcallv1.ClusterServiceClient {
	c.client(id)
	return rollcallv1.NewClusterServiceClient(c.conns[id])
}

// register writes services as an operator on the current leader. It fails the test if the write is refused.
func (c *simCluster) register(ids ...string) {
	c.t.Helper()
	require.NoError(c.t, c.write(ids...))
}

// write is like register, but returns the error, because the leader may be lost in the meantime.
func (c *simCluster) write(ids ...string) error {
	c.t.Helper()
	services := make([]*rollcallv1.Service, len(ids))
	for i, id := range ids {
		services[i] = service(id)
	}
	leader, _ := c.leader()
	_, err := c.client(leader).RegisterServices(c.t.Context(), &rollcallv1.RegisterServicesRequest{
		Writer: operator(), Services: services,
	})
	return err
}

func operator() *rollcallv1.Writer {
	return &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR}}
}

// await polls the simulated clock until the condition holds.
func (c *simCluster) await(what string, condition func() bool) {
	c.t.Helper()
	for range 3000 {
		if condition() {
			return
		}
		pass(20 * time.Millisecond)
	}
	require.FailNow(c.t, "gave up waiting", what)
}

func (c *simCluster) suffrage(id string) rollcallv1.Suffrage {
	leader, _ := c.leader()
	resp, err := c.admin(leader).ListMembers(c.t.Context(), &rollcallv1.ListMembersRequest{})
	if err != nil {
		return 0
	}
	for _, m := range resp.Members {
		if m.Id == id {
			return m.Suffrage
		}
	}
	return 0
}

func (c *simCluster) follower() string {
	leader, _ := c.leader()
	for id := range c.nodes {
		if id != leader {
			return id
		}
	}
	return ""
}

func TestRejoin_WipedNode_LosesItsVoteUntilCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b", "c")
		victim := c.follower()
		leader, _ := c.leader()
		cluster := c.nodes[leader].Directory().State().Cluster()
		c.stop(victim)
		c.register("d")

		c.start(victim, nil)
		c.await("the vote was taken", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_NON_VOTER })
		require.Error(t, c.nodes[victim].Ready(), "the others still need each other")
		c.await("raft has started", func() bool { return c.nodes[victim].Directory().State().Len() > 0 })
		require.Error(t, c.nodes[victim].Ready())
		c.await("the vote was given back", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
		c.await("it is ready", func() bool { return c.nodes[victim].Ready() == nil })
		s := c.nodes[victim].Directory().State()
		require.Equal(t, cluster, s.Cluster(), "it joined the cluster and did not bootstrap")
		require.Equal(t, 4, s.Len())
	})
}

func TestRejoin_NoQuorum_WipedNodeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		victim := c.follower()
		c.stop(victim)
		stores := c.nodes[leader].stores
		c.stop(leader)

		// One node has its state and one lost it: the second must not give the first a majority.
		c.start(victim, nil)
		pass(time.Minute)
		require.Error(t, c.nodes[victim].Ready())
		c.start(leader, stores)
		c.await("the vote was taken", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_NON_VOTER })
		c.await("the vote was given back", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
		require.Equal(t, 1, c.nodes[victim].Directory().State().Len())
	})
}

// Peers that have just restarted report no cluster until there is a leader. A node that lost its disk must not mistake
// that for a first start.
func TestRejoin_PeersJustRestarted_WipedNodeDoesNotBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		leader, _ := c.leader()
		cluster := c.nodes[leader].Directory().State().Cluster()
		victim := c.follower()
		stores := make(map[string]*coordinator.Stores)
		for id, n := range c.nodes {
			stores[id] = n.stores
		}
		stores[victim] = nil
		for id := range stores {
			c.stop(id)
		}
		for id, s := range stores {
			c.start(id, s)
		}
		c.await("the vote was taken", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_NON_VOTER })
		c.await("the vote was given back", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
		s := c.nodes[victim].Directory().State()
		require.Equal(t, cluster, s.Cluster())
		require.Equal(t, 2, s.Len())
	})
}

func TestNode_AllRestart_KeepTheirState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		_, epoch := c.leader()
		stores := make(map[string]*coordinator.Stores)
		for id, n := range c.nodes {
			stores[id] = n.stores
		}
		for id := range stores {
			c.stop(id)
		}
		for id, s := range stores {
			c.start(id, s)
		}
		leader, next := c.leader()
		require.Greater(t, next, epoch)
		require.Equal(t, 2, c.nodes[leader].Directory().State().Len())
	})
}

func TestMembership_GrowsToFiveAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		for _, id := range []string{"c4", "c5"} {
			leader, _ := c.leader()
			_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: id, Address: id + ":7400"})
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "there is no node at that address yet")
			c.configure = func(cfg *coordinator.Config) { cfg.Advertise = cfg.ID + ":7400" }
			c.start(id, nil)
			c.await("added", func() bool {
				leader, _ := c.leader()
				_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: id, Address: id + ":7400"})
				return err == nil
			})
			c.await("it votes", func() bool { return c.suffrage(id) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
		}
		c.register("b")
		for _, id := range []string{"c1", "c2"} {
			c.await("removed", func() bool {
				leader, _ := c.leader()
				_, err := c.admin(leader).RemoveMember(t.Context(), &rollcallv1.RemoveMemberRequest{Id: id})
				return err == nil
			})
			c.stop(id)
		}
		c.register("c")
		leader, _ := c.leader()
		require.Equal(t, 3, c.nodes[leader].Directory().State().Len())
		_, err := c.admin(leader).RemoveMember(t.Context(), &rollcallv1.RemoveMemberRequest{Id: "c1"})
		require.Equal(t, codes.NotFound, status.Code(err))
	})
}

func TestRemoveMember_CostsTheQuorum_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		c.stop(c.follower())
		leader, _ := c.leader()
		_, err := c.admin(leader).RemoveMember(t.Context(), &rollcallv1.RemoveMemberRequest{Id: c.follower()})
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
	})
}

func TestTransferLeadership_ToNamedNode_Succeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, epoch := c.leader()
		to := c.follower()
		_, err := c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: to})
		require.NoError(t, err)
		c.await("it leads", func() bool { l, e := c.leader(); return l == to && e > epoch })
		_, err = c.admin(to).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: "absent"})
		require.Equal(t, codes.NotFound, status.Code(err))
	})
}

func (c *simCluster) takeSnapshot(id string) []byte {
	stream, err := c.admin(id).TakeSnapshot(c.t.Context(), &rollcallv1.TakeSnapshotRequest{})
	require.NoError(c.t, err)
	var buf bytes.Buffer
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return buf.Bytes()
		}
		require.NoError(c.t, err)
		buf.Write(resp.Chunk)
	}
}

func TestLead_HigherEpochSeenOutsideRaft_ReestablishesAboveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		epochs := make(chan uint64, 16)
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			cfg.Lead = func(ctx context.Context, l coordinator.Leadership) (uint64, error) {
				epochs <- l.Epoch
				if l.Epoch < 100 {
					return 99, nil
				}
				<-ctx.Done()
				return 0, nil
			}
		})
		require.Less(t, <-epochs, uint64(100))
		require.EqualValues(t, 100, <-epochs)
		_, epoch := c.leader()
		require.EqualValues(t, 100, epoch)
	})
}

func TestLead_KeepsFailing_EndsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		broken := errors.New("no Redis client")
		c := newSimCluster(t, 1, func(cfg *coordinator.Config) {
			cfg.Lead = func(context.Context, coordinator.Leadership) (uint64, error) {
				attempts++
				return 0, broken
			}
		})
		err := <-c.nodes["c1"].done
		delete(c.nodes, "c1")
		require.ErrorIs(t, err, broken)
		require.Equal(t, 5, attempts)
	})
}

func TestStaticFleet_CountChanges_FollowsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := 3
		fleet := func(cfg *coordinator.Config) {
			cfg.RelayerCount, cfg.RelayerURLTemplate = count, "http://oz-relayer-{N}:3000"
		}
		c := newSimCluster(t, 3, fleet)
		leader, _ := c.leader()
		size := func(n int) func() bool {
			return func() bool { l, _ := c.leader(); return c.nodes[l].Directory().State().Len() == n }
		}
		c.await("three relayers", size(3))
		e, ok := c.nodes[leader].Directory().State().Get("oz-relayer-2")
		require.True(t, ok)
		require.Equal(t, "http://oz-relayer-2:3000", e.URL())
		require.Equal(t, fsm.Static, e.Owner)

		// A gateway takes one entry over, and returns it by deregistering it.
		_, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
			Writer: gatewayWriter("edge", 1, 1), Services: []*rollcallv1.Service{service("oz-relayer-0")},
		})
		require.NoError(t, err)
		e, _ = c.nodes[leader].Directory().State().Get("oz-relayer-0")
		require.Equal(t, "gateway/edge", e.Owner.String())
		_, err = c.client(leader).DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{
			Writer: gatewayWriter("edge", 1, 2), Ids: []string{"oz-relayer-0"},
		})
		require.NoError(t, err)
		c.await("given back", func() bool {
			e, ok := c.nodes[leader].Directory().State().Get("oz-relayer-0")
			return ok && e.Owner == fsm.Static
		})

		// After a restart one by one with a count of two, the fleet must be two, whichever node leads.
		count = 2
		for _, p := range c.peers {
			stores := c.nodes[p.ID].stores
			c.stop(p.ID)
			c.start(p.ID, stores)
			c.leader()
		}
		c.await("two relayers", size(2))
	})
}
