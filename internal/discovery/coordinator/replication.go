package coordinator

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// replication tracks Raft's replication to each follower, in the latest term. It ignores heartbeats, which are sent
// concurrently. They reach a returning follower at once. The log is sent to it again only after a backoff, which may
// have grown to ten seconds in its absence. It is safe for concurrent use.
type replication struct {
	mu   sync.Mutex
	term uint64
	of   map[raft.ServerID]*follower
}

type follower struct {
	began time.Time // time of the request in flight; zero if none
	took  bool      // the follower accepted the last request
	index uint64    // last log index that it has
	// rounds is how many requests it has answered. A transfer may choose it once rounds reaches due.
	rounds, due uint64
}

// roundsAfterTransfer is after how many rounds the replication to a follower has almost surely taken the notice of a
// failed transfer: Raft chooses at random between the notice and the next entries.
const roundsAfterTransfer = 16

// follower returns the state of a follower. s.mu is held.
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

// begin records that a request is sent. The caller calls end with whether the follower accepted it.
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

// transferTimedOut records that Raft stopped waiting for a follower to take over the leadership.
func (s *replication) transferTimedOut(id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.follower(id)
	f.due = f.rounds + roundsAfterTransfer
}

// caughtUpVoters returns the voters that accept every AppendEntries within patience, ordered by log length.
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
