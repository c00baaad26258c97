package gateway

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// details are all error messages of a status, with the error that each is restored to.
var details = map[string]struct {
	code   codes.Code
	detail proto.Message
	want   error
	text   string
}{
	"NotLeader": {
		codes.FailedPrecondition,
		&rollcallv1.NotLeader{Leader: &rollcallv1.Leader{Node: "n2", Address: "n2:7400"}, Epoch: 3},
		&NotLeaderError{Leader: &rollcallv1.Leader{Node: "n2", Address: "n2:7400"}, Epoch: 3},
		"the coordinator does not lead; n2 at n2:7400 does",
	},
	"NotEstablished": {codes.Unavailable, &rollcallv1.NotEstablished{}, ErrNotEstablished, "the leader is not established yet"},
	"NoQuorum":       {codes.Unavailable, &rollcallv1.NoQuorum{}, ErrNoQuorum, "the leader could not reach a quorum"},
	"Busy":           {codes.ResourceExhausted, &rollcallv1.Busy{}, ErrBusy, "the leader has more writes to do than it can take"},
	"StaleEpoch": {
		codes.Aborted, &rollcallv1.StaleEpoch{Epoch: 4}, &StaleEpochError{Epoch: 4},
		"the write names another epoch than the leader's, 4",
	},
	"Superseded": {
		codes.Aborted,
		&rollcallv1.Superseded{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"}, Incarnation: 5, Seq: 6},
		&SupersededError{Owner: edge("edge-1"), Incarnation: 5, Seq: 6},
		"gateway/edge-1 has written since, as incarnation 5 with sequence number 6",
	},
	"SequenceReused": {
		codes.FailedPrecondition,
		&rollcallv1.SequenceReused{
			Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"},
			Incarnation: 5, Seq: 6, Recorded: []byte{0xab}, Received: []byte{0xcd},
		},
		&SequenceReusedError{Owner: edge("edge-1"), Incarnation: 5, Seq: 6, Recorded: []byte{0xab}, Received: []byte{0xcd}},
		"gateway/edge-1 has used sequence number 6 of incarnation 5 for another body (recorded ab, received cd); write another body with the next number",
	},
	"Conflicts": {
		codes.AlreadyExists,
		&rollcallv1.Conflicts{Conflicts: []*rollcallv1.Conflict{{Index: 7, Id: "a", Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_STATIC}}}},
		&ConflictError{Conflicts: []Conflict{{Index: 7, ID: "a", Owner: Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_STATIC}}}},
		"owned by another: a (by static)",
	},
	"TooLarge": {
		codes.ResourceExhausted,
		&rollcallv1.TooLarge{Services: 10_001, MaxServices: 10_000, Bytes: 5, MaxBytes: 6},
		&TooLargeError{Services: 10_001, MaxServices: 10_000, Bytes: 5, MaxBytes: 6},
		"10001 services of 5 bytes are too many for one call, which takes 10000 services and 6 bytes; split them",
	},
	"UnknownOutcome": {
		codes.Unknown, &rollcallv1.UnknownOutcome{Cause: "leadership lost"}, &UnknownOutcomeError{Cause: "leadership lost"},
		"the write may be done or not: leadership lost",
	},
	"Compacted": {
		codes.OutOfRange, &rollcallv1.Compacted{Cause: "restored"}, fmt.Errorf("%w: restored", ErrCompacted),
		"the changes to resume from are gone; watch again from the start: restored",
	},
	"ForeignCluster": {
		codes.FailedPrecondition, &rollcallv1.ForeignCluster{Expected: "a", Actual: "b"},
		&ForeignClusterError{Expected: "a", Actual: "b"},
		`the other side belongs to cluster "b", not to "a"; if the cluster was founded again on purpose, restart this process`,
	},
	"BadRequest": {
		codes.InvalidArgument,
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "services[12].worker_ref.url", Description: "is empty"},
			{Field: "ids[3]", Description: "is empty"},
			{Field: "writer.owner.id", Description: "is empty"},
		}},
		&InvalidError{Violations: []Violation{
			{Index: 12, Field: "services[12].worker_ref.url", Description: "is empty"},
			{Index: 3, Field: "ids[3]", Description: "is empty"},
			{Index: -1, Field: "writer.owner.id", Description: "is empty"},
		}},
		"invalid: services[12].worker_ref.url: is empty, ids[3]: is empty, writer.owner.id: is empty",
	},
}

func TestFromStatus_EveryDetail_RestoresTheError(t *testing.T) {
	t.Parallel()
	for name, d := range details {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A RetryInfo before the error must not be mistaken for the error.
			s, err := status.New(d.code, "refused").WithDetails(
				&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}, protoadapt.MessageV1Of(d.detail))
			require.NoError(t, err)
			got := FromStatus(s.Err())
			require.EqualError(t, got, d.text)
			if e, ok := errors.AsType[*NotLeaderError](got); ok {
				e.Leader = proto.CloneOf(e.Leader) // messages received over a wire differ internally
				require.EqualExportedValues(t, d.want, got)
			} else {
				require.Equal(t, d.want, got)
			}
			wait, ok := retryAfter(s.Err())
			require.True(t, ok)
			require.Equal(t, time.Second, wait)
		})
	}
}

// A message added to the contract must get an error in this package.
func TestFromStatus_EveryErrorMessage_HasCase(t *testing.T) {
	t.Parallel()
	messages := rollcallv1.File_rollcall_v1_errors_proto.Messages()
	for i := range messages.Len() {
		name := string(messages.Get(i).Name())
		if name == "Conflict" {
			continue // a part of Conflicts
		}
		require.Contains(t, details, name)
	}
}

func TestFromStatus_OtherErrors_StayUnchanged(t *testing.T) {
	t.Parallel()
	require.NoError(t, FromStatus(nil))
	for _, err := range []error{
		errors.New("of another kind"),
		status.Error(codes.PermissionDenied, "no"),
		failureWith(codes.Unavailable, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}),
		failureWith(codes.Internal, &rollcallv1.PingRequest{}), // from a newer coordinator
	} {
		require.Equal(t, err, FromStatus(err))
	}
	require.ErrorIs(t, FromStatus(status.Error(codes.DeadlineExceeded, "late")), context.DeadlineExceeded)
	require.ErrorIs(t, FromStatus(status.Error(codes.Canceled, "gone")), context.Canceled)
	require.ErrorIs(t, FromStatus(fmt.Errorf("wrapped: %w", failureWith(codes.Unavailable, &rollcallv1.NoQuorum{}))), ErrNoQuorum)
}

func TestConflictError_LongList_IsShortened(t *testing.T) {
	t.Parallel()
	var e ConflictError
	for i := range 1000 {
		e.Conflicts = append(e.Conflicts, Conflict{ID: fmt.Sprint(i), Owner: edge("x")})
	}
	require.EqualError(t, &e, "owned by another: 0 (by gateway/x), 1 (by gateway/x), 2 (by gateway/x), 3 (by gateway/x), 4 (by gateway/x), and 995 more")
}
