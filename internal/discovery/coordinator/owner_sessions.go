package coordinator

import (
	"maps"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxGone is how many owners one write may take over from. It limits their share of a Raft entry to 70 kB. A host that
// takes over from more owners, with one service each, needs several writes.
const maxGone = 1000

// forgetAbove is how many owners are stored before expired ones are removed.
const forgetAbove = 1024

// ownerSessions is the state of each owner during a leader's epoch. The state machine fences writes by committed
// writes. ownerSessions covers writes in flight, and writes that were answered without an entry because they changed
// nothing.
type ownerSessions struct {
	since    time.Time
	ownerTTL time.Duration

	mu       sync.Mutex
	byOwner  map[fsm.Owner]*writer
	forgetAt int // number of owners at which forget runs next
}

type writer struct {
	incarnation, seq uint64
	body             fsm.BodyHash // of the write with seq
	inFlight         int
	lastWrite        time.Time
}

func newOwnerSessions(since time.Time, goneAfter time.Duration) *ownerSessions {
	return &ownerSessions{since: since, ownerTTL: goneAfter, byOwner: make(map[fsm.Owner]*writer), forgetAt: forgetAbove}
}

// begin admits a write, or refuses it as superseded or because its sequence number was used for another body. It also
// compares bodies that the log does not hold, of writes that changed nothing. alone reports whether no other write of
// the owner is in flight. The caller must call end when the outcome is known.
func (s *ownerSessions) begin(o fsm.Owner, incarnation, seq uint64, body fsm.BodyHash) (alone bool, end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wr := s.byOwner[o]
	if wr == nil {
		s.forget()
		wr = &writer{}
		s.byOwner[o] = wr
	}
	if seq != 0 {
		if incarnation < wr.incarnation || incarnation == wr.incarnation && seq < wr.seq {
			return false, nil, &fsm.SupersededError{Owner: o, Incarnation: wr.incarnation, Seq: wr.seq}
		}
		if incarnation == wr.incarnation && seq == wr.seq && body != wr.body {
			return false, nil, &fsm.SequenceReusedError{Owner: o, Incarnation: incarnation, Seq: seq, Recorded: wr.body, Received: body}
		}
		wr.incarnation, wr.seq, wr.body = incarnation, seq, body
	}
	wr.lastWrite = time.Now()
	alone = wr.inFlight == 0
	wr.inFlight++
	return alone, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		wr.inFlight--
	}, nil
}

// forget removes expired owners without writes in flight. The state machine fences their writes, and expiredOwners
// treats them like unknown owners. forget runs again when the number of owners has doubled, so that its cost per write
// is small. s.mu is held.
func (s *ownerSessions) forget() {
	if len(s.byOwner) < s.forgetAt {
		return
	}
	now := time.Now()
	maps.DeleteFunc(s.byOwner, func(_ fsm.Owner, wr *writer) bool {
		return wr.inFlight == 0 && now.Sub(wr.lastWrite) > s.ownerTTL
	})
	s.forgetAt = max(forgetAbove, 2*len(s.byOwner))
}

// expiredOwners lists the gateways among the owners of the ids that have been silent longer than ownerTTL, at most
// maxGone. Other owners may take their entries. A new leader waits for ownerTTL before it reports any.
func (s *ownerSessions) expiredOwners(state *fsm.State, self fsm.Owner, ids []string) []*rollcallv1.Owner {
	now := time.Now()
	if now.Sub(s.since) <= s.ownerTTL {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var expired []*rollcallv1.Owner
	checked := make(map[fsm.Owner]struct{})
	for _, id := range ids {
		e, ok := state.Get(id)
		if !ok || e.Owner == self || e.Owner.Kind != rollcallv1.OwnerKind_OWNER_KIND_GATEWAY {
			continue
		}
		if _, done := checked[e.Owner]; done {
			continue
		}
		checked[e.Owner] = struct{}{}
		if wr := s.byOwner[e.Owner]; wr == nil || now.Sub(wr.lastWrite) > s.ownerTTL {
			if expired = append(expired, e.Owner.Proto()); len(expired) == maxGone {
				break
			}
		}
	}
	return expired
}
