package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// election is how long a registration may wait for another leader, even on a busy machine.
const election = 5 * time.Second

// stream registers one new service after the other at the current leader. The returned function ends it. It fails the
// test if an acknowledged service is lost, one was rejected, or one took longer than an election.
func (c *cluster) stream() (stop func()) {
	c.t.Helper()
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: strings.Split(c.addresses(), ",")})
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(c.t.Context())
	var (
		done   sync.WaitGroup
		ids    []string
		worst  time.Duration
		failed error
	)
	done.Go(func() {
		started := uint64(time.Now().UnixNano())
		for n := uint64(1); ctx.Err() == nil && failed == nil; n++ {
			s := service(fmt.Sprintf("stream-%d", n), "http://127.0.0.1:1")
			s.Kind = "stream"
			begun := time.Now()
			_, err := client.Register(ctx, &rollcallv1.RegisterServicesRequest{
				Writer: &rollcallv1.Writer{
					Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "stream"},
					Incarnation: started, Seq: n,
				},
				Services: []*rollcallv1.Service{s},
			})
			switch {
			case err == nil:
				ids = append(ids, s.Id)
				worst = max(worst, time.Since(begun))
			case ctx.Err() == nil:
				failed = fmt.Errorf("%s after %v: %w", s.Id, time.Since(begun), err)
			}
		}
	})
	return func() {
		c.t.Helper()
		cancel()
		done.Wait()
		closeBody(client)
		require.NoError(c.t, failed)
		c.t.Logf("%d registrations, the slowest took %v", len(ids), worst.Round(time.Millisecond))
		require.Greater(c.t, len(ids), 3)
		require.Less(c.t, worst, election)
		known := make(map[string]bool)
		for _, id := range c.directory() {
			known[id] = true
		}
		require.False(c.t, slices.ContainsFunc(ids, func(id string) bool { return !known[id] }), "an acknowledged one is lost")
	}
}

// A leader that is stopped transfers the leadership first: registrations continue, and the set stays.
func TestStop_Leader_TransfersLeadership(t *testing.T) {
	t.Parallel()
	c, _, ids := fleetInRedis(t, options{})
	unbroken, watched := c.stream(), c.watchSet(ids...)
	for range 3 {
		leader, epoch := c.leader()
		require.Zero(t, leader.stop())
		require.Len(t, leader.logged("leadership handed over"), 1)
		require.Len(t, leader.logged("coordinator stopped"), 1)
		require.Empty(t, leader.logged("coordinator failed"))
		_, epoch = c.leaderAfter(epoch)
		c.awaitEpochInRedis(epoch)
		c.start(leader.id)
		c.awaitReady(leader)
	}
	watched()
	unbroken()
}

// The leader waits for a check that runs when the signal arrives.
func TestStop_CheckIsRunning_Waits(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	begun, broken := make(chan struct{}), make(chan bool, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	slow := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if !armed.CompareAndSwap(true, false) {
			return
		}
		close(begun)
		select {
		case <-time.After(300 * time.Millisecond):
			broken <- false
		case <-r.Context().Done():
			broken <- true
		}
	})}
	go func() { _ = slow.Serve(l) }()
	t.Cleanup(func() { closeBody(slow) })

	c := startCluster(t, options{})
	c.write(&rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{service("slow", "http://"+l.Addr().String())}})
	c.awaitActive(patience, "slow")
	leader, _ := c.leader()
	stop := c.watchSet("slow")
	armed.Store(true)
	<-begun
	require.Zero(t, leader.stop())
	require.False(t, <-broken, "the check was broken off")
	stop()
	require.Empty(t, leader.logged("relayer removed"))
}

// Checks with a long timeout that hang do not delay the stop of a leader, nor its successor.
func TestStop_ChecksHang_DoesNotWait(t *testing.T) {
	t.Parallel()
	const limit = 30 * time.Second // of a check
	relayers, ids := fleet(t, 4)
	relayers[2].stopAnswering()
	relayers[3].stopAnswering()
	c := startCluster(t, options{env: map[string]string{
		"HEALTH_CHECK_TIMEOUT_MS": fmt.Sprint(limit.Milliseconds()), "HEALTH_CHECK_INTERVAL_MS": fmt.Sprint(2 * limit.Milliseconds()),
	}})
	c.register(relayers...)
	c.awaitActive(patience, ids[:2]...)
	unbroken, watched := c.stream(), c.watchSet(ids[:2]...)
	for range 2 {
		leader, epoch := c.leader()
		eventually(t, patience, func() bool { return leader.metric(t, "rollcall_checks_in_flight") == 2 }, "two checks that hang")
		begun := time.Now()
		require.Zero(t, leader.stop())
		require.Less(t, time.Since(begun), limit/2, "it did not wait for them")
		require.Empty(t, leader.logged("coordinator failed"))
		_, epoch = c.leaderAfter(epoch)
		c.awaitEpochInRedis(epoch)
		c.awaitReady(c.start(leader.id))
	}
	watched()
	unbroken()
	for _, n := range c.nodes {
		require.Empty(t, n.logged("relayer removed"))
	}
}

// Each coordinator in turn is stopped and started again.
func TestRollingRestart_LosesNothing(t *testing.T) {
	t.Parallel()
	c, _, ids := fleetInRedis(t, options{})
	unbroken, watched := c.stream(), c.watchSet(ids...)
	for range 2 {
		for _, id := range c.ids {
			require.Zero(t, c.nodes[id].stop())
			c.start(id)
			c.awaitReady(c.nodes[id])
		}
	}
	watched()
	unbroken()
}

func TestStop_SecondSignal_EndsAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, options{})
	leader, epoch := c.leader()
	for _, n := range c.nodes {
		if n != leader {
			n.pause() // no other node takes over
		}
	}
	leader.signal(stopSignal)
	eventually(t, patience, func() bool { return len(leader.logged("leadership ended")) > 0 }, "it has begun to stop")
	leader.signal(stopSignal)
	require.NotZero(t, leader.exit(patience))
	for _, n := range c.nodes {
		if n != leader {
			n.resume()
		}
	}
	_, _ = c.leaderAfter(epoch)
}
