package coordinator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The errors below are refusals of a node that cannot serve. Nothing was done.
var (
	errNotEstablished = errors.New("this node leads, but its epoch is not committed yet; ask again shortly")
	errNoQuorum       = errors.New("no quorum of coordinators answers; ask again shortly")
	errStopping       = errors.New("this node is shutting down; ask again shortly")
	errLostLeadership = errors.New("leadership was lost")
	errBusy           = errors.New("more writes wait than this leader can take; nothing was done; ask again shortly")
)

// notLeaderError refuses a request that only a leader may serve. It names the leader if it is known.
type notLeaderError struct {
	leader *rollcallv1.Leader
	epoch  uint64
}

func (e *notLeaderError) Error() string {
	if e.leader == nil {
		return "this node is not the leader and has none to name"
	}
	return fmt.Sprintf("this node does not lead; %s at %s does", e.leader.Node, e.leader.ClientAddress)
}

// invalidError refuses a request and lists all its violations.
type invalidError struct{ violations []rollcallv1.Violation }

func (e *invalidError) Error() string {
	const shown = 3
	var b strings.Builder
	b.WriteString("invalid request: ")
	for i, v := range e.violations {
		if i == shown {
			fmt.Fprintf(&b, "; and %d more", len(e.violations)-shown)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(v.String())
	}
	return b.String()
}

// tooLargeError refuses a batch that must be split.
type tooLargeError struct{ services, bytes int }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%d services in %d bytes are too many for one call; split them into calls of at most %d services and %d bytes",
		e.services, e.bytes, rollcallv1.MaxServicesPerCall, rollcallv1.MaxBytesPerCall)
}

// unknownError reports that a write may have been done.
type unknownError struct{ cause error }

func (e *unknownError) Error() string {
	return fmt.Sprintf("the outcome is unknown (%v); repeat the write with the same seq, or read", e.cause)
}

func (e *unknownError) Unwrap() error { return e.cause }

// foreignClusterError refuses a caller of another cluster.
type foreignClusterError struct{ expected, actual string }

func (e *foreignClusterError) Error() string {
	return fmt.Sprintf("this is cluster %s, not %s", e.actual, e.expected)
}

// maxViolations is the maximum number of violations in one answer, because gRPC puts them into a header, about 100
// bytes each. The message contains the total.
const maxViolations = 1000

const (
	// retrySoon is the wait after a transient refusal: about the duration of an election.
	retrySoon = 50 * time.Millisecond
	// retryBusy is the wait while the leader's queue is full, so that the queue drains in the meantime.
	retryBusy = 500 * time.Millisecond
)

// toStatus maps domain errors to gRPC. gateway.FromStatus is the inverse.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code, details := codes.Internal, []protoadapt.MessageV1(nil)
	add := func(m protoadapt.MessageV1) { details = append(details, m) }
	retry := func(after time.Duration) { add(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}) }

	var (
		notLeader  *notLeaderError
		invalid    *invalidError
		tooLarge   *tooLargeError
		unknown    *unknownError
		foreign    *foreignClusterError
		stale      *fsm.StaleEpochError
		superseded *fsm.SupersededError
		reused     *fsm.SequenceReusedError
		conflict   *fsm.ConflictError
	)
	switch {
	case errors.As(err, &unknown):
		code = codes.Unknown
		add(&rollcallv1.UnknownOutcome{Cause: unknown.cause.Error()})
	case errors.As(err, &notLeader):
		code = codes.FailedPrecondition
		add(&rollcallv1.NotLeader{Leader: notLeader.leader, Epoch: notLeader.epoch})
	case errors.Is(err, errNotEstablished), errors.Is(err, errStopping):
		code = codes.Unavailable
		add(&rollcallv1.NotEstablished{})
		retry(retrySoon)
	case errors.Is(err, errNoQuorum):
		code = codes.Unavailable
		add(&rollcallv1.NoQuorum{})
		retry(retrySoon)
	case errors.Is(err, errBusy):
		code = codes.ResourceExhausted
		add(&rollcallv1.Busy{})
		retry(retryBusy)
	case errors.As(err, &invalid):
		code = codes.InvalidArgument
		br := new(errdetails.BadRequest)
		for _, v := range invalid.violations[:min(len(invalid.violations), maxViolations)] {
			br.FieldViolations = append(br.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Description})
		}
		add(br)
	case errors.As(err, &tooLarge):
		code = codes.ResourceExhausted
		add(&rollcallv1.TooLarge{
			Services: uint64(tooLarge.services), MaxServices: rollcallv1.MaxServicesPerCall,
			Bytes: uint64(tooLarge.bytes), MaxBytes: rollcallv1.MaxBytesPerCall,
		})
	case errors.As(err, &stale):
		code = codes.Aborted
		add(&rollcallv1.StaleEpoch{Epoch: stale.Epoch})
	case errors.As(err, &superseded):
		code = codes.Aborted
		add(&rollcallv1.Superseded{Owner: superseded.Owner.Proto(), Incarnation: superseded.Incarnation, Seq: superseded.Seq})
	case errors.As(err, &reused):
		code = codes.FailedPrecondition
		add(&rollcallv1.SequenceReused{
			Owner: reused.Owner.Proto(), Incarnation: reused.Incarnation, Seq: reused.Seq,
			Recorded: reused.Recorded[:], Received: reused.Received[:],
		})
	case errors.As(err, &conflict):
		code = codes.AlreadyExists
		if conflict.Deregister {
			code = codes.PermissionDenied
		}
		d := new(rollcallv1.Conflicts)
		for _, c := range conflict.Conflicts[:min(len(conflict.Conflicts), maxViolations)] {
			d.Conflicts = append(d.Conflicts, &rollcallv1.Conflict{Index: uint32(c.Index), Id: c.ID, Owner: c.Owner.Proto()})
		}
		add(d)
	case errors.As(err, &foreign):
		code = codes.FailedPrecondition
		add(&rollcallv1.ForeignCluster{Expected: foreign.expected, Actual: foreign.actual})
	case errors.Is(err, fsm.ErrImportLost):
		code = codes.Aborted
	case errors.Is(err, fsm.ErrCompacted):
		code = codes.OutOfRange
		add(&rollcallv1.Compacted{Cause: err.Error()})
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	s := status.New(code, err.Error())
	if with, derr := s.WithDetails(details...); derr == nil {
		s = with
	}
	return s.Err()
}
