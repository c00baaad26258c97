package admin

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout is that of every Admin of these tests.
const timeout = 5 * time.Second

// cluster is a cluster of coordinators on an in-memory network, in a synctest bubble.
type cluster struct {
	t     *testing.T
	net   *memnet.Network
	peers []coordinator.Peer
	stops map[string]func()
}

func startCluster(t *testing.T, size int) *cluster {
	c := &cluster{t: t, net: memnet.New(), stops: map[string]func(){}}
	for i := range size {
		id := fmt.Sprintf("c%d", i+1)
		c.peers = append(c.peers, coordinator.Peer{ID: id, Address: id + ":7400"})
	}
	t.Cleanup(func() {
		for id := range c.stops {
			c.stop(id)
		}
		pass(time.Second) // messages in flight arrive
	})
	for _, p := range c.peers {
		c.start(p.ID)
	}
	return c
}

// pass advances the simulated clock, once all goroutines of the bubble wait.
func pass(d time.Duration) { <-time.After(d) }

// start runs a coordinator with an empty disk.
func (c *cluster) start(id string) {
	l, err := c.net.Listen(id + ":7400")
	require.NoError(c.t, err)
	disk := raft.NewInmemStore()
	node, err := coordinator.Open(c.t.Context(), coordinator.Config{
		ID: id, Peers: c.peers, Advertise: id + ":7400", Listener: l, Dial: c.net.Dialer(id),
		Stores: &coordinator.Stores{Log: disk, Stable: disk, Snapshots: raft.NewInmemSnapshotStore()},
	})
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	c.stops[id] = func() {
		cancel()
		require.NoError(c.t, <-ended)
	}
}

func (c *cluster) stop(id string) {
	stop := c.stops[id]
	delete(c.stops, id)
	stop()
}

// admin returns the Admin of the founders.
func (c *cluster) admin() *Admin {
	var addresses []string
	for _, p := range c.peers {
		addresses = append(addresses, p.Address)
	}
	return open(c.t, c.net, addresses...)
}

func (c *cluster) leader() gateway.Leader {
	c.t.Helper()
	a := c.admin()
	defer a.Close()
	var l gateway.Leader
	var err error
	for range 10 { // an election may take longer than one search
		if l, err = a.Leader(c.t.Context()); err == nil {
			break
		}
	}
	require.NoError(c.t, err)
	return l
}

func open(t *testing.T, n *memnet.Network, addresses ...string) *Admin {
	a, err := Open(gateway.ClientConfig{Coordinators: addresses, CallTimeout: timeout, DialContext: n.Dialer("operator")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// fake is a leader with faults. A nil function stands for a call that the test does not make.
type fake struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	rollcallv1.UnimplementedClusterServiceServer
	// leader returns the present leader; by default it is c1, in epoch 1.
	leader   func() (node string, epoch uint64)
	list     func(*rollcallv1.ListServicesRequest) *rollcallv1.ListServicesResponse
	remove   func(context.Context) error
	transfer func() error
	snapshot func(send func([]byte) error) error
	imports  func(grpc.ClientStreamingServer[rollcallv1.ImportServicesRequest, rollcallv1.ImportServicesResponse]) error

	server *grpc.Server
}

// admin serves the fake until the test ends.
func (f *fake) admin(t *testing.T) *Admin {
	n := memnet.New()
	l, err := n.Listen("c1:7400")
	require.NoError(t, err)
	// A fixed window, so that the last message of an upload is not sent before the server reads the ones before it.
	f.server = grpc.NewServer(grpc.InitialWindowSize(1<<16), grpc.InitialConnWindowSize(1<<16), grpc.WaitForHandlers(true))
	rollcallv1.RegisterDiscoveryServiceServer(f.server, f)
	rollcallv1.RegisterClusterServiceServer(f.server, f)
	f.serve(t, l)
	return open(t, n, "c1:7400")
}

func (f *fake) serve(t *testing.T, l net.Listener) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.server.Serve(l)
	}()
	t.Cleanup(func() {
		f.server.Stop()
		<-ended
	})
}

func (f *fake) Ping(context.Context, *rollcallv1.PingRequest) (*rollcallv1.PingResponse, error) {
	node, epoch := "c1", uint64(1)
	if f.leader != nil {
		node, epoch = f.leader()
	}
	return &rollcallv1.PingResponse{
		Cluster: "c", Epoch: epoch, Node: node, Leader: &rollcallv1.Leader{Node: node, Address: "c1:7400", ClientAddress: "c1:7400"},
	}, nil
}

func (f *fake) ListServices(_ context.Context, req *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	return f.list(req), nil
}

func (f *fake) RemoveMember(ctx context.Context, _ *rollcallv1.RemoveMemberRequest) (*rollcallv1.RemoveMemberResponse, error) {
	return &rollcallv1.RemoveMemberResponse{}, f.remove(ctx)
}

func (f *fake) TransferLeadership(context.Context, *rollcallv1.TransferLeadershipRequest) (*rollcallv1.TransferLeadershipResponse, error) {
	return &rollcallv1.TransferLeadershipResponse{}, f.transfer()
}

func (f *fake) TakeSnapshot(_ *rollcallv1.TakeSnapshotRequest, stream grpc.ServerStreamingServer[rollcallv1.TakeSnapshotResponse]) error {
	return f.snapshot(func(chunk []byte) error { return stream.Send(&rollcallv1.TakeSnapshotResponse{Chunk: chunk}) })
}

func (f *fake) ImportServices(stream grpc.ClientStreamingServer[rollcallv1.ImportServicesRequest, rollcallv1.ImportServicesResponse]) error {
	return f.imports(stream)
}

// refusal is the error of a coordinator with a detail that gateway restores.
func refusal(t *testing.T, code codes.Code, detail protoadapt.MessageV1) error {
	s, err := status.New(code, "refused").WithDetails(detail)
	require.NoError(t, err)
	return s.Err()
}

func service(id, url string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: url}}
}

// registerAsGateway registers a service as a gateway of that service alone would.
func registerAsGateway(t *testing.T, a *Admin, s *rollcallv1.Service) {
	t.Helper()
	_, err := a.client.Register(t.Context(), &rollcallv1.RegisterServicesRequest{
		Writer:   &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-" + s.GetId()}, Incarnation: 1, Seq: 1},
		Services: []*rollcallv1.Service{s},
	})
	require.NoError(t, err)
}
