package coordinator_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func (c *simCluster) ids(id string) (ids []string) {
	for e := range c.nodes[id].Directory().State().All() {
		ids = append(ids, e.ID)
	}
	return ids
}

// foreign returns a snapshot of the cluster "another" in an epoch, whose last command has an index.
func foreign(t *testing.T, epoch, index uint64) []byte {
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

// restore restores a snapshot in the data folder of a stopped node.
func (c *simCluster) restore(id, folder string, snapshot []byte) coordinator.Restored {
	r, err := coordinator.Restore(c.t.Context(), coordinator.RestoreConfig{ID: id, DataDir: folder, Peers: c.peers}, bytes.NewReader(snapshot))
	require.NoError(c.t, err)
	return r
}

// open opens the stores in a data folder for start.
func (c *simCluster) open(folder string) *coordinator.Stores {
	s, err := raftstore.Open(raftstore.Config{Dir: folder, Fatal: func(err error) { panic(err) }})
	require.NoError(c.t, err)
	return &coordinator.Stores{Log: s.Logs(), Stable: s.Stable(), Snapshots: s.Snapshots(), Closer: s}
}

// All nodes must hold the restored directory, in an epoch and at an index above all former ones, and a watch must
// start again.
func TestRestore_EmptyPeersJoin(t *testing.T) {
	for _, size := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				folder := filepath.Join(t.TempDir(), "data")
				c := newSimCluster(t, size, nil)
				c.register("a", "b")
				leader, _ := c.leader()
				name := c.nodes[leader].Directory().State().Cluster()
				identity := c.storedIdentity(leader)
				snapshot := c.takeSnapshot(leader)
				c.register("c")
				watch, err := c.client(leader).WatchServices(t.Context(), &rollcallv1.WatchServicesRequest{})
				require.NoError(t, err)
				var token string
				for token == "" {
					resp, err := watch.Recv()
					require.NoError(t, err)
					token = resp.Token
				}
				leader, epoch := c.leader()
				index := c.nodes[leader].Directory().State().Index()
				for _, p := range c.peers {
					c.stop(p.ID)
				}

				r := c.restore("c1", folder, snapshot)
				require.Equal(t, name, r.Cluster)
				require.Equal(t, 2, r.Services)
				require.Empty(t, r.Former)
				require.Len(t, r.Others, size-1)
				c.start("c1", c.open(folder))
				c.await("it leads", func() bool { leader, _ := c.leader(); return leader == "c1" })
				for _, p := range c.peers[1:] {
					c.wipe(p.ID)
				}
				for id, n := range c.nodes {
					c.await(id+" votes", func() bool { return c.suffrage(id) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
					c.await(id+" is restored", func() bool { return n.Directory().State().Len() == 2 })
					require.Equal(t, []string{"a", "b"}, c.ids(id))
					require.Equal(t, name, n.Directory().State().Cluster())
					require.Greater(t, n.Directory().State().Epoch(), epoch)
					require.Greater(t, n.Directory().State().Index(), index)
					require.NotEqual(t, identity, c.storedIdentity(id))
				}
				again, err := c.client("c1").WatchServices(t.Context(), &rollcallv1.WatchServicesRequest{ResumeToken: token})
				require.NoError(t, err)
				_, err = again.Recv()
				require.Error(t, err, "the changes since the token are unknown")
				c.register("d")
			})
		})
	}
}

// A node that holds the former log must not start beside a restored one, nor be mixed with it if both run.
func TestRestore_PeerKeepsTheFormerLog(t *testing.T) {
	for _, first := range []string{"c1", "c2"} {
		t.Run(first, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				folder := filepath.Join(t.TempDir(), "data")
				c := newSimCluster(t, 3, nil)
				c.register("a")
				leader, _ := c.leader()
				snapshot := c.takeSnapshot(leader)
				c.register("b")
				former := make(map[string]*coordinator.Stores)
				for _, p := range c.peers {
					former[p.ID] = c.nodes[p.ID].stores
					c.stop(p.ID)
				}
				c.restore("c1", folder, snapshot)
				refused := func(id string) {
					t.Helper()
					require.ErrorContains(t, <-c.nodes[id].done, "Stop the coordinators of the one that you give up, empty their data folders")
					delete(c.nodes, id)
				}
				if first == "c1" {
					c.start("c1", c.open(folder))
					c.await("it leads", func() bool { leader, _ := c.leader(); return leader == "c1" })
					for _, id := range []string{"c2", "c3"} {
						c.start(id, former[id])
						refused(id)
						c.wipe(id)
					}
					for id := range c.nodes {
						c.await(id+" is restored", func() bool { return len(c.ids(id)) == 1 })
					}
					return
				}
				// The others elect a leader of the former cluster before the restored node starts.
				c.start("c2", former["c2"])
				c.start("c3", former["c3"])
				c.leader()
				c.start("c1", c.open(folder))
				refused("c1")
				c.await("the former directory", func() bool { return len(c.ids("c2")) == 2 && len(c.ids("c3")) == 2 })
			})
		})
	}
}

// An operator restores a snapshot on several nodes and starts them at once. The cluster that was restored last must remain, and the
// others join it with empty folders.
func TestRestore_OnSeveralNodes_OneClusterRemains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		snapshot := c.takeSnapshot(leader)
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		folders, restored := t.TempDir(), map[string]uint64{}
		for _, p := range c.peers {
			restored[p.ID] = c.restore(p.ID, filepath.Join(folders, p.ID), snapshot).Epoch
			pass(time.Millisecond) // the identities differ by it
		}
		for _, p := range c.peers {
			c.net.Isolate(p.ID) // they must not refuse to start
		}
		for _, p := range c.peers {
			c.start(p.ID, c.open(filepath.Join(folders, p.ID)))
		}
		for _, p := range c.peers {
			c.await(p.ID+" leads", func() bool { return c.nodes[p.ID].Directory().State().Epoch() > restored[p.ID] })
		}
		c.net.Heal()
		for _, id := range []string{"c1", "c2"} {
			c.await(id+" ends", func() bool { return len(c.nodes[id].done) > 0 })
			require.ErrorContains(t, <-c.nodes[id].done, "Stop the coordinators of the one that you give up, empty their data folders")
			delete(c.nodes, id)
		}
		c.wipe("c1")
		c.wipe("c2")
		for id := range c.nodes {
			c.await(id+" votes", func() bool { return c.suffrage(id) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
			c.await(id+" is restored", func() bool { return len(c.ids(id)) == 1 })
		}
		require.Equal(t, c.storedIdentity("c3"), c.storedIdentity("c1"))
	})
}

// An operator forgets to empty the others' folders, and all start at once. The former cluster can never write to Redis, so the
// restored one must stay.
func TestRestore_FormerClusterLeadsToo_RestoredOneStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startBesideFormer(t, nil)
		pass(time.Minute)
		require.Empty(t, c.nodes["c1"].done)
		p, err := c.client("c1").Ping(t.Context(), &rollcallv1.PingRequest{})
		require.NoError(t, err)
		require.Equal(t, "c1", p.Leader.GetNode())
	})
}

// The former cluster must end once its leader finds the restored one's epoch in Redis. An epoch there that no peer leads with must
// end nothing, because a false one would end every cluster.
func TestRestore_FormerClusterFindsEpochInRedis(t *testing.T) {
	for _, tt := range []struct {
		name   string
		stored func(restored uint64) uint64
		ends   bool
	}{
		{"the restored one's", func(restored uint64) uint64 { return restored }, true},
		{"a false one", func(restored uint64) uint64 { return 2 * restored }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stored atomic.Uint64
				c := startBesideFormer(t, func(cfg *coordinator.Config) {
					cfg.Lead = func(ctx context.Context, l coordinator.Leadership) (uint64, error) {
						for l.Node == "c1" || l.Epoch >= stored.Load() {
							select {
							case <-ctx.Done():
								return 0, nil
							case <-time.After(time.Second):
							}
						}
						return stored.Load(), nil
					}
				})
				stored.Store(tt.stored(c.nodes["c1"].Directory().State().Epoch()))
				pass(time.Minute)
				require.Empty(t, c.nodes["c1"].done)
				for _, id := range []string{"c2", "c3"} {
					if tt.ends {
						c.await(id+" ends", func() bool { return len(c.nodes[id].done) > 0 })
						require.ErrorContains(t, <-c.nodes[id].done, "Stop the coordinators of the one that you give up, empty their data folders")
						delete(c.nodes, id)
					} else {
						require.Empty(t, c.nodes[id].done)
					}
				}
			})
		})
	}
}

// startBesideFormer restores c1 of three nodes, and starts the others with their former folders. Both clusters lead.
func startBesideFormer(t *testing.T, configure func(*coordinator.Config)) *simCluster {
	folder := filepath.Join(t.TempDir(), "data")
	c := newSimCluster(t, 3, configure)
	c.register("a")
	leader, _ := c.leader()
	snapshot := c.takeSnapshot(leader)
	former := make(map[string]*coordinator.Stores)
	for _, p := range c.peers {
		former[p.ID] = c.nodes[p.ID].stores
		c.stop(p.ID)
	}
	restored := c.restore("c1", folder, snapshot)
	c.net.Isolate("c1") // it must not refuse to start
	c.start("c1", c.open(folder))
	c.start("c2", former["c2"])
	c.start("c3", former["c3"])
	c.await("it leads", func() bool { return c.nodes["c1"].Directory().State().Epoch() > restored.Epoch })
	c.await("the former cluster leads", func() bool {
		for _, id := range []string{"c2", "c3"} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			p, err := c.client(id).Ping(ctx, &rollcallv1.PingRequest{})
			cancel()
			if err == nil && p.Leader.GetNode() == id {
				return true
			}
		}
		return false
	})
	c.net.Heal()
	return c
}

// The restored epoch must exceed that of an earlier restore of the same file, and never be lower than the file's own.
func TestRestore_EpochAndIndexGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		c.register("a")
		snapshot := c.takeSnapshot("c1")
		folder := filepath.Join(t.TempDir(), "data")
		first := c.restore("c1", folder, snapshot)
		pass(time.Hour)
		second := c.restore("c1", folder, snapshot)
		require.Equal(t, first.Epoch+3_600_000, second.Epoch)
		require.NotEmpty(t, second.Former)

		pass(time.Hour)
		far := uint64(1) << 50
		third := c.restore("c1", folder, foreign(t, far, far))
		require.Equal(t, far, third.Epoch)
		require.Equal(t, "another", third.Cluster)
		c.stop("c1")
		c.start("c1", c.open(folder))
		_, epoch := c.leader()
		require.Equal(t, far+1, epoch)
		c.register("b")
		require.Greater(t, c.nodes["c1"].Directory().State().Index(), far)
	})
}

// A snapshot that was taken within an import must restore the services without it.
func TestRestore_SnapshotWithStagedImport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		c.register("a")
		without := c.takeSnapshot("c1")
		stream := c.beginImport(t.Context(), "c1", importPart(edge, "x"))
		synctest.Wait()
		staged := c.takeSnapshot("c1")
		require.Greater(t, len(staged), len(without)+40)
		_ = stream.CloseSend()
		c.stop("c1")
		folder := filepath.Join(t.TempDir(), "data")
		c.restore("c1", folder, staged)
		c.start("c1", c.open(folder))
		c.await("restored", func() bool { return len(c.ids("c1")) == 1 })
		c.leader()
		c.nothingStaged("c1", without)
	})
}

// Nothing may change if the snapshot is not one, or the node runs.
func TestRestore_RefusalsChangeNothing(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "data")
	peers := []coordinator.Peer{{ID: "c1", Address: "127.0.0.1:1"}}
	cfg := coordinator.RestoreConfig{ID: "c1", DataDir: folder, Peers: peers}
	snapshot := foreign(t, 1, 5)

	for name, content := range map[string][]byte{"empty": nil, "torn": snapshot[:len(snapshot)-1], "no snapshot": []byte("services: []\n")} {
		_, err := coordinator.Restore(t.Context(), cfg, bytes.NewReader(content))
		var damaged *fsm.DecodeError
		require.ErrorAs(t, err, &damaged, name)
		require.NoDirExists(t, folder, name)
	}
	nameless := new(bytes.Buffer)
	require.NoError(t, fsm.New().State().WriteSnapshot(nameless))
	_, err := coordinator.Restore(t.Context(), cfg, nameless)
	require.ErrorContains(t, err, `names the cluster ""`)
	_, err = coordinator.Restore(t.Context(), coordinator.RestoreConfig{ID: "c9", DataDir: folder, Peers: peers}, bytes.NewReader(snapshot))
	require.ErrorContains(t, err, "not among the peers")
	require.NoDirExists(t, folder)

	running, err := coordinator.Open(t.Context(), coordinator.Config{ID: "c1", Listen: "127.0.0.1:0", Peers: peers, DataDir: folder})
	require.NoError(t, err)
	_, err = coordinator.Restore(t.Context(), cfg, bytes.NewReader(snapshot))
	require.ErrorIs(t, err, raftstore.ErrLocked)
	require.NoError(t, running.Close())
	_, err = coordinator.Restore(t.Context(), cfg, bytes.NewReader(snapshot))
	require.NoError(t, err)
}
