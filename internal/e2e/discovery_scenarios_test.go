package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The four scenarios of service discovery, with real coordinators, gateways and directors.

func TestDiscovery_LeaderIsAlreadyThere(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 3)
	c := startCluster(t, options{})
	leader, epoch := c.leader()
	g := c.embed("edge-1", gateway.Static(services(relayers...)...))
	c.awaitActive(patience, ids...)
	g.awaitSynced(epoch)
	first := g.found()[0]
	require.Equal(t, leader.id, first.Node)
	require.Equal(t, leader.address, first.Address)
	require.Equal(t, c.meta()["cluster"], first.Cluster)
	w := g.written()[0]
	require.True(t, w.FullSet, "everything, in one batch")
	require.EqualValues(t, 3, w.Registered)
	require.Equal(t, 3, g.Status().Registered)
	require.Equal(t, ids, c.directory())
	require.NoError(t, g.stop())
	require.Equal(t, ids, c.directory(), "what is not running right now is still defined")
}

// The gateway starts before the coordinators, and runs during every election.
func TestDiscovery_GatewayPollsDuringAnElection(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := planCluster(t, options{})
	source := newSettable(services(relayers...)...)
	g := c.embed("edge-1", source)
	eventually(t, patience, func() bool { return g.Status().Err != nil }, "the gateway looks for a leader")
	require.ErrorIs(t, g.Status().Err, gateway.ErrNoLeader)

	c.start("coordinator-1")
	eventually(t, patience, func() bool { return c.nodes["coordinator-1"].ping(t) != nil }, "it answers")
	require.Empty(t, g.found(), "one of three does not lead")
	c.start("coordinator-2")
	c.start("coordinator-3")
	c.awaitActive(patience, ids...)
	c.awaitVoters()
	_, epoch := c.leader()
	g.awaitSynced(epoch)

	stop := c.watchSet(ids...)
	for range 3 {
		more := startRelayer(t, "late-"+ids[0])
		leader, old := c.leader()
		leader.kill()
		source.set(append(services(relayers...), service(more.id, more.url()))...) // while there is no leader
		_, epoch := c.leaderAfter(old)
		g.awaitSynced(epoch)
		c.awaitActive(patience, append([]string{more.id}, ids...)...)
		source.set(services(relayers...)...)
		c.awaitActive(patience, ids...)
		c.start(leader.id)
	}
	stop()
	last := uint64(0)
	for _, l := range g.found() {
		require.Greater(t, l.Epoch, last, "epochs never go backwards")
		last = l.Epoch
	}
}

// findings returns the leader's GetStatus answer; nil while no coordinator answers.
func (c *cluster) findings() *rollcallv1.GetStatusResponse {
	for _, n := range c.nodes {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		resp, err := n.discovery().GetStatus(ctx, &rollcallv1.GetStatusRequest{})
		cancel()
		if err == nil {
			return resp
		}
	}
	return nil
}

// awaitDirector waits for a state of the director, with these stalls.
func (c *cluster) awaitDirector(state rollcallv1.DirectorState, stalls ...*rollcallv1.Stall) {
	c.t.Helper()
	eventually(c.t, patience, func() bool {
		f := c.findings()
		return f.GetDirector() == state && proto.Equal(&rollcallv1.GetStatusResponse{Stalls: f.Stalls}, &rollcallv1.GetStatusResponse{Stalls: stalls})
	}, "%v %v", state, stalls)
}

// A fleet below the required minimum is reported as stalled, until a late registration ends that. A removal also
// reaches the director.
func TestDiscovery_LateRegistrationEndsAStall(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{env: map[string]string{"ROLLCALL_MIN_LIVE": "relayer=1"}})
	stalled, running := rollcallv1.DirectorState_DIRECTOR_STATE_STALLED, rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING
	none := &rollcallv1.Stall{Kind: "relayer", Needed: 1}
	c.awaitDirector(stalled, none)
	follower := c.follower()
	eventually(t, patience, func() bool {
		_, page := follower.page(t, "/status")
		return strings.Contains(page, `"director":"stalled","stalls":[{"kind":"relayer","needed":1,"available":0}]`)
	}, "the page reports the stall")
	require.Contains(t, c.mustCLI("status"), "stalled")

	relayers[0].answer(503)
	source := newSettable(services(relayers[0])...)
	g := c.embed("edge-1", source)
	eventually(t, patience, func() bool { return len(relayers[0].times()) > 0 }, "it is checked")
	c.awaitDirector(stalled, none) // registered, but not healthy
	source.set(services(relayers...)...)
	c.awaitDirector(running)
	c.awaitActive(patience, ids[1])
	relayers[0].answer(200)
	c.awaitActive(patience, ids...)

	source.set(services(relayers[0])...)
	c.awaitActive(patience, ids[0])
	require.Equal(t, ids[:1], c.directory())
	c.awaitDirector(running)
	asked, other := len(relayers[1].times()), len(relayers[0].times())
	eventually(t, patience, func() bool { return len(relayers[0].times()) >= other+3 }, "three more intervals")
	require.LessOrEqual(t, len(relayers[1].times()), asked+1, "no node checks it any more; one check may have been on its way")
	// Logged by the leader of that time: on a busy machine another one may lead by now.
	require.True(t, slices.ContainsFunc(c.logged("relayer removed"), func(l map[string]any) bool {
		return l["service"] == ids[1] && l["reason"] == "deregistered"
	}), "%v", c.logged("relayer removed"))

	source.set()
	c.awaitDirector(stalled, none)
	c.awaitActive(patience)
	source.set(services(relayers[1])...)
	c.awaitDirector(running)
	c.awaitActive(patience, ids[1])
	require.NoError(t, g.stop())
}

// The next leader starts from the directory of the last one, without any new registration. The same applies to nodes
// that all restart from their disks.
func TestDiscovery_LeaderChangeInheritsTheDirectory(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 4)
	c := startCluster(t, options{env: map[string]string{"ROLLCALL_MIN_LIVE": "relayer=4"}})
	g := c.embed("edge-1", gateway.Static(services(relayers...)...))
	c.awaitActive(patience, ids...)
	require.NoError(t, g.stop())

	stopSet, stopDirectory := c.watchSet(ids...), c.watchDirectory(ids...)
	leader, epoch := c.leader()
	leader.kill()
	_, epoch = c.leaderAfter(epoch)
	c.awaitEpochInRedis(epoch)
	c.awaitDirector(rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING)
	require.Equal(t, ids, c.directory())
	stopDirectory()
	c.start(leader.id)
	for _, n := range c.nodes {
		n.kill()
	}
	c.startAll()
	_, epoch = c.leaderAfter(epoch)
	c.awaitEpochInRedis(epoch)
	c.awaitDirector(rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING)
	require.Equal(t, ids, c.directory())
	stopSet()

	// A gateway that starts again finds all its services in the directory already, in the new epoch.
	again := c.embed("edge-1", gateway.Static(services(relayers...)...))
	again.awaitSynced(epoch)
	w := again.written()[0]
	require.EqualValues(t, 4, w.Unchanged)
	require.Zero(t, w.Registered)
	require.NoError(t, again.stop())
}
