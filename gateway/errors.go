package gateway

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

var (
	// ErrNoLeader reports that no coordinator leads, or that the leader is unreachable.
	ErrNoLeader = errors.New("no coordinator leads")
	// ErrNotEstablished is a leader's response before its epoch is committed. Nothing was done.
	ErrNotEstablished = errors.New("the leader is not established yet")
	// ErrNoQuorum is a leader's response when it could not confirm its term. Nothing was done.
	ErrNoQuorum = errors.New("the leader could not reach a quorum")
	// ErrBusy is a leader's response when its write queue is full. Nothing was done.
	ErrBusy = errors.New("the leader has more writes to do than it can take")
	// ErrCompacted ends a watch that cannot be resumed. The caller watches again without a token.
	ErrCompacted = errors.New("the changes to resume from are gone; watch again from the start")
	// ErrClosed is returned by a closed Client.
	ErrClosed = errors.New("the client is closed")
)

// Owner identifies the owner that may change an entry of the directory. It is comparable.
type Owner struct {
	Kind rollcallv1.OwnerKind
	ID   string
}

func ownerOf(o *rollcallv1.Owner) Owner { return Owner{o.GetKind(), o.GetId()} }

// String returns "gateway/edge-1", "static" or "operator".
func (o Owner) String() string {
	kind := strings.ToLower(strings.TrimPrefix(o.Kind.String(), "OWNER_KIND_"))
	if o.ID == "" {
		return kind
	}
	return kind + "/" + o.ID
}

// NotLeaderError is the response of a coordinator that does not lead. Nothing was done.
type NotLeaderError struct {
	// Leader is the leader that the coordinator reported, nil if none.
	Leader *rollcallv1.Leader
	Epoch  uint64
}

func (e *NotLeaderError) Error() string {
	if e.Leader == nil {
		return "the coordinator is not the leader and has none to name"
	}
	return fmt.Sprintf("the coordinator does not lead; %s at %s does", e.Leader.GetNode(), e.Leader.GetAddress())
}

// StaleEpochError refuses a write of another epoch than the leader's. Nothing was done.
type StaleEpochError struct {
	// Epoch is the leader's.
	Epoch uint64
}

func (e *StaleEpochError) Error() string {
	return fmt.Sprintf("the write names another epoch than the leader's, %d", e.Epoch)
}

// SupersededError refuses a write because its owner has since written with a higher incarnation or sequence number.
// Nothing was done.
type SupersededError struct {
	Owner            Owner
	Incarnation, Seq uint64
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s has written since, as incarnation %d with sequence number %d", e.Owner, e.Incarnation, e.Seq)
}

// SequenceReusedError refuses a write because its owner has used the sequence number for another body. Nothing was
// done; the first body keeps its answer.
type SequenceReusedError struct {
	Owner            Owner
	Incarnation, Seq uint64
	// Recorded is the SHA-256 of the body that was written first, Received that of the refused body.
	Recorded, Received []byte
}

func (e *SequenceReusedError) Error() string {
	return fmt.Sprintf("%s has used sequence number %d of incarnation %d for another body (recorded %x, received %x); write another body with the next number",
		e.Owner, e.Seq, e.Incarnation, e.Recorded, e.Received)
}

// Conflict is a service that another owner owns.
type Conflict struct {
	// Index is its position in the request.
	Index int
	ID    string
	Owner Owner
}

// ConflictError refuses a write because other owners own some of its services. Nothing was done.
type ConflictError struct{ Conflicts []Conflict }

func (e *ConflictError) Error() string {
	return "owned by another: " + list(e.Conflicts, func(c Conflict) string {
		return fmt.Sprintf("%s (by %s)", c.ID, c.Owner)
	})
}

// TooLargeError refuses a request with more services or bytes than one call may have. Nothing was done.
type TooLargeError struct {
	Services, MaxServices uint64
	Bytes, MaxBytes       uint64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%d services of %d bytes are too many for one call, which takes %d services and %d bytes; split them",
		e.Services, e.Bytes, e.MaxServices, e.MaxBytes)
}

// Violation is one fault of a request.
type Violation struct {
	// Index is the position of the faulty service or id, -1 for the request itself.
	Index int
	// Field is the field's path in the request, such as "services[3].worker_ref.url".
	Field       string
	Description string
}

func (v Violation) String() string { return v.Field + ": " + v.Description }

// InvalidError refuses a request and lists all its faults. Nothing was done.
type InvalidError struct{ Violations []Violation }

func (e *InvalidError) Error() string { return "invalid: " + list(e.Violations, Violation.String) }

// UnknownOutcomeError reports that a write may have been done. The caller repeats it with the same sequence number, or
// reads.
type UnknownOutcomeError struct {
	Cause string
	// Err is the client's own error; nil if a coordinator reported the unknown outcome.
	Err error
}

func (e *UnknownOutcomeError) Error() string { return "the write may be done or not: " + e.Cause }
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// ForeignClusterError refuses to call another cluster than the expected one.
type ForeignClusterError struct {
	Expected, Actual string
	// Address is the address of the coordinator that responded; empty if a coordinator refused this client.
	Address string
}

func (e *ForeignClusterError) Error() string {
	where := "the other side"
	if e.Address != "" {
		where = "the coordinator at " + e.Address
	}
	return fmt.Sprintf("%s belongs to cluster %q, not to %q; if the cluster was founded again on purpose, restart this process",
		where, e.Actual, e.Expected)
}

// list joins the results of f for the first few elements of all.
func list[T any](all []T, f func(T) string) string {
	const show = 5
	var parts []string
	for _, v := range all[:min(show, len(all))] {
		parts = append(parts, f(v))
	}
	if more := len(all) - show; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// FromStatus converts the status of a failed call back into its original error: one of this package's, or
// context.Canceled or DeadlineExceeded. It returns nil and unrecognized errors unchanged.
func FromStatus(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	for _, detail := range s.Details() {
		if restored := fromDetail(detail); restored != nil {
			return restored
		}
	}
	switch s.Code() {
	case codes.Canceled:
		return annotate(context.Canceled, s.Message())
	case codes.DeadlineExceeded:
		return annotate(context.DeadlineExceeded, s.Message())
	}
	return err
}

// annotate adds why to err, unless why already begins with err's text.
func annotate(err error, why string) error {
	if why == "" || strings.HasPrefix(why, err.Error()) {
		return err
	}
	return fmt.Errorf("%w: %s", err, why)
}

// fromDetail returns nil for a detail that is not an error by itself, or that a newer coordinator sent.
func fromDetail(detail any) error {
	switch d := detail.(type) {
	case *rollcallv1.NotLeader:
		return &NotLeaderError{Leader: d.GetLeader(), Epoch: d.GetEpoch()}
	case *rollcallv1.NotEstablished:
		return ErrNotEstablished
	case *rollcallv1.NoQuorum:
		return ErrNoQuorum
	case *rollcallv1.Busy:
		return ErrBusy
	case *rollcallv1.StaleEpoch:
		return &StaleEpochError{Epoch: d.GetEpoch()}
	case *rollcallv1.Superseded:
		return &SupersededError{Owner: ownerOf(d.GetOwner()), Incarnation: d.GetIncarnation(), Seq: d.GetSeq()}
	case *rollcallv1.SequenceReused:
		return &SequenceReusedError{
			Owner: ownerOf(d.GetOwner()), Incarnation: d.GetIncarnation(), Seq: d.GetSeq(),
			Recorded: d.GetRecorded(), Received: d.GetReceived(),
		}
	case *rollcallv1.Conflicts:
		e := &ConflictError{}
		for _, c := range d.GetConflicts() {
			e.Conflicts = append(e.Conflicts, Conflict{Index: int(c.GetIndex()), ID: c.GetId(), Owner: ownerOf(c.GetOwner())})
		}
		return e
	case *rollcallv1.TooLarge:
		return &TooLargeError{
			Services: d.GetServices(), MaxServices: d.GetMaxServices(),
			Bytes: d.GetBytes(), MaxBytes: d.GetMaxBytes(),
		}
	case *rollcallv1.UnknownOutcome:
		return &UnknownOutcomeError{Cause: d.GetCause()}
	case *rollcallv1.Compacted:
		return fmt.Errorf("%w: %s", ErrCompacted, d.GetCause())
	case *rollcallv1.ForeignCluster:
		return &ForeignClusterError{Expected: d.GetExpected(), Actual: d.GetActual()}
	case *errdetails.BadRequest:
		e := &InvalidError{}
		for _, v := range d.GetFieldViolations() {
			e.Violations = append(e.Violations, Violation{
				Index: fieldIndex(v.GetField()), Field: v.GetField(), Description: v.GetDescription(),
			})
		}
		return e
	}
	return nil
}

var indexed = regexp.MustCompile(`^(?:services|ids)\[(\d+)\]`)

func fieldIndex(field string) int {
	if m := indexed.FindStringSubmatch(field); m != nil {
		if i, err := strconv.Atoi(m[1]); err == nil {
			return i
		}
	}
	return -1
}

// retryAfter returns how long a refusal asks the caller to wait, and false if it does not ask.
func retryAfter(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if d, ok := detail.(*errdetails.RetryInfo); ok {
			return d.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}
