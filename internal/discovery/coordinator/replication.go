package coordinator

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// replication is how Raft gets on with sending its log to each follower, in the latest term that it sent in. Heartbeats,
// which travel beside it, don't count: they reach a follower that is back at once, while the log is sent to it again
// only when a wait is over that has grown, while it was away, to as much as ten seconds. Safe for concurrent use.
type replication struct {
	mu   sync.Mutex
	term uint64
	of   map[raft.ServerID]*follower
}

type follower struct {
	began time.Time // of the request under way; zero: none
	took  bool      // the last one
	index uint64    // up to which it has the log
	// rounds is how many requests it has answered; it is asked to lead from due on.
	rounds, due uint64
}

// roundsAfterTransfer is in how many rounds what replicates to a follower has surely taken up what a transfer left for it: it
// chooses at random between that and the next entries.
const roundsAfterTransfer = 16

// follower is called with mu held.
func (s *replication) follower(id raft.ServerID) *follower {
	f := s.of[id]
	if f == nil {
		if s.of == nil {
			s.of = make(map[raft.ServerID]*follower)
		}
		f = new(follower)
		s.of[id] = f
	}
	return f
}

// begin notes that a request is sent; end is to be called with whether the follower took it.
func (s *replication) begin(id raft.ServerID, req *raft.AppendEntriesRequest) (end func(took bool)) {
	if req.PrevLogEntry == 0 && len(req.Entries) == 0 {
		return func(bool) {} // a heartbeat
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case req.Term < s.term:
		return func(bool) {}
	case req.Term > s.term:
		s.term = req.Term
		clear(s.of)
	}
	f := s.follower(id)
	f.began = time.Now()
	last := req.PrevLogEntry + uint64(len(req.Entries))
	return func(took bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		f.began, f.took = time.Time{}, took
		if took {
			f.index = last
			f.rounds++
		}
	}
}

// transferTimedOut notes that a follower was to take the lead, and Raft stopped waiting for it.
func (s *replication) transferTimedOut(id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.follower(id)
	f.due = f.rounds + roundsAfterTransfer
}

// caughtUpVoters are those of the voters that take what they are sent, none of it for longer than patience: the one with the
// most of the log first.
func (s *replication) caughtUpVoters(term uint64, voters []raft.Server, patience time.Duration) []raft.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term != s.term {
		return nil
	}
	able := slices.DeleteFunc(slices.Clone(voters), func(v raft.Server) bool {
		f := s.follower(v.ID)
		return !f.took || f.rounds < f.due || !f.began.IsZero() && time.Since(f.began) > patience
	})
	slices.SortStableFunc(able, func(a, b raft.Server) int {
		return cmp.Compare(s.follower(b.ID).index, s.follower(a.ID).index)
	})
	return able
}
