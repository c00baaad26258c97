package coordinator_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Two of three nodes lose their disks while the third is away, and found a new cluster. The third's log agrees with
// theirs in index and term, so Raft alone would accept it. The node must refuse to join.
func TestNodeOfAFormerClusterTakesNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDiskCluster(t, 3)
		c.register("old-1")
		c.register("old-2")
		keeper := c.follower()
		pass(10 * time.Second) // it has stored the cluster's name
		stores := c.nodes[keeper].stores
		before := c.nodes[keeper].Directory().State().Cluster()
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		for _, p := range c.peers {
			if p.ID != keeper {
				c.wipe(p.ID)
			}
		}
		c.register("new")
		leader, _ := c.leader()
		after := c.nodes[leader].Directory().State().Cluster()
		last, err := stores.Log.LastIndex()
		require.NoError(t, err)

		c.start(keeper, stores)
		err = <-c.nodes[keeper].done
		require.ErrorContains(t, err, "the data folder "+c.folder(keeper)+" holds cluster "+before)
		require.ErrorContains(t, err, "belongs to cluster "+after)
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

// A cluster founded again in a folder with the former cluster's name must use its own name.
func TestFormerNameIsForgottenWithTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newDiskCluster(t, 3)
		for _, p := range c.peers {
			c.stop(p.ID)
			require.NoError(t, os.WriteFile(filepath.Join(c.folder(p.ID), "cluster"), []byte("former"), 0o600))
			c.start(p.ID, nil)
		}
		for id, n := range c.nodes {
			c.waitUntil("founded", func() bool { last, _ := n.stores.Log.LastIndex(); return last > 0 })
			name, _ := os.ReadFile(filepath.Join(c.folder(id), "cluster"))
			require.NotEqual(t, "former", string(name))
		}
		c.register("a")
	})
}

// foreign returns a snapshot of another cluster, in an epoch.
func foreign(t *testing.T, epoch uint64) []byte { return foreignAt(t, epoch, 5) }

func foreignAt(t *testing.T, epoch, index uint64) []byte {
	var snapshot bytes.Buffer
	far := fsm.New()
	establish, err := proto.Marshal(&rollcallv1.Command{Operations: []*rollcallv1.Operation{{
		Kind: &rollcallv1.Operation_LeaderEstablished{LeaderEstablished: &rollcallv1.LeaderEstablished{Cluster: "another", AtLeast: epoch}},
	}}})
	require.NoError(t, err)
	far.Apply(&raft.Log{Index: index, Data: establish})
	require.NoError(t, far.State().WriteSnapshot(&snapshot))
	return snapshot.Bytes()
}

// A restored snapshot changes the cluster's name. A node that stops afterwards has stored the new name. A node that
// dies must find the name in the snapshot.
func TestNodeStartsAfterAnotherClustersSnapshot(t *testing.T) {
	for name, dies := range map[string]bool{"stops": false, "dies": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newDiskCluster(t, 3)
				c.register("a")
				pass(10 * time.Second) // the former name is stored
				former := c.nodes["c1"].Directory().State().Cluster()
				leader, _ := c.leader()
				_, err := c.restore(leader, foreign(t, 1), true)
				require.NoError(t, err)
				for _, p := range c.peers {
					c.waitUntil("restored", func() bool { return c.nodes[p.ID].Directory().State().Cluster() == "another" })
				}
				for _, p := range c.peers {
					stores := c.nodes[p.ID].stores
					c.stop(p.ID)
					if dies {
						require.NoError(t, os.WriteFile(filepath.Join(c.folder(p.ID), "cluster"), []byte(former), 0o600))
					}
					c.start(p.ID, stores)
					c.leader()
				}
				c.register("b")
				require.Len(t, c.nodes, 3)
				for id, n := range c.nodes {
					c.await("the same on "+id, func() bool { return n.Directory().State().Len() == 1 })
				}
			})
		})
	}
}

// Two of three nodes lose their disks while the third is only cut off, and found a new cluster. When the sides meet,
// one must end with an error.
func TestNodesOfTwoClustersDoNotStayTogether(t *testing.T) {
	for _, leads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newDiskCluster(t, 3)
			c.register("old-1")
			leader, _ := c.leader()
			keeper := leader
			if !leads {
				keeper = c.follower()
			}
			c.net.Isolate(keeper)
			for _, p := range c.peers {
				if p.ID != keeper {
					c.stop(p.ID)
					c.net.Reset(p.ID)
				}
			}
			for _, p := range c.peers {
				if p.ID != keeper {
					c.wipe(p.ID)
				}
			}
			c.register("new")
			c.net.Heal()
			var ended []error
			for range 60 {
				pass(time.Second)
				for id, n := range c.nodes {
					select {
					case err := <-n.done:
						require.ErrorContains(t, err, "holds cluster")
						ended = append(ended, err)
						delete(c.nodes, id)
					default:
					}
				}
			}
			require.NotEmpty(t, ended)
			for _, n := range c.nodes {
				for _, other := range c.nodes {
					require.Equal(t, n.Directory().State().Cluster(), other.Directory().State().Cluster())
				}
			}
		})
	}
}
