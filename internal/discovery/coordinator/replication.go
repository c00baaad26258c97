package coordinator

import (
	"cmp"
	"errors"
	"io"
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
	// progressed reports whether a follower acknowledged new entries, or a part of a snapshot was read for it, since the
	// last call of takeProgress.
	progressed bool
	// installing counts the snapshots that a follower is receiving, storing or restoring. It excludes the time in which
	// this node reads the next part, because its disk may hang.
	installing int
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

// follower returns the state of a follower. r.mu is held.
func (r *replication) follower(id raft.ServerID) *follower {
	f := r.of[id]
	if f == nil {
		if r.of == nil {
			r.of = make(map[raft.ServerID]*follower)
		}
		f = new(follower)
		r.of[id] = f
	}
	return f
}

// begin records that a request is sent. The caller calls end with whether the follower accepted it.
func (r *replication) begin(id raft.ServerID, req *raft.AppendEntriesRequest) (end func(took bool)) {
	if req.PrevLogEntry == 0 && len(req.Entries) == 0 {
		return func(bool) {} // a heartbeat
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case req.Term < r.term:
		return func(bool) {}
	case req.Term > r.term:
		r.term = req.Term
		clear(r.of)
	}
	f := r.follower(id)
	f.began = time.Now()
	last := req.PrevLogEntry + uint64(len(req.Entries))
	return func(took bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		f.began, f.took = time.Time{}, took
		if took {
			r.progressed = r.progressed || last > f.index
			f.index = last
			f.rounds++
		}
	}
}

// takeProgress reports whether the log of a follower has grown since the last call, or is about to: a follower is
// receiving, storing or restoring a snapshot.
func (r *replication) takeProgress() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	progressed := r.progressed || r.installing > 0
	r.progressed = false
	return progressed
}

// majorityHas reports whether a majority of the voters, one of which is this node, has the entry at index.
func (r *replication) majorityHas(servers []raft.Server, index uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	voters, have := 0, 1 // this node has it
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if f := r.of[s.ID]; f != nil && f.index >= index {
			have++
		}
	}
	return have > voters/2
}

// install returns a reader of a snapshot that records the progress of the transfer to a follower. The caller calls end
// with the result of the request. Raft limits the request's time by the snapshot's size.
func (r *replication) install(snapshot io.Reader) *installation {
	return &installation{replication: r, snapshot: snapshot}
}

// installation is a snapshot that is sent to a follower. Only one goroutine uses it.
type installation struct {
	replication *replication
	snapshot    io.Reader
	counted     bool // in replication.installing
}

// Read implements io.Reader. After a read, the transport sends the bytes. After the last one, the follower stores and
// restores the snapshot without a message to this node until it has finished.
func (i *installation) Read(p []byte) (int, error) {
	i.count(false, false)
	n, err := i.snapshot.Read(p)
	i.count(err == nil || errors.Is(err, io.EOF), n > 0)
	return n, err
}

// end records the end of the request.
func (i *installation) end(installed bool) { i.count(false, installed) }

// count records whether the follower has to act next, and whether there was progress.
func (i *installation) count(busy, progressed bool) {
	r := i.replication
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progressed = r.progressed || progressed
	switch {
	case busy && !i.counted:
		r.installing++
	case !busy && i.counted:
		r.installing--
	}
	i.counted = busy
}

// transferTimedOut records that Raft stopped waiting for a follower to take over the leadership.
func (r *replication) transferTimedOut(id raft.ServerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.follower(id)
	f.due = f.rounds + roundsAfterTransfer
}

// caughtUpVoters returns the voters that accept every AppendEntries within patience, ordered by log length.
func (r *replication) caughtUpVoters(term uint64, voters []raft.Server, patience time.Duration) []raft.Server {
	r.mu.Lock()
	defer r.mu.Unlock()
	if term != r.term {
		return nil
	}
	able := slices.DeleteFunc(slices.Clone(voters), func(v raft.Server) bool {
		f := r.follower(v.ID)
		return !f.took || f.rounds < f.due || !f.began.IsZero() && time.Since(f.began) > patience
	})
	slices.SortStableFunc(able, func(a, b raft.Server) int {
		return cmp.Compare(r.follower(b.ID).index, r.follower(a.ID).index)
	})
	return able
}
