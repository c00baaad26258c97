package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The leader is killed while Redis is unavailable. The next one reports degraded, with a note, from its start, and
// lists the relayers that answer its own checks. When Redis returns, it receives the changes of the others.
func TestLeader_KilledWhileRedisIsDown_NextReportsDegraded(t *testing.T) {
	t.Parallel()
	c, relayers, ids := fleetInRedis(t, options{})
	leader, epoch := c.leader()
	c.redis.Stop()
	leader.kill()
	relayers[2].crash()
	next, epoch := c.leaderAfter(epoch)
	listsWhoAnswers := func() bool {
		page, code := next.status(t)
		if n, now := c.leader(); now != epoch { // a busy machine changes the leader by itself
			next, epoch = n, now
			return false
		}
		require.Equal(t, 200, code, "%+v", page)
		require.Equal(t, "degraded", page.Status)
		require.False(t, page.Mirror.Connected)
		require.Equal(t, 3, page.TotalConfigured)
		return page.TotalActive == 2
	}
	eventually(t, patience, listsWhoAnswers, "two relayers")
	page, _ := next.status(t)
	require.True(t, slices.ContainsFunc(page.Notes, func(note string) bool {
		return note == "redis has not answered this leader yet: active are those that its own checks find healthy"
	}), "%q", page.Notes)
	require.Empty(t, c.logged("relayer removed"), "Redis still lists it")

	c.redis.Restart()
	c.awaitActive(patience, ids[:2]...)
	var removed []map[string]any
	eventually(t, patience, func() bool { removed = c.logged("relayer removed"); return len(removed) == 1 }, "its removal is logged")
	require.Equal(t, ids[2], removed[0]["service"])
	counted := 0.0 // by the leader of that time
	for _, n := range c.nodes {
		if n != leader {
			counted += n.metric(t, `rollcall_removals_total{reason="health"}`)
		}
	}
	require.InDelta(t, 1, counted, 0)
}
