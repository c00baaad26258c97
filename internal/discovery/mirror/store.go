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

// Store is the Writer's interface to Redis. Each operation is atomic. After an error the operation may have been done,
// may not have been done, or may be done later. The error is a *ReplyError if the server itself returned it.
//
// The mirrortest package also implements it, with the same conformance suite.
type Store interface {
	// Read returns the content, with members of the sets only for the given kinds.
	Read(ctx context.Context, kinds []string) (View, error)
	// Write checks the fence and, if it holds, writes everything atomically.
	Write(ctx context.Context, w Write) (Reply, error)
}

// Token orders the writes of a cluster: by epoch, then by seq. Seq grows by one or more with each write.
type Token struct{ Epoch, Seq uint64 }

// Compare returns a negative number if t is older than u.
func (t Token) Compare(u Token) int {
	return cmp.Or(cmp.Compare(t.Epoch, u.Epoch), cmp.Compare(t.Seq, u.Seq))
}

// Meta is the content of relayer:meta. The zero Meta means that Redis has none.
type Meta struct {
	Cluster string
	Token   Token
	Leader  string
	// Interval is the interval of the health checks.
	Interval time.Duration
	// UpdatedAt is the time of the last write by Redis's clock, to the millisecond.
	UpdatedAt time.Time
	// Kinds are all kinds ever mirrored, sorted.
	Kinds []string
}

// View is the result of a Read.
type View struct {
	Meta Meta
	// Now is the store's clock during the read.
	Now time.Time
	// Active has the members of each kind's set.
	Active map[string][]string
	// Wrong lists the kinds whose key is not a set; they count as empty.
	Wrong []string
	// Services are the ids that have a status hash.
	Services []string
}

// Op is the operation of a Write, or OpRead.
type Op string

// The operations.
const (
	OpRead Op = "read"
	// OpClaim opens an epoch: it writes meta, publishes the leader, and needs no base.
	OpClaim Op = "claim"
	// OpChange changes sets, and the hashes of the moved services.
	OpChange Op = "change"
	// OpStatus writes hashes only.
	OpStatus Op = "status"
	// OpHeartbeat writes only meta.
	OpHeartbeat Op = "heartbeat"
)

// Write is one fenced write.
type Write struct {
	Op      Op
	Cluster string
	Leader  string
	Token   Token
	// Base is the token that meta must hold for the write to be applied, so that each write builds on a known state. A
	// claim applies to any older token.
	Base Token
	// NotAfter is when the leadership behind the write is no longer valid, in the store's clock.
	NotAfter time.Time
	Interval time.Duration
	// Kinds replaces the kinds in meta, unless it is empty.
	Kinds  []string
	Sets   []SetChange
	Status []StatusChange
}

// SetChange changes the set of one kind, or only requests its size.
type SetChange struct {
	Kind        string
	Add, Remove []Member
	// Replace deletes a key that is not a set even if no members are added.
	Replace bool
}

// Member is an id that joins or leaves a set, with the data of its event.
type Member struct{ ID, URL, Reason string }

// StatusChange writes the hash of one service, or deletes it.
type StatusChange struct {
	ID string
	// Fields are names and values in the order of statusFields; without fields the hash is deleted.
	Fields []string
	// Inherit keeps an existing hash of the same kind and URL.
	Inherit bool
}

// Outcome is the store's result of a Write.
type Outcome string

// The outcomes.
const (
	// Applied is the only outcome that changes the store.
	Applied Outcome = "applied"
	// Duplicate means that the write had been applied before.
	Duplicate Outcome = "duplicate"
	// Mismatch means that meta does not hold the write's base: the store was emptied, or is an older copy.
	Mismatch Outcome = "mismatch"
	// Expired means that the write was later than its deadline.
	Expired Outcome = "expired"
	// Older means that meta holds a newer token, or a token of another leader of the same epoch.
	Older Outcome = "older"
	// Foreign means that meta belongs to another cluster.
	Foreign Outcome = "foreign"
)

// Reply is the result of a Write.
type Reply struct {
	Outcome Outcome
	// Now is the store's clock during the write.
	Now time.Time
	// Held is the content of meta before the write.
	Held Meta
	// Sizes has the size of each of the Write's sets, -1 for a key that is not a set.
	Sizes []int
}

// ReplyError is an error that the server returned: it is reachable, but refuses.
type ReplyError struct{ Err error }

func (e *ReplyError) Error() string { return e.Err.Error() }
func (e *ReplyError) Unwrap() error { return e.Err }

// HigherEpochError reports that Redis holds a higher epoch of the same cluster: a newer leader's, or one from before
// the directory was restored. The next epoch must be above Seen.
type HigherEpochError struct{ Epoch, Seen uint64 }

func (e *HigherEpochError) Error() string {
	return fmt.Sprintf("redis holds epoch %d, this leader's is %d", e.Seen, e.Epoch)
}

// ForeignClusterError reports that Redis mirrors another cluster.
type ForeignClusterError struct {
	// Cluster and Epoch are the values in Redis.
	Cluster string
	Epoch   uint64
	// Own is the cluster of the Writer.
	Own string
}

func (e *ForeignClusterError) Error() string {
	return fmt.Sprintf("redis mirrors cluster %s (epoch %d), not %s: if that one is gone for good, "+
		"`rollcall mirror take-over` hands its keys to this cluster", e.Cluster, e.Epoch, e.Own)
}

// ErrSuperseded is returned by a Writer after another Writer of the same node and epoch has claimed.
var ErrSuperseded = errors.New("another writer of this node and epoch has claimed the mirror")

// Status is the result of a check.
type Status string

// The statuses are the values in Redis.
const (
	Healthy   Status = "healthy"
	Unhealthy Status = "unhealthy"
	// Unknown is a service that this leader has not checked yet at its current URL. It stays listed if it was.
	Unknown Status = "unknown"
)

// Entry is a service of the directory with the result of its last check. A Writer keeps the entries of its updates: they
// must not be changed afterwards.
type Entry struct {
	ID, Kind, URL string
	Status        Status
	// Hold keeps an unhealthy service listed if it was listed.
	Hold      bool
	LastCheck time.Time
	Latency   time.Duration
	// Failures is the number of failures in a row.
	Failures int
	Reason   string
}

// checkedHere reports whether this leader's own checks decide if the service is listed; otherwise its membership is
// kept.
func (e *Entry) checkedHere() bool {
	return e.Status == Healthy || e.Status == Unhealthy && !e.Hold
}

// statusFields returns the names and values of a status hash. They begin with id, kind and url.
func statusFields(e *Entry, epoch uint64) []string {
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
