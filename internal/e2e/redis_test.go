package e2e

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// The mirror when Redis loses, replaces or damages its data.

// fleetInRedis returns a cluster with three active relayers.
func fleetInRedis(t *testing.T, opts options) (c *cluster, relayers []*relayer, ids []string) {
	relayers, ids = fleet(t, 3)
	c = startCluster(t, opts)
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	return c, relayers, ids
}

func TestRedis_Flushed_IsWrittenAgain(t *testing.T) {
	t.Parallel()
	c, _, ids := fleetInRedis(t, options{})
	_, epoch := c.leader()
	for range 3 {
		c.redis.FlushAll()
		c.awaitActive(patience, ids...)
	}
	c.awaitEpochInRedis(epoch)
	require.Equal(t, "healthy", c.redis.Client().HGet(t.Context(), "relayer:status:0", "status").Val())
}

func TestRedis_RestartedEmpty_IsWrittenAgain(t *testing.T) {
	t.Parallel()
	c, relayers, ids := fleetInRedis(t, options{})
	_, epoch := c.leader()
	c.redis.Kill()
	relayers[2].crash() // a change meanwhile is visible afterwards
	c.redis.RestartEmpty()
	c.awaitActive(patience, ids[:2]...)
	c.awaitEpochInRedis(epoch)
	eventually(t, patience, func() bool {
		return c.redis.Client().HGet(t.Context(), "relayer:status:2", "status").Val() == "unhealthy"
	}, "the status of the failed one")
}

// A Redis failed over to a copy from before the current leader. The copy also lists a relayer that has failed since. It
// is brought up to date.
func TestRedis_FailedOverToStaleCopy_IsUpdated(t *testing.T) {
	t.Parallel()
	master, replica := testredis.Start(t), testredis.Start(t)
	way := startProxy(t, master.Addr())
	c, relayers, ids := fleetInRedis(t, options{redis: master, env: map[string]string{"REDIS_URL": "redis://" + way.addr()}})
	leader, old := c.leader()

	replica.ReplicaOf(master)
	replica.Promote() // from here on it misses all writes
	relayers[2].crash()
	c.awaitActive(patience, ids[:2]...)
	stop := c.watchSet(ids[:2]...)
	leader.kill()
	_, epoch := c.leaderAfter(old)
	c.awaitEpochInRedis(epoch)
	stop()

	c.redis = replica
	require.Equal(t, ids, c.active(), "the copy is stale")
	stop = c.watchSet(ids[:2]...)
	monitor := replica.Monitor()
	way.switchTo(replica.Addr())
	c.awaitActive(patience, ids[:2]...)
	c.awaitWrites(2)
	stop()
	_, epoch = c.leader()
	c.awaitEpochInRedis(epoch)
	require.False(t, wroteUnder(scriptCalls(t, monitor.Commands()), old))

	// Back to the old master, which is now the stale one.
	relayers[1].crash()
	c.awaitActive(patience, ids[0])
	c.redis = master
	require.Equal(t, ids[:2], c.active())
	stop = c.watchSet(ids[0])
	way.switchTo(master.Addr())
	c.awaitActive(patience, ids[0])
	stop()
}

func TestRedis_KeysOfWrongType_AreReplaced(t *testing.T) {
	t.Parallel()
	c, _, ids := fleetInRedis(t, options{})
	for _, key := range []string{activeKey, "relayer:meta", "relayer:status:1"} {
		require.NoError(t, c.redis.Client().Set(t.Context(), key, "not ours", 0).Err())
	}
	c.awaitActive(patience, ids...)
	eventually(t, patience, func() bool {
		return c.meta()["cluster"] != "" && c.redis.Client().HGet(t.Context(), "relayer:status:1", "status").Val() == "healthy"
	}, "hashes again")
	c.awaitWrites(2)
}

func TestRedis_ForeignMembers_AreCorrected(t *testing.T) {
	t.Parallel()
	c, _, ids := fleetInRedis(t, options{})
	require.NoError(t, c.redis.Client().SAdd(t.Context(), activeKey, "ghost").Err())
	require.NoError(t, c.redis.Client().SRem(t.Context(), activeKey, ids[0]).Err())
	c.awaitActive(patience, ids...)
}

// A cluster rebuilt from nothing finds the mirror of its predecessor. It refuses to write and reports that, until an
// operator makes it take over the Redis.
func TestMirror_RebuiltCluster_HasToTakeOver(t *testing.T) {
	t.Parallel()
	before, relayers, ids := fleetInRedis(t, options{})
	for _, n := range before.nodes {
		n.kill()
	}
	was := before.meta()
	c := startCluster(t, options{redis: before.redis})
	monitor := c.redis.Monitor()
	c.register(relayers[:2]...)
	line := c.awaitError("mirror refused: redis belongs to another cluster")
	require.Equal(t, was["cluster"], line["foreign"])
	require.Contains(t, line["err"], "rollcall mirror take-over")
	leader, _ := c.leader()
	eventually(t, patience, func() bool {
		page, _ := leader.status(t)
		return page.Status != "healthy" && !page.Mirror.Connected && page.Mirror.Error != ""
	}, "the page says so too")
	page, _ := leader.status(t)
	require.Contains(t, page.Mirror.Error, was["cluster"])
	require.Contains(t, page.Mirror.Error, "rollcall mirror take-over")
	require.Equal(t, was, c.meta(), "nothing was written")
	require.Equal(t, ids, c.active())
	for _, call := range scriptCalls(t, monitor.Commands()) {
		require.Empty(t, call.writes)
	}

	stop := c.watchSet(ids[:2]...)
	require.Contains(t, c.mustCLI("mirror", "take-over"), was["cluster"])
	c.awaitActive(patience, ids[:2]...)
	stop()
	require.NotEqual(t, was["cluster"], c.meta()["cluster"])
	eventually(t, patience, func() bool { p, code := leader.status(t); return code == 200 && p.Status == "healthy" }, "healthy")
	require.True(t, leader.running())
	require.Contains(t, c.mustCLI("mirror", "take-over"), "already")
}

// An epoch that no leader of the cluster can have opened stops all writes, like another cluster's mirror does. It may
// be the cluster's own fence, so a normal takeover of its own mirror leaves it; the operator has to force
// it.
func TestMirror_EpochTooHigh_NeedsForcedTakeover(t *testing.T) {
	t.Parallel()
	before, relayers, ids := fleetInRedis(t, options{})
	for _, n := range before.nodes {
		n.kill()
	}
	was := before.meta()
	c := startCluster(t, options{redis: before.redis})
	c.register(relayers...)
	c.awaitError("mirror refused: redis belongs to another cluster")
	stop := c.watchSet(ids[:2]...)
	require.Contains(t, c.mustCLI("mirror", "take-over", "--force"), "it belonged to cluster "+was["cluster"]+" and now does to cluster ")
	eventually(t, patience, func() bool { return c.meta()["leader"] != "" }, "a claim")

	const unreachable = "1125899906842624"
	require.NoError(t, c.redis.Client().HSet(t.Context(), "relayer:meta", "epoch", unreachable).Err())
	line := c.awaitError("leader's work failed")
	require.Contains(t, line["err"], "epoch "+unreachable+" is stored in Redis")
	require.Contains(t, line["err"], "rollcall mirror take-over --force")
	monitor := c.redis.Monitor()
	held := c.meta()
	require.Contains(t, c.mustCLI("mirror", "take-over"), "it belongs to cluster "+held["cluster"]+" already")
	relayers[2].crash()
	tries := len(c.logged("leader's work failed"))
	eventually(t, patience, func() bool { return len(c.logged("leader's work failed")) > tries+5 }, "more tries than any other failure is given")
	leader, _ := c.leader()
	eventually(t, patience, func() bool { p, _ := leader.status(t); return p.Status == "degraded" && !p.Mirror.Connected }, "the page says so")
	require.Equal(t, held, c.meta(), "nothing was written")
	require.Equal(t, ids, c.active())
	for _, call := range scriptCalls(t, monitor.Commands()) {
		require.Empty(t, call.writes)
	}

	require.Contains(t, c.mustCLI("mirror", "take-over", "--force"), "it belongs to cluster "+held["cluster"]+", and its epoch "+unreachable+" is forgotten")
	c.awaitActive(patience, ids[:2]...)
	stop()
	eventually(t, patience, func() bool { _, epoch := c.leader(); return c.meta()["epoch"] == fmt.Sprint(epoch) }, "the leader's own epoch")
	require.Equal(t, held["cluster"], c.meta()["cluster"])
	for _, n := range c.nodes {
		require.True(t, n.running())
	}
}

// proxy forwards TCP connections to a changeable address.
type proxy struct {
	l net.Listener

	mu    sync.Mutex
	to    string
	conns []net.Conn
}

func startProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, to: to}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.pass(conn)
		}
	}()
	t.Cleanup(func() { closeBody(l); p.switchTo("") })
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

// switchTo closes every connection; later ones go to the new address.
func (p *proxy) switchTo(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for _, c := range p.conns {
		closeBody(c)
	}
	p.conns = nil
}

func (p *proxy) pass(conn net.Conn) {
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	out, err := net.Dial("tcp", to)
	if err != nil {
		closeBody(conn)
		return
	}
	p.mu.Lock()
	stale := p.to != to
	p.conns = append(slices.Clip(p.conns), conn, out)
	p.mu.Unlock()
	if stale {
		closeBody(conn)
		closeBody(out)
	}
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{conn, out}, {out, conn}} {
		wg.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // ends when either side ends
			closeBody(way[0])
		})
	}
	wg.Wait()
}
