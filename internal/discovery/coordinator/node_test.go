package coordinator_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// simCluster is a cluster of coordinators on an in-memory network, in a synctest bubble.
type simCluster struct {
	t     *testing.T
	net   *memnet.Network
	peers []coordinator.Peer
	nodes map[string]*simNode
	conns map[string]*grpc.ClientConn
	// configure adjusts a node's configuration before it starts.
	configure func(*coordinator.Config)
}

type simNode struct {
	*coordinator.Node
	stores *coordinator.Stores
	cancel context.CancelFunc
	done   chan error
}

func newSimCluster(t *testing.T, size int, configure func(*coordinator.Config)) *simCluster {
	c := &simCluster{
		t: t, net: memnet.New(), nodes: make(map[string]*simNode), conns: make(map[string]*grpc.ClientConn), configure: configure,
	}
	for i := range size {
		id := fmt.Sprintf("c%d", i+1)
		c.peers = append(c.peers, coordinator.Peer{ID: id, Address: id + ":7400"})
	}
	t.Cleanup(c.stopAll)
	for _, p := range c.peers {
		c.start(p.ID, nil)
	}
	return c
}

// pass advances the simulated clock. In a synctest bubble, it returns only once all other goroutines wait too.
func pass(d time.Duration) { <-time.After(d) }

func memStores() *coordinator.Stores {
	s := raft.NewInmemStore()
	return &coordinator.Stores{Log: s, Stable: s, Snapshots: raft.NewInmemSnapshotStore()}
}

// start runs a node with the stores of an earlier run, or with an empty disk for nil.
func (c *simCluster) start(id string, stores *coordinator.Stores) {
	if stores == nil {
		stores = memStores()
	}
	l, err := c.net.Listen(id + ":7400")
	require.NoError(c.t, err)
	cfg := coordinator.Config{
		ID: id, Peers: c.peers, Advertise: id + ":7400", Listener: l, Dial: c.net.Dialer(id), Stores: stores,
	}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(c.t.Output(), nil))
	}
	if c.configure != nil {
		c.configure(&cfg)
	}
	node, err := coordinator.Open(c.t.Context(), cfg)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	n := &simNode{Node: node, stores: stores, cancel: cancel, done: make(chan error, 1)}
	c.nodes[id] = n
	go func() { n.done <- node.Run(ctx) }()
}

func (c *simCluster) stop(id string) {
	n := c.nodes[id]
	delete(c.nodes, id)
	n.cancel()
	require.NoError(c.t, <-n.done)
}

func (c *simCluster) stopAll() {
	for _, conn := range c.conns {
		conn.Close()
	}
	for id := range c.nodes {
		c.stop(id)
	}
	pass(time.Second) // messages in flight on the simulated network arrive
}

// cutFromPeers cuts a node's connections to its peers. Those of clients stay.
func (c *simCluster) cutFromPeers(id string) {
	for _, p := range c.peers {
		if p.ID != id {
			c.net.Cut(id, p.ID)
		}
	}
}

// client returns a connection to one node from outside the cluster.
func (c *simCluster) client(id string) rollcallv1.DiscoveryServiceClient {
	if c.conns[id] == nil {
		conn, err := grpc.NewClient("passthrough:///"+id+":7400", grpc.WithTransportCredentials(insecure.NewCredentials()),
			// A window that grows with the measured bandwidth may take in all that a stalled reader is sent.
			grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return c.net.Dial(ctx, "client", addr) }))
		require.NoError(c.t, err)
		c.conns[id] = conn
	}
	return rollcallv1.NewDiscoveryServiceClient(c.conns[id])
}

// leader waits for an established leader and returns its id.
func (c *simCluster) leader() (id string, epoch uint64) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); pass(20 * time.Millisecond) {
		for id := range c.nodes {
			ctx, cancel := context.WithTimeout(c.t.Context(), 100*time.Millisecond)
			p, err := c.client(id).Ping(ctx, &rollcallv1.PingRequest{})
			cancel()
			if err == nil && p.Leader.GetNode() == id && p.Epoch > epoch {
				return id, p.Epoch
			}
		}
	}
	require.FailNow(c.t, "no leader")
	return "", 0
}

func service(id string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://" + id + ":3000"}}
}

func gatewayWriter(id string, incarnation, seq uint64) *rollcallv1.Writer {
	return &rollcallv1.Writer{
		Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: id},
		Incarnation: incarnation, Seq: seq,
	}
}

func TestCluster_LeaderStops_NextLeaderHasTheServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		first, epoch := c.leader()

		resp, err := c.client(first).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
			Writer: gatewayWriter("edge", 1, 1), Services: []*rollcallv1.Service{service("oz-relayer-1"), service("oz-relayer-2")}, FullSet: true,
		})
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.Registered)
		require.Equal(t, epoch, resp.Epoch)

		c.stop(first)
		second, next := c.leader()
		require.NotEqual(t, first, second)
		require.Greater(t, next, epoch)
		list, err := c.client(second).ListServices(t.Context(), &rollcallv1.ListServicesRequest{})
		require.NoError(t, err)
		require.Len(t, list.Records, 2)

		// Unchanged: answered without an entry, under the new epoch.
		resp, err = c.client(second).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
			Writer: gatewayWriter("edge", 1, 2), Services: []*rollcallv1.Service{service("oz-relayer-1"), service("oz-relayer-2")}, FullSet: true,
		})
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.Unchanged)
	})
}
