package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Killed, paused and frozen leaders do not change the set.

// A leader's successor inherits the set: no healthy relayer is ever missing from it. Relayers that fail together with
// the leader, by a crash or by hanging, delay nothing.
func TestLeader_Killed_SetStays(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 5)
	c := startCluster(t, options{})
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	healthy := ids[:3]
	stop := c.watchSet(healthy...)
	for round := range 3 {
		leader, epoch := c.leader()
		leader.kill()
		relayers[3].crash()
		relayers[4].stopAnswering()
		_, epoch = c.leaderAfter(epoch)
		c.awaitEpochInRedis(epoch)
		c.awaitActive(patience, healthy...)
		c.start(leader.id)
		relayers[3].start()
		relayers[4].answer(200)
		c.awaitActive(patience, ids...)
		t.Logf("round %d: epoch %d", round, epoch)
	}
	stop()
}

// A leader that was paused past its lease detects that before it writes anything, whatever Redis contains.
func TestLeader_PausedPastLease_WritesNothing(t *testing.T) {
	t.Parallel()
	for _, flushed := range []bool{false, true} {
		t.Run(fmt.Sprintf("flushed=%v", flushed), func(t *testing.T) {
			t.Parallel()
			relayers, ids := fleet(t, 4)
			c := startCluster(t, options{env: slowRelayers})
			c.register(relayers...)
			c.awaitActive(patience, ids...)
			paused, old := c.leader()
			stop := c.watchSet(ids[:3]...)
			monitor := c.redis.Monitor()

			paused.pause()
			_, epoch := c.leaderAfter(old)
			c.awaitEpochInRedis(epoch)
			relayers[3].crash() // the paused leader still regards it as healthy
			c.awaitActive(patience, ids[:3]...)
			if flushed {
				stop()
				// Redis loses the epoch at the time when the paused leader resumes.
				c.redis.FlushAll()
				stop = c.watchReturningSet(ids[:3]...)
			}
			paused.resume()
			eventually(t, patience, func() bool {
				p := paused.ping(t)
				return p != nil && p.Epoch >= epoch && p.Leader.GetNode() != paused.id
			}, "it follows")
			eventually(t, patience, func() bool { return len(paused.logged("leadership ended")) > 0 }, "a word of it")
			c.awaitActive(patience, ids[:3]...)
			c.awaitWrites(3)
			stop()

			calls := scriptCalls(t, monitor.Commands())
			requireFenced(t, calls)
			claimed := false
			for _, call := range calls {
				claimed = claimed || call.Epoch >= epoch
				require.False(t, claimed && call.Epoch == old && len(call.writes) > 0, "%+v", call)
			}
			require.True(t, wroteUnder(calls, epoch))
			_, now := c.leader() // on a busy machine it may be a later leader
			c.awaitEpochInRedis(now)
		})
	}
}

// A write that was in flight when the leader was paused, and that Redis executes late, has no effect.
func TestLeader_PausedDuringWrite_LateWriteIsRejected(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	c := startCluster(t, options{env: slowRelayers})
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	stop := c.watchSet(ids...)
	monitor := c.redis.Monitor()

	c.redis.Pause()
	// A leader that has given up waiting has sent its heartbeat, which is in the socket buffer.
	var paused *node
	var old uint64
	eventually(t, patience, func() bool {
		for _, n := range c.nodes {
			for _, line := range n.logged("Redis connection failed") {
				paused, old = n, uint64(line["epoch"].(float64))
			}
		}
		return paused != nil
	}, "a write without an answer")
	paused.pause()
	_, epoch := c.leaderAfter(old)
	c.redis.Resume()
	c.awaitEpochInRedis(epoch)
	paused.resume()
	c.awaitWrites(3)
	stop()

	calls := scriptCalls(t, monitor.Commands())
	require.NotZero(t, requireFenced(t, calls), "a late write came and was refused")
	c.awaitActive(patience, ids...)
}

// awaitWrites waits until the leader has written to Redis n more times.
func (c *cluster) awaitWrites(n int) {
	c.t.Helper()
	for range n {
		last := c.meta()["updated_at"]
		eventually(c.t, patience, func() bool { return c.meta()["updated_at"] > last }, "a write after %s", last)
	}
}

// frozen is how long processes are frozen.
const frozen = 5 * time.Second

// A frozen checker must not look like a dead fleet, with a successor or without one.
func TestChecker_Frozen_NoneIsRemoved(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d coordinators", size), func(t *testing.T) {
			t.Parallel()
			relayers, ids := fleet(t, 50)
			c := startCluster(t, options{size: size})
			c.register(relayers...)
			c.awaitActive(patience, ids...)
			leader, epoch := c.leader()
			stop := c.watchSet(ids...)

			leader.pause()
			<-time.After(frozen)
			resumed := time.Now()
			leader.resume()
			for _, r := range relayers {
				eventually(t, patience, func() bool {
					times := r.times()
					return len(times) > 1 && times[len(times)-2].After(resumed)
				}, "two more checks of %s", r.id)
			}
			c.awaitWrites(2)
			stop()
			for _, n := range c.nodes {
				require.Empty(t, n.logged("relayer removed"))
			}
			if _, now := c.leader(); size == 1 {
				require.Equal(t, epoch, now, "it still leads")
			} else {
				require.Greater(t, now, epoch)
			}
		})
	}
}
