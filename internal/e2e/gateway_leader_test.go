package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Gateways while the leadership moves between running coordinators.

// A leader that becomes a follower without dying is detected by the next ping, without any write; and by the next
// write, without any ping for an hour.
func TestGateway_LeaderBecomesFollower_FindsTheNext(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{env: slowRelayers})
	_, first := c.leader()
	const poll = 300 * time.Millisecond
	idle := c.embed("idle", gateway.Static(services(relayers[0])...), func(cfg *gateway.Config) { cfg.PingInterval = poll })
	source := newSettable(services(relayers[1])...)
	busy := c.embed("busy", source, func(cfg *gateway.Config) { cfg.PingInterval = time.Hour })
	idle.awaitSynced(first)
	busy.awaitSynced(first)
	c.awaitActive(patience, ids...)

	stopSet, stopDirectory := c.watchSet(ids...), c.watchDirectory(ids...)
	for round := range 3 {
		var before, after *node
		var epoch uint64
		var began time.Time
		// On a busy machine the target of the transfer may be too slow, or lose the leadership to the former leader at once.
		eventually(t, patience, func() bool {
			var old uint64
			before, old = c.leader()
			if _, _, code := c.cli("cluster", "transfer"); code != 0 {
				return false
			}
			after, epoch = c.leaderAfter(old)
			began = time.Now()
			return after.id != before.id
		}, "a transfer")
		pid := before.pid()
		idle.awaitSynced(epoch)
		t.Logf("round %d: epoch %d known after %v", round, epoch, time.Since(began))

		require.Less(t, busy.Status().Leader.Epoch, epoch, "it has not asked")
		extra := service(fmt.Sprintf("extra-%d", round), relayers[1].url())
		source.set(append(services(relayers[1]), extra)...)
		busy.awaitSynced(epoch)
		require.Contains(t, c.directory(), extra.Id)
		require.True(t, before.running())
		require.Equal(t, pid, before.pid())
	}
	source.set(services(relayers[1])...)
	stopDirectory()
	stopSet()
	require.NoError(t, idle.stop())
	require.NoError(t, busy.stop())
}

// A rolling restart of the coordinators loses no definition that gateways make meanwhile, and delays no write for much
// longer than an election takes.
func TestRollingRestart_GatewaysDefine_NothingIsLost(t *testing.T) {
	t.Parallel()
	const gateways, size = 3, 40
	r := startRelayer(t, "oz-relayer-0")
	c := startCluster(t, options{env: slowRelayers})
	var constant []string
	var edges []*embedded
	var sources []*settable
	version := func(g, i, v int) *rollcallv1.Service {
		s := service(fmt.Sprintf("g%d-%d", g, i), r.url())
		s.WorkerRef.Labels = map[string]string{"version": fmt.Sprint(v)}
		return s
	}
	for g := range gateways {
		fixed := service(fmt.Sprintf("g%d-fixed", g), r.url())
		constant = append(constant, fixed.Id)
		sources = append(sources, newSettable(fixed))
		edges = append(edges, c.embed(fmt.Sprintf("edge-%d", g), sources[g]))
	}
	_, first := c.leader()
	for _, e := range edges {
		e.awaitSynced(first)
	}
	c.awaitActive(patience, constant...)
	stopSet, stopDirectory := c.watchSet(constant...), c.watchDirectory(constant...)

	// Each gateway's definitions change all the time: services are added, removed and changed.
	var mu sync.Mutex
	latest := make([]map[string]*rollcallv1.Service, gateways)
	done := make(chan struct{})
	var changing errgroup.Group
	for g := range gateways {
		latest[g] = map[string]*rollcallv1.Service{}
		changing.Go(func() error {
			for v := 1; ; v++ {
				select {
				case <-done:
					return nil
				case <-time.After(20 * time.Millisecond):
				}
				now := map[string]*rollcallv1.Service{}
				all := services(&relayer{id: constant[g], addr: r.addr})
				for i := range size {
					if rand.IntN(3) > 0 {
						s := version(g, i, v)
						now[s.Id] = s
						all = append(all, s)
					}
				}
				mu.Lock()
				latest[g] = now
				mu.Unlock()
				sources[g].set(all...)
			}
		})
	}
	for range 6 {
		for _, id := range c.ids {
			require.Zero(t, c.nodes[id].stop())
			_, _ = c.leader()
			n := c.start(id)
			eventually(t, patience, func() bool { return n.get(t, "/readyz") == 200 }, "%s takes part", id)
		}
	}
	close(done)
	require.NoError(t, changing.Wait())

	want := map[string]string{}
	for g := range gateways {
		want[constant[g]] = ""
		for id, s := range latest[g] {
			want[id] = s.WorkerRef.Labels["version"]
		}
	}
	eventually(t, patience, func() bool {
		leader, _ := c.leader()
		resp, err := leader.discovery().ListServices(t.Context(), &rollcallv1.ListServicesRequest{Kind: "relayer"})
		if err != nil || len(resp.Records) != len(want) {
			return false
		}
		for _, rec := range resp.Records {
			v, ok := want[rec.Service.Id]
			if !ok || v != rec.Service.WorkerRef.Labels["version"] {
				return false
			}
		}
		return true
	}, "the directory holds what the gateways defined last")
	slowest, writes := time.Duration(0), 0
	for _, e := range edges {
		for _, w := range e.written() {
			slowest = max(slowest, w.Took)
			writes++
		}
		require.NoError(t, e.stop())
	}
	t.Logf("%d writes, the slowest took %v", writes, slowest)
	require.Greater(t, writes, 50)
	require.Less(t, slowest, 10*time.Second)
	stopDirectory()
	stopSet()
}

// Of two gateways with one id the one that started later works, and the other ends: the directory does not alternate
// between their definitions.
func TestGateway_TwoClaimOneID_LaterWorks(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	c := startCluster(t, options{})
	each := func(cfg *gateway.Config) { cfg.ResyncInterval = time.Second }
	older := c.embed("edge-1", gateway.Static(services(relayers[0], relayers[1])...), each)
	older.awaitSynced(1)
	c.awaitActive(patience, ids[:2]...)

	stop := c.watchSet(ids[1])
	newer := c.embed("edge-1", gateway.Static(services(relayers[1], relayers[2])...), each)
	eventually(t, patience, func() bool { return older.Status().Err != nil }, "the older notices")
	err := older.stop()
	claimed := new(gateway.ClaimedError)
	require.ErrorAs(t, err, &claimed)
	require.Equal(t, newer.Status().Incarnation, claimed.Incarnation)
	require.ErrorContains(t, err, `gateway id "edge-1" is claimed by another running gateway`)
	newer.awaitSynced(1)
	c.awaitActive(patience, ids[1], ids[2])
	n := len(newer.written())
	eventually(t, patience, func() bool { return len(newer.written()) >= n+2 }, "the newer goes on")
	require.Equal(t, ids[1:], c.directory())
	stop()
	require.NoError(t, newer.stop())
}
