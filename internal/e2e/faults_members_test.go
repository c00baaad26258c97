package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// awaitReady waits until the node reports that it is ready.
func (c *cluster) awaitReady(n *node) {
	c.t.Helper()
	eventually(c.t, patience, func() bool { return n.get(c.t, "/readyz") == 200 }, "%s is ready", n.id)
}

// transfer makes a coordinator the leader. It repeats the command if needed. On a busy machine the target may be too
// slow, or the connection to it may still be the one from before a restart.
func (c *cluster) transfer(to string) {
	c.t.Helper()
	eventually(c.t, patience, func() bool { _, _, code := c.cli("cluster", "transfer", to); return code == 0 }, "a transfer to %s", to)
}

func TestClusterGrowsToFiveAndShrinksToThree(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{})
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	stop := c.watchSet(ids...)
	voters := func(n int) func() bool {
		return func() bool {
			list := c.members().Members
			for _, m := range list {
				if !m.Voter || !m.Reachable {
					return false
				}
			}
			return len(list) == n
		}
	}
	for _, id := range []string{"coordinator-4", "coordinator-5"} {
		n := c.define(id)
		c.start(id)
		eventually(t, patience, func() bool { _, _, code := c.cli("cluster", "add", id, n.address); return code == 0 }, "%s is added", id)
	}
	eventually(t, patience, voters(5), "five voters")

	// Five survive the loss of two at once, one of them the leader.
	leader, epoch := c.leader()
	lost := c.follower()
	leader.kill()
	lost.kill()
	_, _ = c.leaderAfter(epoch)
	c.registerBulk(0)
	for _, n := range []*node{leader, lost} {
		c.start(n.id)
	}
	eventually(t, patience, voters(5), "five again")

	// A leader can also be removed.
	leader, epoch = c.leader()
	next := c.follower()
	for _, n := range []*node{leader, next} {
		c.mustCLI("cluster", "remove", n.id)
		require.Zero(t, n.stop())
		c.ids = slices.DeleteFunc(c.ids, func(id string) bool { return id == n.id })
		c.leader()
	}
	eventually(t, patience, voters(3), "three voters")
	_, _ = c.leaderAfter(epoch)
	c.registerBulk(1)
	require.Len(t, c.directory(), len(ids)+16)
	c.awaitActive(patience, ids...)
	stop()
}

// The target of a transfer dies or freezes during it: the cluster accepts writes again within seconds.
func TestInterruptedTransferLeavesAWritableCluster(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(*process){"killed": (*process).kill, "paused": (*process).pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relayers, ids := fleet(t, 2)
			c := startCluster(t, options{})
			c.register(relayers...)
			c.awaitActive(patience, ids...)
			stop := c.watchSet(ids...)
			for round := range 3 {
				target := c.follower()
				interrupted := make(chan struct{})
				if name == "paused" { // and before it receives the request
					interrupt(target.process)
				}
				go func() {
					defer close(interrupted)
					c.cli("cluster", "transfer", target.id, "--timeout", "3s") // with any result
				}()
				if name == "killed" {
					eventually(t, patience, func() bool {
						return len(target.logged("received leadership transfer request")) > round || asked(interrupted)
					}, "the transfer")
					interrupt(target.process)
				}
				begun := time.Now()
				c.registerBulk(round)
				t.Logf("round %d: written %v after the interruption", round, time.Since(begun).Round(time.Millisecond))
				require.Less(t, time.Since(begun), 15*time.Second)
				<-interrupted
				c.registerBulk(round + 100)
				if name == "killed" {
					c.start(target.id)
				} else {
					target.resume()
				}
				c.awaitReady(target)
			}
			c.awaitActive(patience, ids...)
			stop()
		})
	}
}

func asked(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A restored snapshot replaces the directory, on all nodes and in Redis, under a new epoch.
func TestSnapshotIsRestored(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	c := startCluster(t, options{})
	c.register(relayers[:2]...)
	c.awaitActive(patience, ids[:2]...)
	file := filepath.Join(t.TempDir(), "directory.snapshot")
	require.Contains(t, c.mustCLI("cluster", "snapshot", file), file)

	c.mustCLI("services", "deregister", ids[0])
	c.register(relayers[2])
	c.awaitActive(patience, ids[1:]...)
	_, epoch := c.leader()
	stop := c.watchSet(ids[1])
	require.Contains(t, c.mustCLI("cluster", "restore", file), "restored 2 services")
	c.awaitActive(patience, ids[:2]...)
	stop()
	stop = c.watchSet(ids[:2]...)
	require.Equal(t, ids[:2], c.directory())
	leader, after := c.leaderAfter(epoch)
	c.awaitEpochInRedis(after)

	// Each node has it, also after a restart from disk and under another leader.
	require.Zero(t, leader.stop())
	_, _ = c.leaderAfter(after)
	require.Equal(t, ids[:2], c.directory())
	c.awaitReady(c.start(leader.id))
	c.transfer(leader.id)
	require.Equal(t, ids[:2], c.directory())
	_, last := c.leaderAfter(after)
	c.awaitEpochInRedis(last)
	c.awaitActive(patience, ids[:2]...)
	stop()

	// A snapshot of another cluster is rejected without --allow-foreign.
	other := startCluster(t, options{size: 1})
	other.leader()
	_, said, code := other.cli("cluster", "restore", file)
	require.Equal(t, 1, code)
	require.Contains(t, said, "--allow-foreign")
	require.Empty(t, other.directory())
	require.Contains(t, other.mustCLI("cluster", "restore", "--allow-foreign", file), fmt.Sprintf("restored %d services", 2))
	require.Equal(t, ids[:2], other.directory())
}
