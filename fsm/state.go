package fsm

import (
	"bytes"
	"iter"

	"github.com/tidwall/btree"
)

// State is the directory at one point of the log. It is immutable, safe for concurrent use and cheap to keep.
type State struct {
	cluster string
	epoch   uint64
	leader  string
	index   uint64

	entries *btree.Map[string, *Entry]
	kinds   *btree.Map[string, int]
	owners  *btree.Map[string, *ownerState] // by Owner.String
	staged  *stagedImport                   // nil without one
}

// ownerState is the stored state of an owner. It is immutable once published.
type ownerState struct {
	owner            Owner
	incarnation, seq uint64
	body             BodyHash // of the write with seq; zero if its entry had none
	answer           Result   // to the write with seq
	entries          int
}

// Cluster returns the cluster's id, empty until the first leader has been established.
func (s *State) Cluster() string { return s.cluster }

// Epoch returns the last epoch opened, 0 before the first.
func (s *State) Epoch() uint64 { return s.epoch }

// Leader returns the id of the node that opened the epoch.
func (s *State) Leader() string { return s.leader }

// Index returns the Raft index of the last command applied.
func (s *State) Index() uint64 { return s.index }

// Len returns the number of services.
func (s *State) Len() int { return s.entries.Len() }

// Count returns the number of services of a kind.
func (s *State) Count(kind string) int {
	n, _ := s.kinds.Get(kind)
	return n
}

// Get returns a service by id.
func (s *State) Get(id string) (*Entry, bool) { return s.entries.Get(id) }

// All iterates over the directory in id order.
func (s *State) All() iter.Seq[*Entry] { return s.From("") }

// From iterates over the directory in id order, beginning with the first id not below the given one.
func (s *State) From(id string) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		s.entries.Ascend(id, func(_ string, e *Entry) bool { return yield(e) })
	}
}

// OwnerInfo is the directory's state of an owner.
type OwnerInfo struct {
	Owner            Owner
	Incarnation, Seq uint64
	// Body is the hash of the body of the write with Seq; zero if its entry had none.
	Body BodyHash
	// Entries is the number of services that the owner owns.
	Entries int
}

// Owner returns the directory's state of an owner.
func (s *State) Owner(o Owner) (OwnerInfo, bool) {
	os, ok := s.owners.Get(o.String())
	if !ok {
		return OwnerInfo{}, false
	}
	return os.info(), true
}

// Owners iterates over all owners that the directory knows, ordered by Owner.String.
func (s *State) Owners() iter.Seq[OwnerInfo] {
	return func(yield func(OwnerInfo) bool) {
		s.owners.Scan(func(_ string, os *ownerState) bool { return yield(os.info()) })
	}
}

func (os *ownerState) info() OwnerInfo {
	return OwnerInfo{Owner: os.owner, Incarnation: os.incarnation, Seq: os.seq, Body: os.body, Entries: os.entries}
}

// Unchanged reports whether registering the services would change nothing, and returns the answer for that case. ids
// and encoded are parallel; encoded holds results of EncodeService. Unchanged ignores fences.
func (s *State) Unchanged(owner Owner, ids []string, encoded [][]byte, fullSet bool) (Answer, bool) {
	a := Answer{Epoch: s.epoch, Index: s.index}
	for i, id := range ids {
		e, ok := s.entries.Get(id)
		switch {
		case ok && e.Owner == owner && bytes.Equal(e.raw, encoded[i]):
			a.Unchanged++
		case ok && owner == Static && e.Owner != owner:
			a.Yielded++
		default:
			return Answer{}, false
		}
	}
	if fullSet {
		if os, ok := s.owners.Get(owner.String()); ok && os.entries != a.Unchanged {
			return Answer{}, false
		}
	}
	return a, true
}
