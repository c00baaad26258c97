package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is a scripted cluster on an in-memory network. The test sets the leader that each node reports. All nodes
// share one directory, which applies the rules of owners, incarnations and sequence numbers.
type fleet struct {
	t *testing.T

	mu    sync.Mutex
	nodes map[string]*node // by address

	index     uint64
	directory map[string]*rollcallv1.ServiceRecord
	owners    map[Owner]*ownerState
	writes    []*rollcallv1.RegisterServicesRequest // all that reached a node, including refused ones
}

type ownerState struct {
	incarnation, seq uint64
	answer           proto.Message
	failure          error
}

// node is one coordinator. The fleet's mutex guards its fields.
type node struct {
	rollcallv1.UnimplementedDiscoveryServiceServer
	fleet         *fleet
	id, address   string
	clientAddress string // advertised while it leads
	cluster       string
	epoch         uint64
	leader        *node // the leader that it reports
	hangs         bool  // calls wait until they are canceled
	pings         int
	before, after func(method string) error // faults, before and after a write is applied

	server   *grpc.Server
	listener *bufconn.Listener
}

func newFleet(t *testing.T, ids ...string) *fleet {
	f := &fleet{
		t:         t,
		nodes:     map[string]*node{},
		directory: map[string]*rollcallv1.ServiceRecord{},
		owners:    map[Owner]*ownerState{},
	}
	for _, id := range ids {
		f.start(id)
	}
	t.Cleanup(func() {
		for _, n := range f.nodes {
			n.server.Stop()
		}
	})
	return f
}

// pass advances the bubble's clock by d and waits until all goroutines are blocked.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func address(id string) string { return id + ":7400" }

// start starts a node, or restarts it.
func (f *fleet) start(id string) *node {
	n := &node{
		fleet: f, id: id, address: address(id), clientAddress: address(id), cluster: "cluster-a",
		server: grpc.NewServer(
			grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		),
		listener: bufconn.Listen(1 << 20),
	}
	rollcallv1.RegisterDiscoveryServiceServer(n.server, n)
	go func() { _ = n.server.Serve(n.listener) }()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[n.address] = n
	return n
}

// kill stops a node like kill -9: its connections break and its listener closes.
func (f *fleet) kill(id string) { f.node(id).server.Stop() }

func (f *fleet) node(id string) *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[address(id)]
}

// lead makes all nodes report id as the leader of the epoch, or no leader for "".
func (f *fleet) lead(id string, epoch uint64) {
	f.set(func() {
		for _, n := range f.nodes {
			n.epoch, n.leader = epoch, f.nodes[address(id)]
		}
	})
}

// set changes nodes with the mutex held.
func (f *fleet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fleet) dial(ctx context.Context, address string) (net.Conn, error) {
	f.mu.Lock()
	n := f.nodes[address]
	f.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("lookup %s: no such host", address)
	}
	return n.listener.DialContext(ctx)
}

func (f *fleet) config(ids ...string) ClientConfig {
	cfg := ClientConfig{DialContext: f.dial}
	for _, id := range ids {
		cfg.Coordinators = append(cfg.Coordinators, address(id))
	}
	return cfg
}

func (f *fleet) client(ids ...string) *Client {
	return f.clientWith(f.config(ids...))
}

func (f *fleet) clientWith(cfg ClientConfig) *Client {
	c, err := NewClient(cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, c.Close()) })
	return c
}

// ids returns the ids that an owner has in the directory.
func (f *fleet) ids(owner Owner) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := []string{}
	for _, id := range slices.Sorted(maps.Keys(f.directory)) {
		if ownerOf(f.directory[id].GetOwner()) == owner {
			ids = append(ids, id)
		}
	}
	return ids
}

// took returns the writes since the last call.
func (f *fleet) took() []*rollcallv1.RegisterServicesRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.writes
	f.writes = nil
	return w
}

// failureWith returns a status error with details, as a coordinator returns it.
func failureWith(code codes.Code, details ...protoadapt.MessageV1) error {
	s, err := status.New(code, "refused").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func (n *node) ping() *rollcallv1.PingResponse {
	p := &rollcallv1.PingResponse{Cluster: n.cluster, Epoch: n.epoch, Node: n.id}
	if l := n.leader; l != nil {
		p.Leader = &rollcallv1.Leader{Node: l.id, Address: l.address, ClientAddress: l.clientAddress}
	}
	return p
}

func (n *node) Ping(ctx context.Context, _ *rollcallv1.PingRequest) (*rollcallv1.PingResponse, error) {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	n.pings++
	if err := n.waitLocked(ctx); err != nil {
		return nil, err
	}
	return n.ping(), nil
}

func (n *node) waitLocked(ctx context.Context) error {
	if !n.hangs {
		return nil
	}
	n.fleet.mu.Unlock()
	defer n.fleet.mu.Lock()
	<-ctx.Done()
	return ctx.Err()
}

// enterLocked is the start of each call for the leader.
func (n *node) enterLocked(ctx context.Context, w *rollcallv1.Writer) error {
	if err := n.waitLocked(ctx); err != nil {
		return err
	}
	if n.leader != n {
		return failureWith(codes.FailedPrecondition, &rollcallv1.NotLeader{Leader: n.ping().GetLeader(), Epoch: n.epoch})
	}
	if e := w.GetEpoch(); e != 0 && e != n.epoch {
		return failureWith(codes.Aborted, &rollcallv1.StaleEpoch{Epoch: n.epoch})
	}
	return nil
}

func (n *node) fault(hook func(string) error, method string) error {
	if hook == nil {
		return nil
	}
	n.fleet.mu.Unlock()
	defer n.fleet.mu.Lock()
	return hook(method)
}

// fenceLocked calls do once for each seq, and returns the stored answer for a repeated seq.
func (f *fleet) fenceLocked(w *rollcallv1.Writer, do func(Owner) (proto.Message, error)) (proto.Message, error) {
	owner := ownerOf(w.GetOwner())
	s := f.owners[owner]
	if s == nil {
		s = &ownerState{}
		f.owners[owner] = s
	}
	switch {
	case w.GetSeq() == 0:
		return do(owner)
	case w.GetIncarnation() < s.incarnation, w.GetIncarnation() == s.incarnation && w.GetSeq() < s.seq:
		return nil, failureWith(codes.Aborted, &rollcallv1.Superseded{Owner: w.GetOwner(), Incarnation: s.incarnation, Seq: s.seq})
	case w.GetIncarnation() == s.incarnation && w.GetSeq() == s.seq:
		return s.answer, s.failure
	}
	s.incarnation, s.seq = w.GetIncarnation(), w.GetSeq()
	s.answer, s.failure = do(owner)
	return s.answer, s.failure
}

func (n *node) RegisterServices(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
	f := n.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes = append(f.writes, req)
	if err := n.enterLocked(ctx, req.GetWriter()); err != nil {
		return nil, err
	}
	if err := n.fault(n.before, "register"); err != nil {
		return nil, err
	}
	answer, err := f.fenceLocked(req.GetWriter(), func(owner Owner) (proto.Message, error) { return f.register(n.epoch, owner, req) })
	if err := cmpErr(n.fault(n.after, "register"), err); err != nil {
		return nil, err
	}
	return answer.(*rollcallv1.RegisterServicesResponse), nil
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (f *fleet) register(epoch uint64, owner Owner, req *rollcallv1.RegisterServicesRequest) (proto.Message, error) {
	if len(req.GetServices()) == 0 && req.GetFullSet() && !req.GetAllowEmpty() {
		return nil, errors.New("an empty full set needs allow_empty")
	}
	conflicts := &rollcallv1.Conflicts{}
	resp := &rollcallv1.RegisterServicesResponse{Epoch: epoch}
	in := map[string]bool{}
	for i, s := range req.GetServices() {
		in[s.GetId()] = true
		if r := f.directory[s.GetId()]; r != nil && ownerOf(r.GetOwner()) != owner {
			conflicts.Conflicts = append(conflicts.Conflicts, &rollcallv1.Conflict{Index: uint32(i), Id: s.GetId(), Owner: r.GetOwner()})
		}
	}
	if len(conflicts.Conflicts) > 0 {
		return nil, failureWith(codes.AlreadyExists, conflicts)
	}
	f.index++
	for _, s := range req.GetServices() {
		if r := f.directory[s.GetId()]; r != nil && proto.Equal(r.GetService(), s) {
			resp.Unchanged++
			continue
		}
		resp.Registered++
		f.directory[s.GetId()] = &rollcallv1.ServiceRecord{Service: s, Owner: req.GetWriter().GetOwner(), Version: f.index}
	}
	if req.GetFullSet() {
		maps.DeleteFunc(f.directory, func(id string, r *rollcallv1.ServiceRecord) bool {
			gone := ownerOf(r.GetOwner()) == owner && !in[id]
			if gone {
				resp.Removed++
			}
			return gone
		})
	}
	resp.Index = f.index
	return resp, nil
}

func (n *node) DeregisterServices(ctx context.Context, req *rollcallv1.DeregisterServicesRequest) (*rollcallv1.DeregisterServicesResponse, error) {
	f := n.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := n.enterLocked(ctx, req.GetWriter()); err != nil {
		return nil, err
	}
	answer, err := f.fenceLocked(req.GetWriter(), func(owner Owner) (proto.Message, error) {
		conflicts := &rollcallv1.Conflicts{}
		for i, id := range req.GetIds() {
			if r := f.directory[id]; r != nil && ownerOf(r.GetOwner()) != owner {
				conflicts.Conflicts = append(conflicts.Conflicts, &rollcallv1.Conflict{Index: uint32(i), Id: id, Owner: r.GetOwner()})
			}
		}
		if len(conflicts.Conflicts) > 0 {
			return nil, failureWith(codes.PermissionDenied, conflicts)
		}
		f.index++
		resp := &rollcallv1.DeregisterServicesResponse{Epoch: n.epoch, Index: f.index}
		for _, id := range req.GetIds() {
			if f.directory[id] != nil {
				delete(f.directory, id)
				resp.Removed++
			}
		}
		return resp, nil
	})
	if err := cmpErr(n.fault(n.after, "deregister"), err); err != nil {
		return nil, err
	}
	return answer.(*rollcallv1.DeregisterServicesResponse), nil
}

// ListServices returns pages of one record, so that every list test also tests paging.
func (n *node) ListServices(ctx context.Context, req *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	f := n.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if !req.GetStale() {
		if err := n.enterLocked(ctx, nil); err != nil {
			return nil, err
		}
	}
	if err := n.fault(n.before, "list"); err != nil {
		return nil, err
	}
	resp := &rollcallv1.ListServicesResponse{Epoch: n.epoch, Index: f.index, Cluster: n.cluster}
	for _, id := range slices.Sorted(maps.Keys(f.directory)) {
		if id <= req.GetPageToken() || len(req.GetIds()) > 0 && !slices.Contains(req.GetIds(), id) {
			continue
		}
		if len(resp.Records) == 1 {
			resp.NextPageToken = resp.Records[0].GetService().GetId()
			break
		}
		resp.Records = append(resp.Records, f.directory[id])
	}
	return resp, nil
}

func (n *node) GetStatus(ctx context.Context, _ *rollcallv1.GetStatusRequest) (*rollcallv1.GetStatusResponse, error) {
	n.fleet.mu.Lock()
	defer n.fleet.mu.Unlock()
	if err := n.enterLocked(ctx, nil); err != nil {
		return nil, err
	}
	return &rollcallv1.GetStatusResponse{Cluster: n.cluster, Epoch: n.epoch, Leader: n.id}, nil
}

// WatchServices sends a snapshot part, its end, and a bookmark for each resumption. Then it waits.
func (n *node) WatchServices(req *rollcallv1.WatchServicesRequest, stream grpc.ServerStreamingServer[rollcallv1.WatchServicesResponse]) error {
	if req.GetResumeToken() == "" {
		if err := stream.Send(&rollcallv1.WatchServicesResponse{
			Event: &rollcallv1.WatchServicesResponse_Snapshot{Snapshot: &rollcallv1.SnapshotPart{}},
		}); err != nil {
			return err
		}
		if n.before != nil {
			if err := n.before("watch"); err != nil {
				return err
			}
		}
		if err := stream.Send(&rollcallv1.WatchServicesResponse{
			Token: "token-of-" + n.id, Event: &rollcallv1.WatchServicesResponse_SnapshotEnd{SnapshotEnd: &rollcallv1.SnapshotEnd{}},
		}); err != nil {
			return err
		}
	} else if err := stream.Send(&rollcallv1.WatchServicesResponse{
		Token: req.GetResumeToken() + "," + n.id, Event: &rollcallv1.WatchServicesResponse_Bookmark{Bookmark: &rollcallv1.Bookmark{}},
	}); err != nil {
		return err
	}
	if n.after != nil {
		return n.after("watch")
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func service(id string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://" + id + ":3000"}}
}

func services(ids ...string) []*rollcallv1.Service {
	var all []*rollcallv1.Service
	for _, id := range ids {
		all = append(all, service(id))
	}
	return all
}

func edge(id string) Owner { return Owner{rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, id} }
