package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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

func TestMembers_GrowToFiveAndShrinkToThree(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{env: slowRelayers})
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
func TestTransfer_TargetDiesOrFreezes_ClusterStaysWritable(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(*process){"killed": (*process).kill, "paused": (*process).pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relayers, ids := fleet(t, 2)
			c := startCluster(t, options{env: slowRelayers})
			c.register(relayers...)
			c.awaitActive(patience, ids...)
			stop := c.watchSet(ids...)
			for round := range 3 {
				target := c.follower()
				asks := func() int { return len(target.logged("received leadership transfer request")) }
				before := asks() // of its current process
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
						return asks() > before || asked(interrupted)
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

// restore runs "cluster restore" for a stopped coordinator, with the settings that it starts with.
func (c *cluster) restore(id, file string) (output string) {
	c.t.Helper()
	p := c.startRestore(id, file)
	<-p.done
	output = strings.Join(p.tail(25), "\n")
	require.True(c.t, p.cmd.ProcessState.Success(), output)
	return output
}

func (c *cluster) startRestore(id, file string) *process {
	c.t.Helper()
	env := []string{"ROLLCALL_NODE_ID=" + id, "ROLLCALL_PEERS=" + c.peers(), "ROLLCALL_DATA_DIR=" + c.nodes[id].data}
	return launch(c.t, "restore of "+id, env, "cluster", "restore", file)
}

// A snapshot that is restored on one stopped node replaces the directory, on all nodes and in Redis, under a new epoch.
func TestRestore_StoppedCluster(t *testing.T) {
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

	first, others := c.nodes[c.ids[0]], c.ids[1:]
	running := c.startRestore(first.id, file)
	<-running.done
	require.Equal(t, 1, running.cmd.ProcessState.ExitCode())
	require.Contains(t, strings.Join(running.tail(25), "\n"), "Stop all coordinators before a restore. Nothing was changed.")

	for _, n := range c.nodes {
		require.Zero(t, n.stop())
	}
	for i := range 20 { // interrupted at any point, and repeated
		p := c.startRestore(first.id, file)
		select {
		case <-p.done:
		case <-time.After(time.Duration(i) * 2 * time.Millisecond):
			p.kill()
		}
	}
	output := c.restore(first.id, file)
	require.Contains(t, output, "restored 2 services")
	require.Contains(t, output, "Then empty the data folders of "+others[0]+" and "+others[1]+", and start them.")
	c.start(first.id)
	c.awaitReady(first)
	_, after := c.leaderAfter(epoch)

	// A node with the former log refuses to start beside it, and says how it can join.
	former := c.start(others[0])
	<-former.done
	require.Equal(t, 1, former.cmd.ProcessState.ExitCode())
	require.Contains(t, strings.Join(former.tail(5), "\n"), "empty their data folders, and start them again")
	for _, id := range others {
		require.NoError(t, os.RemoveAll(c.nodes[id].data))
		c.awaitReady(c.start(id))
	}
	c.awaitActive(patience, ids[:2]...)
	stop()
	stop = c.watchSet(ids[:2]...)
	c.awaitEpochInRedis(after)

	// Each node has it, also after a restart from disk and under another leader.
	leader, now := c.leader()
	require.Zero(t, leader.stop())
	_, _ = c.leaderAfter(now)
	require.Equal(t, ids[:2], c.directory())
	c.awaitReady(c.start(leader.id))
	c.transfer(leader.id)
	require.Equal(t, ids[:2], c.directory())
	_, last := c.leader()
	c.awaitEpochInRedis(last)
	c.awaitActive(patience, ids[:2]...)
	stop()
}

// Two coordinators must not found a cluster without the third, unless the operator says so.
func TestFounding_WithoutOne(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 1)
	c := planCluster(t, options{nodeEnv: map[string]map[string]string{}})
	for _, id := range c.ids[:2] {
		c.start(id)
	}
	const waits = "waiting for every coordinator before the first start; if one will not come, and none of them ever ran before, start the others with --bootstrap-without"
	for _, id := range c.ids[:2] {
		n := c.nodes[id]
		// On a busy machine the first line is written before the other node answers.
		eventually(t, patience, func() bool {
			for _, line := range n.logged(waits) {
				if line["missing"] == c.ids[2] {
					return true
				}
			}
			return false
		}, "%s says that it waits for %s alone", id, c.ids[2])
		require.Empty(t, n.logged("cluster bootstrapped"))
	}
	// Not before both have logged that: one that waits for the other as well names both.
	for _, id := range c.ids[:2] {
		require.Zero(t, c.nodes[id].stop())
	}
	for _, id := range c.ids[:2] {
		c.opts.nodeEnv[id] = map[string]string{"ROLLCALL_BOOTSTRAP_WITHOUT": c.ids[2]}
		c.start(id)
	}
	c.register(relayers...)
	c.start(c.ids[2])
	c.awaitVoters()
	c.awaitActive(patience, ids...)
}
