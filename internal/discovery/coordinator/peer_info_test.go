package coordinator

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// fakePeer returns the configured answer.
type fakePeer struct {
	rollcallv1.UnimplementedPeerServiceServer
	answer atomic.Pointer[rollcallv1.ConfirmTermResponse] // a call that the test no longer waits for may still read it
}

func (f *fakePeer) ConfirmTerm(context.Context, *rollcallv1.ConfirmTermRequest) (*rollcallv1.ConfirmTermResponse, error) {
	return f.answer.Load(), nil
}

// A term must be confirmed by the asked voter, not by another node at its address.
func TestConfirmer_AnotherNodeAtTheAddress_IsNotCounted(t *testing.T) {
	t.Parallel()
	fake := new(fakePeer)
	server := grpc.NewServer()
	rollcallv1.RegisterPeerServiceServer(server, fake)
	listener := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	p := newPeers(&Config{}, nil)
	p.dial = func(string) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	}
	t.Cleanup(p.close)
	c := &confirmer{term: 7, cluster: "ours", node: "a", peers: p}

	for name, tc := range map[string]struct {
		answer *rollcallv1.ConfirmTermResponse
		err    string
	}{
		"the voter":                   {&rollcallv1.ConfirmTermResponse{Term: 7, Node: "b", Cluster: "ours"}, ""},
		"a node without a log":        {&rollcallv1.ConfirmTermResponse{Term: 7, Node: "b"}, `b of cluster "" answers in place of b`},
		"another node":                {&rollcallv1.ConfirmTermResponse{Term: 7, Node: "c", Cluster: "ours"}, `c of cluster "ours" answers in place of b`},
		"another cluster":             {&rollcallv1.ConfirmTermResponse{Term: 7, Node: "b", Cluster: "theirs"}, `b of cluster "theirs" answers in place of b`},
		"another cluster, later term": {&rollcallv1.ConfirmTermResponse{Term: 9, Node: "b", Cluster: "theirs"}, "in place of b"},
		"a nameless node":             {&rollcallv1.ConfirmTermResponse{Term: 7}, "in place of b"},
		"a later term":                {&rollcallv1.ConfirmTermResponse{Term: 8, Node: "b", Cluster: "ours"}, errLostLeadership.Error()},
		"an earlier term":             {&rollcallv1.ConfirmTermResponse{Term: 6, Node: "b", Cluster: "ours"}, "deadline exceeded"},
	} {
		fake.answer.Store(tc.answer)
		timeout := time.Minute
		if tc.answer.Term < 7 { // it is asked about until then
			timeout = 3 * behindPoll
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err := c.askPeer(ctx, raft.Server{ID: "b", Address: "b:7400"})
		cancel()
		if tc.err == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tc.err, name)
		}
	}
}

// A node that is still reading its log, which may take long, must not look like a first start.
func TestDescribe_RaftNotStarted_ReportsWhetherItHasState(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		entries  uint64
		snapshot bool
		has      bool
	}{
		"nothing": {}, "founder": {entries: 1}, "log": {entries: 2, has: true}, "snapshot": {snapshot: true, has: true},
	} {
		store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		for i := range tc.entries {
			require.NoError(t, store.StoreLog(&raft.Log{Index: i + 1, Term: 1}))
		}
		if tc.snapshot {
			sink, err := snapshots.Create(raft.SnapshotVersionMax, 5, 1, raft.Configuration{}, 0, nil)
			require.NoError(t, err)
			require.NoError(t, sink.Close())
		}
		n, err := Open(t.Context(), Config{
			ID: "a", Listen: "127.0.0.1:0", Peers: []Peer{{"a", "127.0.0.1:1"}},
			Stores: &Stores{Log: store, Stable: store, Snapshots: snapshots},
		})
		require.NoError(t, err)
		require.Equal(t, tc.has, n.describe().HasState, name)
		require.NoError(t, n.Close())
	}
}
