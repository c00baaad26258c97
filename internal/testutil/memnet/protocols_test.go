package memnet_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
)

func TestNetwork_GRPC(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		n.SetLatency(time.Millisecond)
		l, err := n.Listen("server:7400")
		require.NoError(t, err)
		server := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:///server:7400", grpc.WithContextDialer(n.Dialer("client")),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		client := grpc_health_v1.NewHealthClient(conn)
		call := func() (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			return time.Since(start), err
		}

		_, err = call()
		require.NoError(t, err)
		took, err := call()
		require.NoError(t, err)
		require.Equal(t, 2*time.Millisecond, took)

		n.Cut("client", "server")
		took, err = call()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		require.Equal(t, 200*time.Millisecond, took)

		n.Heal()
		_, err = call()
		require.NoError(t, err)

		n.Reset("server")
		synctest.Wait() // until the client has received it
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
		require.NoError(t, err, "gRPC dials again")
	})
}

// TestNetwork_Raft elects a leader, cuts it off, and reconnects it.
func TestNetwork_Raft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		nodes := startRaft(t, n, 3)

		first := awaitLeader(t, nodes)
		require.NoError(t, nodes[first].Apply([]byte("one"), time.Second).Error())

		n.Isolate(first)
		lost := nodes[first].Apply([]byte("two"), time.Second)
		rest := map[string]*raft.Raft{}
		for name, r := range nodes {
			if name != first {
				rest[name] = r
			}
		}
		second := awaitLeader(t, rest)
		require.ErrorIs(t, lost.Error(), raft.ErrLeadershipLost)
		require.NotEqual(t, raft.Leader, nodes[first].State())
		require.NoError(t, nodes[second].Apply([]byte("three"), time.Second).Error())

		n.Heal()
		require.Eventually(t, func() bool {
			leader := awaitLeader(t, nodes)
			return nodes[first].AppliedIndex() == nodes[leader].AppliedIndex()
		}, 2*time.Minute, 10*time.Millisecond)
	})
}

func startRaft(t *testing.T, n *memnet.Network, count int) map[string]*raft.Raft {
	t.Helper()
	var servers []raft.Server
	for i := range count {
		name := fmt.Sprintf("node-%d", i+1)
		servers = append(servers, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name + ":7400")})
	}
	nodes := make(map[string]*raft.Raft)
	for _, s := range servers {
		name := string(s.ID)
		listener, err := n.Listen(string(s.Address))
		require.NoError(t, err)
		transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: streamLayer{listener, n.Dialer(name)}, MaxPool: 3, Timeout: time.Second, Logger: hclog.NewNullLogger(),
		})
		cfg := raft.DefaultConfig()
		cfg.LocalID = s.ID
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
		cfg.Logger = hclog.NewNullLogger()
		store := raft.NewInmemStore()
		snapshots := raft.NewInmemSnapshotStore()
		require.NoError(t, raft.BootstrapCluster(cfg, store, store, snapshots, transport, raft.Configuration{Servers: servers}))
		r, err := raft.NewRaft(cfg, &raft.MockFSM{}, store, store, snapshots, transport)
		require.NoError(t, err)
		nodes[name] = r
		t.Cleanup(func() {
			require.NoError(t, r.Shutdown().Error())
			transport.CloseStreams()
			require.NoError(t, transport.Close())
			n.Reset(name)
		})
	}
	return nodes
}

func awaitLeader(t *testing.T, nodes map[string]*raft.Raft) (leader string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for name, r := range nodes {
			if r.State() == raft.Leader && r.VerifyLeader().Error() == nil {
				leader = name
				return true
			}
		}
		return false
	}, 2*time.Minute, 10*time.Millisecond)
	return leader
}

type streamLayer struct {
	net.Listener
	dial func(ctx context.Context, addr string) (net.Conn, error)
}

func (s streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.dial(ctx, string(address))
}
