package coordinator

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// A new kind of command must wait until every voter reports that it supports it.
func TestCommandVersion_VoterIsOlder_HoldsNewCommandsBack(t *testing.T) {
	stores := raft.NewInmemStore()
	n, err := Open(t.Context(), Config{
		ID: "a", Listen: "127.0.0.1:0", Peers: []Peer{{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:2"}, {"c", "127.0.0.1:3"}},
		Stores: &Stores{Log: stores, Stable: stores, Snapshots: raft.NewInmemSnapshotStore()},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	require.NoError(t, n.bootstrap("test"))
	r, _, err := n.startRaft()
	require.NoError(t, err)

	say := func(node string, version uint32, ago time.Duration) {
		d := &rollcallv1.DescribeResponse{Node: node, CommandVersion: version}
		n.peers.facts[node] = peerInfo{d, time.Now().Add(-ago)}
	}
	const own, next = 7, fsm.CommandVersion + 1
	require.NoError(t, n.checkCommandVersion(r, 1), "the first commands need no confirmation")
	require.EqualValues(t, 1, n.commandVersion(r, own), "no voter has reported a version")
	say("b", own, 0)
	require.EqualValues(t, 1, n.commandVersion(r, own), "c has not")
	say("c", own-1, 0)
	require.EqualValues(t, own-1, n.commandVersion(r, own), "c is older")
	say("c", own+1, 0)
	require.EqualValues(t, own, n.commandVersion(r, own), "this node is older itself")
	require.Equal(t, codes.FailedPrecondition, status.Code(n.checkCommandVersion(r, next)))
	say("c", 0, 0)
	require.EqualValues(t, 1, n.commandVersion(r, own), "an old node that reports no version")
	say("c", own, peerInfoTTL+time.Second)
	require.EqualValues(t, 1, n.commandVersion(r, own), "c may have been replaced by an older one since")
	require.NotNil(t, n.peers.peerInfoOf("c"), "its other reported values are kept")
	say("c", own, observePeriod)
	require.EqualValues(t, own, n.commandVersion(r, own), "it was just not asked again yet")

	// The body hash is a field that older voters stop at.
	l := &leader{ownerSessions: newOwnerSessions(time.Now(), time.Minute)}
	stamped := func(id string) []byte {
		f := &rollcallv1.WriteFence{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: id}, Incarnation: 1, Seq: 1}
		_, end, err := n.begin(l, f, func() fsm.BodyHash { return fsm.BodyHash{1} })
		require.NoError(t, err)
		end()
		return f.Body
	}
	require.Len(t, stamped("w1"), 32)
	say("c", bodyVersion-1, 0)
	require.Empty(t, stamped("w2"), "c is older")
	say("c", own, peerInfoTTL+time.Second)
	require.Empty(t, stamped("w3"), "c may be older by now")
}

// Every kind of operation must have the version that added it; a kind without one must never be proposed.
func TestSinceVersion_EveryOperation_HasAVersion(t *testing.T) {
	t.Parallel()
	kinds := new(rollcallv1.Operation).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	require.Positive(t, kinds.Len())
	for i := range kinds.Len() {
		op := new(rollcallv1.Operation)
		op.ProtoReflect().Set(kinds.Get(i), op.ProtoReflect().NewField(kinds.Get(i)))
		version := sinceVersion(op)
		require.Positive(t, version, kinds.Get(i).Name())
		require.LessOrEqual(t, version, uint32(fsm.CommandVersion), kinds.Get(i).Name())
	}
	require.Greater(t, sinceVersion(new(rollcallv1.Operation)), uint32(fsm.CommandVersion))
}
