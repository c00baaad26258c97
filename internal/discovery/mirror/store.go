package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// Store is Redis as the Writer uses it: each operation is atomic. An error means that the operation was done, or
// not done, or will be done later; it is a *ReplyError when the server itself answered with an error.
//
// Besides Redis the mirrortest package implements it, with the same conformance suite for both.
type Store interface {
	// Read returns what stands there; the members of the sets only for the kinds named, if any.
	Read(ctx context.Context, kinds []string) (View, error)
	// Write checks the fence and, if it holds, writes everything at once.
	Write(ctx context.Context, w Write) (Reply, error)
}

// Token orders the writes of a cluster: by epoch, then by seq. Seq grows by one or more with each write.
type Token struct{ Epoch, Seq uint64 }

// Compare is negative when t is the older.
func (t Token) Compare(u Token) int {
	return cmp.Or(cmp.Compare(t.Epoch, u.Epoch), cmp.Compare(t.Seq, u.Seq))
}

// Meta is relayer:meta. The zero Meta stands for a Redis that holds none.
type Meta struct {
	Cluster string
	Token   Token
	Leader  string
	// Interval is that of the health checks.
	Interval time.Duration
	// UpdatedAt is the time of the last write by Redis's clock, to the millisecond.
	UpdatedAt time.Time
	// Kinds are all that were ever mirrored, sorted.
	Kinds []string
}

// View is what a Read found.
type View struct {
	Meta Meta
	// Now is the store's clock during the read.
	Now time.Time
	// Active has the members of each kind's set.
	Active map[string][]string
	// Wrong names the kinds whose key is not a set; they count as empty.
	Wrong []string
	// Services are the ids that have a status hash.
	Services []string
}

// Op says what a Write is for, or that it is none.
type Op string

// The operations.
const (
	OpRead Op = "read"
	// OpClaim opens an epoch: it writes meta, tells readers who leads, and needs no base.
	OpClaim Op = "claim"
	// OpChange changes sets, and the hashes of the services that it moves.
	OpChange Op = "change"
	// OpStatus writes hashes only.
	OpStatus Op = "status"
	// OpHeartbeat writes nothing but meta.
	OpHeartbeat Op = "heartbeat"
)

// Write is one fenced write.
type Write struct {
	Op      Op
	Cluster string
	Leader  string
	Token   Token
	// Base is what meta must hold for the write to be applied, so that each write builds on a known state. A claim
	// builds on anything older.
	Base Token
	// NotAfter, in the store's clock, is when the leadership that the write rests on is no longer trusted.
	NotAfter time.Time
	Interval time.Duration
	// Kinds replaces those in meta, unless it is empty.
	Kinds  []string
	Sets   []SetChange
	Status []StatusChange
}

// SetChange changes the set of one kind, or just asks for its size.
type SetChange struct {
	Kind        string
	Add, Remove []Member
	// Replace deletes a key that is not a set even if there is nothing to add.
	Replace bool
}

// Member is an id that joins or leaves a set, and what the event says about it.
type Member struct{ ID, URL, Reason string }

// StatusChange writes the hash of one service, or deletes it.
type StatusChange struct {
	ID string
	// Fields are names and values, as statusFields orders them; none deletes the hash.
	Fields []string
	// Inherit leaves a hash alone that is of the same kind and URL.
	Inherit bool
}

// Outcome is how the store answered a Write.
type Outcome string

// The outcomes.
const (
	// Applied is the only one that changed anything.
	Applied Outcome = "applied"
	// Duplicate means that the write had been applied before.
	Duplicate Outcome = "duplicate"
	// Mismatch means that meta is not at the write's base: the store was emptied, or holds an older copy.
	Mismatch Outcome = "mismatch"
	// Expired means that the write came after its deadline.
	Expired Outcome = "expired"
	// Older means that meta holds a newer token, or one of another leader of the same epoch.
	Older Outcome = "older"
	// Foreign means that meta is another cluster's.
	Foreign Outcome = "foreign"
)

// Reply answers a Write.
type Reply struct {
	Outcome Outcome
	// Now is the store's clock during the write.
	Now time.Time
	// Held is meta as it was before.
	Held Meta
	// Sizes has the size of each of the Write's sets, -1 for a key that is not a set.
	Sizes []int
}

// ReplyError is an error that the server answered with: it is there, but refuses.
type ReplyError struct{ Err error }

func (e *ReplyError) Error() string { return e.Err.Error() }
func (e *ReplyError) Unwrap() error { return e.Err }

// HigherEpochError says that Redis holds an epoch of the same cluster that this leader must not write below: a
// newer leader's, or one from before the directory was restored. The next epoch has to be above Seen.
type HigherEpochError struct{ Epoch, Seen uint64 }

func (e *HigherEpochError) Error() string {
	return fmt.Sprintf("redis holds epoch %d, this leader's is %d", e.Seen, e.Epoch)
}

// ForeignClusterError says that Redis mirrors another cluster.
type ForeignClusterError struct {
	// Cluster and Epoch are those in Redis.
	Cluster string
	Epoch   uint64
	// Own is the cluster that wanted to write.
	Own string
}

func (e *ForeignClusterError) Error() string {
	return fmt.Sprintf("redis mirrors cluster %s (epoch %d), not %s: if that one is gone for good, "+
		"`rollcall mirror take-over` hands its keys to this cluster", e.Cluster, e.Epoch, e.Own)
}

// ErrSuperseded is returned by a Writer after another one of the same node and epoch has claimed.
var ErrSuperseded = errors.New("another writer of this node and epoch has claimed the mirror")

// Status is what a check found.
type Status string

// The verdicts, as they stand in Redis.
const (
	Healthy   Status = "healthy"
	Unhealthy Status = "unhealthy"
	// Unknown is a service not yet checked by this leader at its present URL. It stays listed if it was.
	Unknown Status = "unknown"
)

// Entry is a service of the directory and what its last check found.
type Entry struct {
	ID, Kind, URL string
	Status        Status
	// Hold keeps a service listed that was, though it is unhealthy.
	Hold      bool
	LastCheck time.Time
	Latency   time.Duration
	// Failures in a row.
	Failures int
	Reason   string
}

// checkedHere reports whether this leader's own checks say whether the service is listed; else it stays what it was.
func (e Entry) checkedHere() bool {
	return e.Status == Healthy || e.Status == Unhealthy && !e.Hold
}

// statusFields are the names and values of a status hash. They begin with id, kind and url.
func statusFields(e Entry, epoch uint64) []string {
	var last string
	if !e.LastCheck.IsZero() {
		last = timefmt.Format(e.LastCheck)
	}
	return []string{
		"id", e.ID,
		"kind", e.Kind,
		"url", e.URL,
		"status", string(cmp.Or(e.Status, Unknown)),
		"lastCheck", last,
		"latencyMs", strconv.FormatInt(e.Latency.Round(time.Millisecond).Milliseconds(), 10),
		"failures", strconv.Itoa(e.Failures),
		"reason", e.Reason,
		"epoch", strconv.FormatUint(epoch, 10),
	}
}
