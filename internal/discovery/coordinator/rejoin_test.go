package coordinator_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// wipe starts a stopped node again with an empty disk.
func (c *simCluster) wipe(id string) { c.start(id, nil) }

// waits reports whether a node has stored that it waits for a vote.
func (c *simCluster) waits(id string) bool {
	mark, err := raftstore.Get(c.nodes[id].stores.Stable, raftstore.KeyRejoining)
	require.NoError(c.t, err)
	return mark != ""
}

// kill stops a node without any further message from it.
func (c *simCluster) kill(id string) {
	c.net.Isolate(id)
	c.stop(id)
	c.net.Reset(id) // its last messages are lost
	c.net.Heal()
}

// add adds a node that was not a founder, and waits until it votes.
func (c *simCluster) add(id string) {
	c.start(id, nil)
	c.await("added "+id, func() bool {
		leader, _ := c.leader()
		_, err := c.admin(leader).AddMember(c.t.Context(), &rollcallv1.AddMemberRequest{Id: id, Address: id + ":7400"})
		return err == nil
	})
	c.await(id+" votes", func() bool { return c.suffrage(id) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
}

// waitUntil polls a condition of the nodes every millisecond.
func (c *simCluster) waitUntil(what string, condition func() bool) {
	c.t.Helper()
	for range 60_000 {
		if condition() {
			return
		}
		pass(time.Millisecond)
	}
	require.FailNow(c.t, "gave up waiting", what)
}

// written returns a member's suffrage in the newest configuration of a log, committed or not.
func written(t *testing.T, stores *coordinator.Stores, id string) (s raft.ServerSuffrage, member bool) {
	last, err := stores.Log.LastIndex()
	require.NoError(t, err)
	for ; last > 0; last-- {
		var entry raft.Log
		if err := stores.Log.GetLog(last, &entry); err != nil || entry.Type != raft.LogConfiguration {
			continue
		}
		for _, server := range raft.DecodeConfiguration(entry.Data).Servers {
			if string(server.ID) == id {
				return server.Suffrage, true
			}
		}
		return 0, false
	}
	return 0, false
}

// rejoinSteps are the steps of a wiped node, in order. leader is the leader at the beginning.
var rejoinSteps = []struct {
	name string
	done func(c *simCluster, leader, victim string) bool
}{
	{"it listens", func(*simCluster, string, string) bool { return true }},
	{"it has noted that it waits", func(c *simCluster, _, victim string) bool { return c.waits(victim) }},
	{"its vote is taken", func(c *simCluster, leader, victim string) bool {
		s, _ := written(c.t, c.nodes[leader].stores, victim)
		return s == raft.Nonvoter
	}},
	{"it remembers the term", func(c *simCluster, _, victim string) bool {
		term, _ := c.nodes[victim].stores.Stable.GetUint64([]byte("CurrentTerm"))
		return term > 0
	}},
	{"it has the log", func(c *simCluster, _, victim string) bool { return c.nodes[victim].Directory().State().Len() > 0 }},
	{"it is given its vote", func(c *simCluster, leader, victim string) bool {
		s, _ := written(c.t, c.nodes[leader].stores, victim)
		return s == raft.Voter
	}},
}

// wipedMember returns a cluster of five in which one node was just started with an empty disk. The node is a founder,
// or one that was added later and is in no peer list.
func wipedMember(t *testing.T, seed uint64, founder bool) (c *simCluster, leader, victim string, random *rand.Rand) {
	random = rand.New(rand.NewPCG(seed, 1))
	if founder {
		c = newSimCluster(t, 5, nil)
		victim = c.follower()
	} else {
		c = newSimCluster(t, 3, nil)
		c.add("c4")
		c.add("c5")
		victim = "c4"
		c.await("another leads", func() bool {
			leader, _ := c.leader()
			if leader == victim {
				_, _ = c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{})
			}
			return leader != victim
		})
	}
	c.register("a", "b")
	leader, _ = c.leader()
	c.stop(victim)
	c.net.SetLatency(time.Duration(1+random.IntN(10)) * time.Millisecond)
	c.wipe(victim)
	return c, leader, victim, random
}

// whole waits until a wiped node votes again, and checks that it holds the cluster's earlier state.
func (c *simCluster) whole(victim string) {
	c.t.Helper()
	c.await("it votes", func() bool { return c.suffrage(victim) == rollcallv1.Suffrage_SUFFRAGE_VOTER })
	c.await("it has all", func() bool { return c.nodes[victim].Directory().State().Len() == 2 })
	c.await("it waits for nothing", func() bool { return !c.waits(victim) })
	for id, n := range c.nodes {
		c.await("the same cluster on "+id, func() bool {
			return n.Directory().State().Cluster() == c.nodes[victim].Directory().State().Cluster()
		})
	}
}

func forEachRejoinStep(t *testing.T, scenario func(t *testing.T, step int, seed uint64, founder bool)) {
	for i, step := range rejoinSteps {
		for _, founder := range []bool{true, false} {
			if step.name == "it has noted that it waits" && !founder {
				continue // it is notified right before its vote is taken
			}
			seeds := 1
			if founder {
				seeds = 2
			}
			for seed := range seeds {
				t.Run(fmt.Sprintf("%s/founder=%t/seed=%d", step.name, founder, seed), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { scenario(t, i, uint64(seed), founder) })
				})
			}
		}
	}
}

func TestRejoin_LeaderDiesAtAnyStep_SuccessorReturnsTheVote(t *testing.T) {
	forEachRejoinStep(t, func(t *testing.T, step int, seed uint64, founder bool) {
		c, leader, victim, random := wipedMember(t, seed, founder)
		for _, s := range rejoinSteps[:step+1] {
			c.waitUntil(s.name, func() bool { return s.done(c, leader, victim) })
		}
		pass(time.Duration(random.IntN(4)) * time.Millisecond)
		c.kill(leader)
		c.whole(victim)
	})
}

// If the wiped node is restarted or wiped again at any step, it must continue from its remaining state.
func TestRejoin_WipedNodeRestartsAtAnyStep_Continues(t *testing.T) {
	forEachRejoinStep(t, func(t *testing.T, step int, seed uint64, founder bool) {
		c, leader, victim, random := wipedMember(t, seed, founder)
		for _, s := range rejoinSteps[:step+1] {
			c.waitUntil(s.name, func() bool { return s.done(c, leader, victim) })
		}
		pass(time.Duration(random.IntN(30)) * time.Millisecond)
		stores := c.nodes[victim].stores
		c.stop(victim)
		if founder && seed%2 == 1 {
			c.wipe(victim)
		} else {
			c.start(victim, stores)
		}
		c.whole(victim)
	})
}

// A node added as a voter must get its vote although the leader that added it dies.
func TestAddMember_LeaderDies_AddedNodeGetsItsVote(t *testing.T) {
	for seed := range 2 {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newSimCluster(t, 3, nil)
				c.register("a", "b")
				c.net.SetLatency(time.Duration(1+2*seed) * time.Millisecond)
				c.start("c4", nil)
				leader, _ := c.leader()
				admin := c.admin(leader)
				added := make(chan struct{})
				go func() {
					defer close(added)
					for {
						_, err := admin.AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: "c4", Address: "c4:7400"})
						if status.Code(err) != codes.FailedPrecondition { // it responds already
							return
						}
						pass(20 * time.Millisecond)
					}
				}()
				c.waitUntil("it is a member", func() bool {
					s, member := written(t, c.nodes[leader].stores, "c4")
					require.NotEqual(t, raft.Voter == s, member, "it begins without a vote")
					return member
				})
				pass(20 * time.Millisecond) // the others have that too
				c.kill(leader)
				<-added
				c.whole("c4")
			})
		})
	}
}

func TestAddMember_LeaderOutsideThePeerList_AddedNodeFindsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		c.add("c5")
		c.await("it leads", func() bool {
			leader, _ := c.leader()
			if leader != "c5" {
				_, _ = c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: "c5"})
			}
			return leader == "c5"
		})
		c.add("c4")
		c.whole("c4")
	})
}

// A forged rejoin must not take the vote of a member with its disk, or give a vote to a non-voter.
func TestRejoin_ForgedRequest_ChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		c.start("c4", nil)
		leader, _ := c.leader()
		c.await("added", func() bool {
			_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: "c4", Address: "c4:7400", NonVoter: true})
			return err == nil
		})
		c.await("it follows", func() bool { return c.nodes["c4"].Directory().State().Len() == 1 })

		forge := func(req *rollcallv1.RejoinRequest) error {
			_, err := rollcallv1.NewPeerServiceClient(c.conns[leader]).Rejoin(t.Context(), req)
			return err
		}
		err := forge(&rollcallv1.RejoinRequest{Node: c.follower(), Address: "thief:7400", Empty: true})
		require.ErrorContains(t, err, "has not lost its disk")
		err = forge(&rollcallv1.RejoinRequest{Node: leader, Address: leader + ":7400", Empty: true})
		require.ErrorContains(t, err, "leads, and has not lost its disk")
		for range 3 {
			err = forge(&rollcallv1.RejoinRequest{Node: "c4", Address: "c4:7400"})
			require.ErrorContains(t, err, "does not wait for a vote")
		}
		err = forge(&rollcallv1.RejoinRequest{Node: "c6", Address: "c6:7400", Empty: true})
		require.Equal(t, codes.NotFound, status.Code(err))

		c.stop("c4")
		err = forge(&rollcallv1.RejoinRequest{Node: "c4", Address: "elsewhere:7400", Empty: true})
		require.ErrorContains(t, err, "does not answer at c4:7400; if it has moved: rollcall cluster add c4 elsewhere:7400")
		for _, p := range c.peers {
			s, _ := written(t, c.nodes[leader].stores, p.ID)
			require.Equal(t, raft.Voter, s)
		}
		s, _ := written(t, c.nodes[leader].stores, "c4")
		require.Equal(t, raft.Nonvoter, s)
	})
}

// raftDialer connects to the nodes' Raft from outside.
type raftDialer struct {
	c       *simCluster
	cluster string
	done    chan struct{}
}

func (d raftDialer) Accept() (net.Conn, error) { <-d.done; return nil, net.ErrClosed }
func (d raftDialer) Close() error              { close(d.done); return nil }
func (d raftDialer) Addr() net.Addr            { return &net.TCPAddr{} }

func (d raftDialer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.c.t.Context(), timeout)
	defer cancel()
	conn, err := d.c.net.Dial(ctx, "outside", string(address))
	if err == nil {
		_, err = fmt.Fprintf(conn, "rollcall-raft/1\n%c%s", len(d.cluster), d.cluster)
	}
	return conn, err
}

// A delayed vote request must be refused in a term in which the node may have voted before it lost its disk.
func TestRejoin_DelayedVoteRequest_WipedNodeGivesNoSecondVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader, victim, _ := wipedMember(t, 0, true)
		c.waitUntil("raft has started", func() bool { return c.nodes[victim].Directory().State().Len() > 0 })
		term, err := c.nodes[leader].stores.Stable.GetUint64([]byte("CurrentTerm"))
		require.NoError(t, err)

		transport := raft.NewNetworkTransport(raftDialer{c, c.storedIdentity(leader), make(chan struct{})}, 1, time.Second, io.Discard)
		defer transport.Close()
		defer transport.CloseStreams()
		for _, p := range c.peers {
			if p.ID == leader || p.ID == victim {
				continue
			}
			req := &raft.RequestVoteRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(p.ID), Addr: []byte(p.Address)},
				Term:      term, LastLogTerm: term, LastLogIndex: 1_000_000, LeadershipTransfer: true,
			}
			var resp raft.RequestVoteResponse
			require.NoError(t, transport.RequestVote(raft.ServerID(victim), raft.ServerAddress(victim+":7400"), req, &resp))
			require.False(t, resp.Granted, p.ID)
			req.Term--
			require.NoError(t, transport.RequestVote(raft.ServerID(victim), raft.ServerAddress(victim+":7400"), req, &resp))
			require.False(t, resp.Granted, "an older term")
		}
		c.whole(victim)
	})
}

// Two of three nodes lost their disks. They must found no new cluster while the third has its disk, even if one of
// them knows the third only through the other.
func TestFounding_TwoOfThreeWiped_FoundNoCluster(t *testing.T) {
	for _, seed := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newSimCluster(t, 3, nil)
				c.register("a", "b")
				keeper, _ := c.leader()
				cluster := c.nodes[keeper].Directory().State().Cluster()
				var wiped []string
				for _, p := range c.peers {
					if p.ID != keeper {
						wiped = append(wiped, p.ID)
						c.stop(p.ID)
					}
				}
				c.wipe(wiped[0])
				pass(time.Duration(1+seed*4) * time.Second)
				stores := c.nodes[keeper].stores
				c.stop(keeper)
				if seed == 2 { // it has lost its memory, but not its folder
					mem := c.nodes[wiped[0]].stores
					c.stop(wiped[0])
					c.start(wiped[0], mem)
				}
				c.wipe(wiped[1])
				pass(time.Minute)
				for _, id := range wiped {
					require.Empty(t, c.nodes[id].Directory().State().Cluster())
					require.Error(t, c.nodes[id].Ready())
					last, err := c.nodes[id].stores.Log.LastIndex()
					require.NoError(t, err)
					require.Zero(t, last, "%s founded a cluster", id)
				}

				// The node with its state returns alone, and later the disk of another node is found.
				c.start(keeper, stores)
				pass(time.Minute)
				for _, id := range wiped {
					require.Empty(t, c.nodes[id].Directory().State().Cluster())
				}
				c.stop(wiped[1])
				c.start(wiped[1], copyOf(t, stores))
				c.whole(wiped[0])
				require.Equal(t, cluster, c.nodes[keeper].Directory().State().Cluster())
			})
		})
	}
}

// copyOf returns a backup of a node's disk: the log of another node with the same content.
func copyOf(t *testing.T, of *coordinator.Stores) *coordinator.Stores {
	s := memStores()
	last, err := of.Log.LastIndex()
	require.NoError(t, err)
	for i := uint64(1); i <= last; i++ {
		var entry raft.Log
		require.NoError(t, of.Log.GetLog(i, &entry))
		require.NoError(t, s.Log.StoreLog(&entry))
	}
	term, err := of.Stable.GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.NoError(t, s.Stable.SetUint64([]byte("CurrentTerm"), term))
	cluster, err := raftstore.Get(of.Stable, raftstore.KeyCluster)
	require.NoError(t, err)
	require.NoError(t, raftstore.Set(s.Stable, raftstore.KeyCluster, cluster))
	return s
}

// A node with a record of its cluster must found no other, although its peers are empty and have no record.
func TestFounding_NodeWaitsForItsVote_FoundsNoCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var output bytes.Buffer
		log := slog.New(slog.NewTextHandler(&output, nil)) // locks for itself
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = log })
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		waiting := memStores()
		require.NoError(t, raftstore.Set(waiting.Stable, raftstore.KeyRejoining, "yes"))
		c.start("c2", nil)
		c.start("c3", nil)
		pass(2 * time.Second)
		c.start("c1", waiting) // it finds both peers empty before they reach it
		pass(time.Minute)
		for id, n := range c.nodes {
			last, err := n.stores.Log.LastIndex()
			require.NoError(t, err)
			require.Zero(t, last, "%s founded a cluster", id)
		}
		synctest.Wait()
		require.Contains(t, output.String(), "stop all, empty all their data folders, start them, restart all gateways, and then run: rollcall mirror take-over",
			"a running gateway accepts only the former cluster")
		// The operator gives up as the log instructs: all nodes are stopped before the first is emptied. Otherwise an
		// emptied node might learn from a waiting one that there is a cluster.
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		for _, p := range c.peers {
			c.wipe(p.ID)
		}
		c.register("a")
	})
}

// A node elected right after it got its vote, before it received the response, must stop waiting for the vote.
func TestRejoin_ElectedBeforeTheResponse_StopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		leader, _ := c.leader()
		c.client(leader)
		peer := rollcallv1.NewPeerServiceClient(c.conns[leader])
		own, err := peer.Describe(t.Context(), &rollcallv1.DescribeRequest{})
		require.NoError(t, err)
		_, err = peer.Invite(t.Context(), &rollcallv1.InviteRequest{Node: leader, Cluster: own.Cluster, Vote: true})
		require.NoError(t, err)
		require.True(t, c.waits(leader))
		c.whole(leader)
		now, _ := c.leader()
		require.Equal(t, leader, now)
	})
}

// All nodes lost their disks, and two of them found a new cluster without the third, which must join it.
func TestFounding_AllWipedAndOneLate_LateNodeJoins(t *testing.T) {
	for _, late := range []time.Duration{0, 50 * time.Millisecond, 3 * time.Second, time.Minute} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var without []string
				c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.BootstrapWithout = without })
				c.register("old")
				before := c.nodes["c1"].Directory().State().Cluster()
				for _, p := range c.peers {
					c.stop(p.ID)
				}
				without = []string{"c3"}
				c.wipe("c1")
				c.wipe("c2")
				pass(late)
				without = nil
				c.wipe("c3")
				// A node that starts during the founding may cost the first leader its leadership, and a write its
				// answer.
				c.await("written", func() bool { return c.write("a", "b") == nil })
				c.whole("c3")
				require.NotEqual(t, before, c.nodes["c3"].Directory().State().Cluster())
				c.stop("c1") // the other two are a quorum
				c.register("c")
			})
		})
	}
}
