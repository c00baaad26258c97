package coordinator

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// A new kind of command waits until every voter says that it knows it.
func TestNewCommandsWaitForEveryVoter(t *testing.T) {
	stores := raft.NewInmemStore()
	n, err := Open(t.Context(), Config{
		ID: "a", Listen: "127.0.0.1:0", Peers: []Peer{{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:2"}, {"c", "127.0.0.1:3"}},
		Stores: &Stores{Log: stores, Stable: stores, Snapshots: raft.NewInmemSnapshotStore()},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	require.NoError(t, n.bootstrap())
	r, _, err := n.startRaft()
	require.NoError(t, err)

	say := func(node string, version uint32) {
		n.peers.facts[node] = &rollcallv1.DescribeResponse{Node: node, CommandVersion: version}
	}
	const next = fsm.CommandVersion + 1
	require.NoError(t, n.checkCommandVersion(r, 1), "the first commands need nobody's word")
	require.Equal(t, codes.FailedPrecondition, status.Code(n.checkCommandVersion(r, next)), "nobody has spoken")
	say("b", next)
	say("c", next-1)
	require.Error(t, n.checkCommandVersion(r, next), "c is older")
	say("c", next)
	require.Error(t, n.checkCommandVersion(r, next), "this node is older itself")
	require.EqualValues(t, fsm.CommandVersion, n.commandVersion(r))
	say("c", 0)
	require.EqualValues(t, 1, n.commandVersion(r), "an old node that does not say")
}
