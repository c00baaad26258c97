package coordinator_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// founded reports whether a node has bootstrapped.
func (c *simCluster) founded(id string) bool {
	last, err := c.nodes[id].stores.Log.LastIndex()
	require.NoError(c.t, err)
	return last > 0
}

// storedIdentity returns the identity in a node's store.
func (c *simCluster) storedIdentity(id string) string {
	cluster, err := raftstore.Get(c.nodes[id].stores.Stable, raftstore.KeyCluster)
	require.NoError(c.t, err)
	return cluster
}

// Founders must wait for the last one however long it takes, and hear of it before an election is possible. A founder
// that reaches the others after they have a leader is late, and would have no vote at first.
func TestFounding_WaitsForEveryPeer(t *testing.T) {
	for _, after := range []time.Duration{10, 210, 800, 1290, 1700, 2330, 60_000} {
		after *= time.Millisecond
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var output bytes.Buffer
				log := slog.New(slog.NewJSONHandler(&output, nil)) // locks for itself
				c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = log })
				for _, p := range c.peers {
					c.stop(p.ID)
				}
				output.Reset()
				c.start("c1", nil)
				c.start("c2", nil)
				pass(after)
				require.False(t, c.founded("c1") || c.founded("c2"))
				synctest.Wait()
				logged := bytes.Count(output.Bytes(), []byte(`"missing":"c3"`))
				require.InDelta(t, 2*int(after/(10*time.Second)), logged, 2, "each founder says it every 10 s: %s", &output)
				require.Equal(t, after > 10*time.Second, logged > 0)
				started := time.Now()
				c.start("c3", nil)
				for id := range c.nodes {
					c.waitUntil("founded by "+id, func() bool { return c.founded(id) })
				}
				require.LessOrEqual(t, time.Since(started), 150*time.Millisecond)
				c.leader()
				for id := range c.nodes {
					require.Equal(t, rollcallv1.Suffrage_SUFFRAGE_VOTER, c.suffrage(id))
				}
			})
		})
	}
}

// Two founders without the third, as the operator says, must found a cluster, and the third must join it.
func TestFounding_WithoutOne(t *testing.T) {
	for _, absent := range []string{"c1", "c3"} {
		t.Run(absent, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var without []string
				c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.BootstrapWithout = without })
				for _, p := range c.peers {
					c.stop(p.ID)
				}
				without = []string{absent}
				for _, p := range c.peers {
					if p.ID != absent {
						c.start(p.ID, nil)
					}
				}
				c.register("a")
				without = nil
				c.start(absent, nil)
				c.await("it votes", func() bool { return c.suffrage(absent) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
				c.await("it has all", func() bool { return c.nodes[absent].Directory().State().Len() == 1 })
			})
		})
	}
}

// All founders must have the same identity on their disks before Raft runs, and the directory must have it as its name.
func TestFounding_IdentityIsStoredFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		for _, p := range c.peers {
			c.waitUntil("founded", func() bool { return c.founded(p.ID) })
			require.NotEmpty(t, c.storedIdentity(p.ID))
			require.Equal(t, c.storedIdentity("c1"), c.storedIdentity(p.ID))
		}
		c.register("a")
		for id, n := range c.nodes {
			c.await("the name", func() bool { return n.Directory().State().Cluster() == c.storedIdentity(id) })
		}
	})
}

// A founder that stops at any time within the founding must come back to the same cluster.
func TestFounding_FounderRestarts(t *testing.T) {
	for ms := range 30 {
		synctest.Test(t, func(t *testing.T) {
			c := newSimCluster(t, 3, nil)
			for _, p := range c.peers {
				c.stop(p.ID)
			}
			c.net.SetLatency(5 * time.Millisecond)
			for _, p := range c.peers {
				c.start(p.ID, nil)
			}
			pass(time.Duration(ms*10) * time.Millisecond)
			for _, p := range c.peers[:1+ms%2] {
				stores := c.nodes[p.ID].stores
				c.stop(p.ID)
				pass(time.Duration(ms) * time.Millisecond)
				c.start(p.ID, stores)
			}
			c.await("written", func() bool { return c.write("a") == nil })
			for id, n := range c.nodes {
				c.await(id+" has all", func() bool { return n.Directory().State().Len() == 1 })
				require.Equal(t, c.storedIdentity("c1"), c.storedIdentity(id))
			}
		})
	}
}

// The excluded founder runs after all, and reaches the others at the same time as they reach each other. All must found
// one cluster.
func TestFounding_ExcludedOneRuns_OneCluster(t *testing.T) {
	for _, excluded := range []string{"c1", "c3"} {
		t.Run(excluded, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var without []string
				c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
					if cfg.ID != excluded {
						cfg.BootstrapWithout = without
					}
				})
				for _, p := range c.peers {
					c.stop(p.ID)
				}
				without = []string{excluded}
				c.start(excluded, nil)
				c.start("c2", nil)
				pass(time.Second)
				for _, p := range c.peers {
					if c.nodes[p.ID] == nil {
						c.start(p.ID, nil)
					}
				}
				c.register("a")
				for id, n := range c.nodes {
					c.await(id+" votes", func() bool { return c.suffrage(id) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
					c.await(id+" has all", func() bool { return n.Directory().State().Len() == 1 })
					require.Equal(t, c.storedIdentity("c2"), c.storedIdentity(id))
				}
			})
		})
	}
}

// Founders with different lists of peers would write different first entries.
func TestFounding_PeerListsDiffer_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var other []coordinator.Peer
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			if cfg.ID == "c3" && other != nil {
				cfg.Peers = other
			}
		})
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		other = []coordinator.Peer{c.peers[0], c.peers[2], {ID: "c4", Address: "c4:7400"}}
		for _, p := range c.peers {
			c.start(p.ID, nil)
		}
		// The first coordinator that hears another one refuses. It may have ended before the others hear it; they wait then.
		refusals := map[string]string{
			"c1": "the peers are c1,c2,c3 here and c1,c3,c4 at c3",
			"c2": "the peers are c1,c2,c3 here and c1,c3,c4 at c3",
			"c3": "the peers are c1,c3,c4 here and c1,c2,c3 at c",
		}
		pass(5 * time.Second)
		ended, founded := map[string]error{}, map[string]bool{}
		for id, n := range c.nodes {
			n.cancel()
			ended[id], founded[id] = <-n.done, c.founded(id)
		}
		clear(c.nodes)
		refused := 0
		for id, err := range ended {
			require.False(t, founded[id], id)
			if err != nil {
				require.ErrorContains(t, err, refusals[id])
				require.ErrorContains(t, err, "give all coordinators the same ROLLCALL_PEERS")
				refused++
			}
		}
		require.NotZero(t, refused)
	})
}

// brokenTerm is a stable store that cannot store the term.
type brokenTerm struct{ raft.StableStore }

func (b brokenTerm) SetUint64(key []byte, n uint64) error {
	if string(key) == "CurrentTerm" {
		return errors.New("no space left on device")
	}
	return b.StableStore.SetUint64(key, n)
}

// brokenLog is a log store that cannot store entries.
type brokenLog struct{ raft.LogStore }

func (brokenLog) StoreLog(*raft.Log) error { return errors.New("no space left on device") }

// A founding that is interrupted at one of its writes must be finished by the next start.
func TestFounding_InterruptedWithinBootstrap_GoesOn(t *testing.T) {
	for name, fail := range map[string]func(*coordinator.Stores){
		"at the entry": func(s *coordinator.Stores) { s.Log = brokenLog{s.Log} },
		"at the term":  func(s *coordinator.Stores) { s.Stable = brokenTerm{s.Stable} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newSimCluster(t, 1, nil)
				c.stop("c1")
				whole := memStores()
				broken := *whole
				fail(&broken)
				c.start("c1", &broken)
				require.ErrorContains(t, <-c.nodes["c1"].done, "no space left on device")
				c.start("c1", whole)
				c.register("a")
			})
		})
	}
}

func TestFounding_BootstrapWithoutIsChecked(t *testing.T) {
	for problem, without := range map[string][]string{
		`"c4" is not another one of the peers`: {"c4"},
		`"c1" is not another one of the peers`: {"c1"},
		"2 of 3 peers are a majority":          {"c2", "c3"},
	} {
		cfg := coordinator.Config{ID: "c1", BootstrapWithout: without, Stores: memStores(), Peers: []coordinator.Peer{
			{ID: "c1", Address: "c1:1"}, {ID: "c2", Address: "c2:1"}, {ID: "c3", Address: "c3:1"},
		}}
		_, err := coordinator.Open(t.Context(), cfg)
		require.ErrorContains(t, err, problem)
	}
}
