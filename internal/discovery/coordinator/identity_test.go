package coordinator_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// refound founds a new cluster of all nodes but the keeper, which the operator believes to be lost.
func (c *simCluster) refound(without *[]string, keeper string) {
	*without = []string{keeper}
	for _, p := range c.peers {
		if p.ID != keeper {
			c.wipe(p.ID)
		}
	}
	*without = nil
	c.register("new")
}

// Two of three nodes lose their disks while the third is away, and found a new cluster. The third's log agrees with
// theirs in index and term, so Raft alone would accept it. The node must refuse to join.
func TestNode_LogOfAFormerCluster_RefusesToJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var without []string
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.BootstrapWithout = without })
		c.register("old-1")
		c.register("old-2")
		keeper := c.follower()
		stores := c.nodes[keeper].stores
		before := c.storedIdentity(keeper)
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		c.refound(&without, keeper)
		leader, _ := c.leader()
		after := c.storedIdentity(leader)
		require.NotEqual(t, before, after)
		last, err := stores.Log.LastIndex()
		require.NoError(t, err)

		c.start(keeper, stores)
		err = <-c.nodes[keeper].done
		require.ErrorContains(t, err, "holds cluster "+before)
		require.ErrorContains(t, err, "holds cluster "+after)
		require.Empty(t, c.nodes[keeper].Directory().State().Cluster(), "Raft did not run")
		now, err := stores.Log.LastIndex()
		require.NoError(t, err)
		require.Equal(t, last, now, "its own state is unchanged")

		// It must join once the operator empties its folder, as the message instructs.
		delete(c.nodes, keeper)
		c.wipe(keeper)
		c.await("it votes", func() bool { return c.suffrage(keeper) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
		c.await("it has all", func() bool { return c.nodes[keeper].Directory().State().Len() == 1 })
	})
}

// An identity without a log, which an interrupted start leaves, must not stay.
func TestFounding_IdentityWithoutLog_IsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		for _, p := range c.peers {
			stores := memStores()
			require.NoError(t, raftstore.Set(stores.Stable, raftstore.KeyCluster, "former"))
			c.start(p.ID, stores)
		}
		for id := range c.nodes {
			c.waitUntil("founded", func() bool { return c.founded(id) })
			require.NotEqual(t, "former", c.storedIdentity(id))
		}
		c.register("a")
	})
}

// Two of three nodes lose their disks while the third is only cut off, and found a new cluster. When the sides meet,
// Raft must not connect them. The one without a leader ends, and counts for no quorum meanwhile.
func TestNode_TwoClustersMeet_StayApart(t *testing.T) {
	for _, leads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var without []string
			c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.BootstrapWithout = without })
			c.register("old-1")
			leader, _ := c.leader()
			keeper := leader
			if !leads {
				keeper = c.follower()
			}
			before := c.nodes[keeper].Directory().State().Cluster()
			c.await("it has all", func() bool { return c.nodes[keeper].Directory().State().Len() == 1 })
			c.net.Isolate(keeper)
			for _, p := range c.peers {
				if p.ID != keeper {
					c.stop(p.ID)
					c.net.Reset(p.ID)
				}
			}
			c.refound(&without, keeper)
			c.net.Heal()
			now, _ := c.leader()
			for id := range c.nodes {
				if id != keeper && id != now {
					_, err := c.admin(now).RemoveMember(t.Context(), &rollcallv1.RemoveMemberRequest{Id: id})
					require.Equal(t, codes.FailedPrecondition, status.Code(err))
				}
			}
			pass(time.Minute)
			c.register("newer")
			kept := c.nodes[keeper]
			require.ErrorContains(t, <-kept.done, "holds cluster "+before)
			require.Equal(t, 1, kept.Directory().State().Len())
			delete(c.nodes, keeper)
			for id, n := range c.nodes {
				require.NotEqual(t, before, n.Directory().State().Cluster())
				c.await("it has all", func() bool { return n.Directory().State().Len() == 2 })

				// A restart beside the node that stayed behind is no reason to end.
				stores := n.stores
				c.stop(id)
				c.start(id, stores)
				c.await("it has all again", func() bool { return c.nodes[id].Directory().State().Len() == 2 })
			}
		})
	}
}
