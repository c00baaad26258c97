package e2e

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The variables of a gateway have their effect. These are the ones that no other test covers.
func TestGateway_OtherVariables_AreApplied(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 1)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-7")
	a.env = map[string]string{"ROLLCALL_RESYNC_INTERVAL": "1s", "ROLLCALL_HOST": "host-7", "ROLLCALL_DEREGISTER_ON_STOP": "true"}
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.start()
	a.await("/readyz", 200)
	leader, _ := c.leader()
	resp, err := leader.discovery().ListServices(t.Context(), &rollcallv1.ListServicesRequest{})
	require.NoError(t, err)
	require.Equal(t, "edge-7", resp.Records[0].Owner.Id)
	require.Equal(t, "host-7", resp.Records[0].Service.WorkerRef.Node)
	require.DirExists(t, a.memory)
	writes := len(a.logged("directory written"))
	began := time.Now()
	eventually(t, patience, func() bool { return len(a.logged("directory written")) >= writes+3 }, "three more full sets")
	require.Less(t, time.Since(began), 20*time.Second, "by default they would be a minute apart")
	require.Zero(t, a.stop())
	require.Empty(t, c.directory(), "it left for good")
}

// pinged is a coordinator that only answers pings. It records their times and timeouts.
type pinged struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	addr  string
	leads bool

	mu      sync.Mutex
	times   []time.Time
	allowed []time.Duration
}

func startPinged(t testing.TB, leads bool) *pinged {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &pinged{addr: l.Addr().String(), leads: leads}
	server := grpc.NewServer()
	rollcallv1.RegisterDiscoveryServiceServer(server, p)
	go func() { _ = server.Serve(l) }() // ends with Stop
	t.Cleanup(server.Stop)
	return p
}

func (p *pinged) Ping(ctx context.Context, _ *rollcallv1.PingRequest) (*rollcallv1.PingResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times = append(p.times, time.Now())
	if deadline, ok := ctx.Deadline(); ok {
		p.allowed = append(p.allowed, time.Until(deadline))
	}
	resp := &rollcallv1.PingResponse{Cluster: "c", Epoch: 1, Node: "n"}
	if p.leads {
		resp.Leader = &rollcallv1.Leader{Node: "n", Address: p.addr, ClientAddress: p.addr}
	}
	return resp, nil
}

func (p *pinged) RegisterServices(_ context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
	return &rollcallv1.RegisterServicesResponse{Epoch: 1, Index: 1, Registered: uint32(len(req.Services))}, nil
}

// Pings have the configured interval and timeout: both longer than the defaults.
func TestGateway_PingVariables_AreApplied(t *testing.T) {
	t.Parallel()
	c := planCluster(t, options{})
	for _, leads := range []bool{true, false} {
		p := startPinged(t, leads)
		a := c.defineAgent("edge-1")
		a.env = map[string]string{"ROLLCALL_COORDINATORS": p.addr, "ROLLCALL_PING_TIMEOUT": "20s", "ROLLCALL_PING_INTERVAL": "2s", "ROLLCALL_DISCOVERY_INTERVAL": "900ms"}
		apart := 600 * time.Millisecond // 50 ms by default
		if leads {
			apart = 1500 * time.Millisecond // 500 ms by default
		}
		a.start()
		eventually(t, patience, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.times) >= 5 }, "five pings")
		a.kill()
		p.mu.Lock()
		// The first two are those that find the leader, if there is one.
		require.Greater(t, p.times[4].Sub(p.times[2]), 2*apart)
		for _, d := range p.allowed {
			require.Greater(t, d, time.Second)
			require.LessOrEqual(t, d, 20*time.Second)
		}
		require.Len(t, p.allowed, len(p.times))
		p.mu.Unlock()
	}
}
