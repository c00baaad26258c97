package coordinator

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Every refusal must arrive as the gateway's error of the same meaning, with the same data.
func TestToStatus_EveryRefusal_RoundTripsThroughGateway(t *testing.T) {
	edge := fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: "edge"}
	theirs := gateway.Owner{Kind: edge.Kind, ID: edge.ID}
	leader := &rollcallv1.Leader{Node: "c2", Address: "c2:7400", ClientAddress: "10.0.0.2:7400"}
	conflicts := []fsm.Conflict{{Index: 3, ID: "x", Owner: edge}}

	for _, tc := range []struct {
		err  error
		code codes.Code
		want error
	}{
		{errNotEstablished, codes.Unavailable, gateway.ErrNotEstablished},
		{errStopping, codes.Unavailable, gateway.ErrNotEstablished},
		{errNoQuorum, codes.Unavailable, gateway.ErrNoQuorum},
		{errBusy, codes.ResourceExhausted, gateway.ErrBusy},
		{fmt.Errorf("%w: %w", errBusy, context.DeadlineExceeded), codes.ResourceExhausted, gateway.ErrBusy},
		{fsm.ErrCompacted, codes.OutOfRange, gateway.ErrCompacted},
		{errSlowReader, codes.OutOfRange, gateway.ErrCompacted},
		{context.Canceled, codes.Canceled, context.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded, context.DeadlineExceeded},
	} {
		got := toStatus(fmt.Errorf("while testing: %w", tc.err))
		require.Equal(t, tc.code, status.Code(got), "%v", tc.err)
		require.ErrorIs(t, gateway.FromStatus(got), tc.want)
	}

	check := func(err error, code codes.Code, want error) {
		t.Helper()
		got := toStatus(fmt.Errorf("while testing: %w", err))
		require.Equal(t, code, status.Code(got), "%v", err)
		require.Equal(t, want, gateway.FromStatus(got))
	}
	check(&fsm.StaleEpochError{Epoch: 7}, codes.Aborted, &gateway.StaleEpochError{Epoch: 7})
	check(&fsm.SupersededError{Owner: edge, Incarnation: 8, Seq: 9}, codes.Aborted, &gateway.SupersededError{Owner: theirs, Incarnation: 8, Seq: 9})
	check(&fsm.SequenceReusedError{Owner: edge, Incarnation: 8, Seq: 9, Recorded: fsm.BodyHash{1}, Received: fsm.BodyHash{2}}, codes.FailedPrecondition,
		&gateway.SequenceReusedError{Owner: theirs, Incarnation: 8, Seq: 9, Recorded: append([]byte{1}, make([]byte, 31)...), Received: append([]byte{2}, make([]byte, 31)...)})
	check(&fsm.ConflictError{Conflicts: conflicts}, codes.AlreadyExists, &gateway.ConflictError{Conflicts: []gateway.Conflict{{Index: 3, ID: "x", Owner: theirs}}})
	check(&fsm.ConflictError{Conflicts: conflicts, Deregister: true}, codes.PermissionDenied, &gateway.ConflictError{Conflicts: []gateway.Conflict{{Index: 3, ID: "x", Owner: theirs}}})
	check(&tooLargeError{services: 10_001, bytes: 5 << 20}, codes.ResourceExhausted, &gateway.TooLargeError{
		Services: 10_001, MaxServices: rollcallv1.MaxServicesPerCall, Bytes: 5 << 20, MaxBytes: rollcallv1.MaxBytesPerCall,
	})
	check(&invalidError{[]rollcallv1.Violation{{Field: "services[3].id", Description: "is empty"}}}, codes.InvalidArgument,
		&gateway.InvalidError{Violations: []gateway.Violation{{Index: 3, Field: "services[3].id", Description: "is empty"}}})

	var notLeader *gateway.NotLeaderError
	require.ErrorAs(t, gateway.FromStatus(toStatus(&notLeaderError{leader: leader, epoch: 4})), &notLeader)
	require.Equal(t, "c2", notLeader.Leader.Node)
	require.Equal(t, "10.0.0.2:7400", notLeader.Leader.ClientAddress)
	require.EqualValues(t, 4, notLeader.Epoch)

	var foreign *gateway.ForeignClusterError
	require.ErrorAs(t, gateway.FromStatus(toStatus(&foreignClusterError{expected: "a", actual: "b"})), &foreign)
	require.Equal(t, "a", foreign.Expected)
	require.Equal(t, "b", foreign.Actual)

	var unknown *gateway.UnknownOutcomeError
	require.ErrorAs(t, gateway.FromStatus(toStatus(&unknownError{errors.New("lost")})), &unknown)
	require.Equal(t, "lost", unknown.Cause)

	require.NoError(t, toStatus(nil))
	require.Equal(t, codes.Internal, status.Code(toStatus(errors.New("a bug"))))
	own := status.Error(codes.NotFound, "as it is")
	require.Equal(t, own, toStatus(own))
}

// Hashes of bodies are compared across leaders of different versions, so they must never change. Each part of a body
// must change its hash.
func TestBodyHashes_AreStable(t *testing.T) {
	encode := func(id string) []byte {
		raw, err := fsm.EncodeService(&rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{
			Url: "http://" + id + ":1", Labels: map[string]string{"chain": "1", "zone": "a"},
		}})
		require.NoError(t, err)
		return raw
	}
	services := [][]byte{encode("a"), encode("b")}
	fence := &rollcallv1.WriteFence{Owner: fsm.Operator.Proto(), Incarnation: 1, Seq: 2, Epoch: 3}
	hashes := []fsm.BodyHash{
		hashRegister(&rollcallv1.RegisterOperation{Services: services, Fence: fence, Gone: []*rollcallv1.Owner{fsm.Static.Proto()}}),
		hashRegister(&rollcallv1.RegisterOperation{Services: services[:1]}),
		hashRegister(&rollcallv1.RegisterOperation{Services: [][]byte{append(encode("a"), encode("b")...)}}),
		hashRegister(&rollcallv1.RegisterOperation{Services: services, FullSet: true}),
		hashRegister(&rollcallv1.RegisterOperation{Services: services, Force: true}),
		hashRegister(&rollcallv1.RegisterOperation{}),
		hashDeregister(&rollcallv1.DeregisterOperation{Ids: []string{"a", "b"}, Fence: fence}),
		hashDeregister(&rollcallv1.DeregisterOperation{Ids: []string{"ab"}}),
		hashDeregister(&rollcallv1.DeregisterOperation{Ids: []string{"a", "b"}, Force: true}),
	}
	seen := make(map[fsm.BodyHash]bool)
	for i, h := range hashes {
		require.False(t, seen[h], "hash %d", i)
		seen[h] = true
	}
	require.Equal(t, hashes[0], hashRegister(&rollcallv1.RegisterOperation{Services: services}), "neither the fence nor gone owners are in it")
	require.Equal(t, "c1f5e2a750f266cb57e74edc108b3664546faa044c55bdeac9c295109cbbfedc", hashes[0].String())
	require.Equal(t, "c16318f788b87f9300a62cbd444a81db2f0a845f44057cf4d6a8b194841ab957", hashes[6].String())
}
