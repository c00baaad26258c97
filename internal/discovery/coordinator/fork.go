package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// A follower may have installed a restored snapshot (see restore.go) that is never committed. The next leader does not
// have the snapshot, and puts an entry of its own at the snapshot's index. Raft compares a new entry only with the
// log, which has no entry at that index. It stores the new entry and does not apply it, because the snapshot
// supposedly contains it.
//
// The terms reveal the fork. A snapshot of index i and term t holds entries up to i, of terms up to t, because terms
// only grow along a log. An entry of a later term at one of these indexes is therefore from a log without the
// snapshot. A committed snapshot never meets such an entry, because every later leader has its content. An undone
// snapshot meets such an entry before any other. The restoring leader had opened its epoch in that term, so later
// leaders have everything before the snapshot, and continue with entries of their own terms.
//
// Rejected: restoring through the log, which would put a whole directory into every log again.

// undoneError stops a node that holds a restored snapshot which the cluster does not have.
type undoneError struct{ snapshot, entry position }

func (e *undoneError) Error() string {
	return fmt.Sprintf("a restored snapshot, installed here up to index %d of term %d, came undone: the leader has another entry %d, of term %d; ending, to take over what the others have",
		e.snapshot.index, e.snapshot.term, e.entry.index, e.entry.term)
}

// position is the position of a snapshot or an entry in the history of a cluster.
type position struct{ index, term uint64 }

// forkDetector wraps Raft's stores and checks that the log continues the snapshots. It is safe for concurrent use.
type forkDetector struct {
	stores *Stores
	// undone receives the first contradiction.
	undone chan *undoneError

	mu sync.Mutex
	// held holds the newest snapshot on disk, from which a restart begins, and any older ones that were stored after
	// it.
	held []position
}

func newLineage(stores *Stores) (*forkDetector, error) {
	l := &forkDetector{stores: stores, undone: make(chan *undoneError, 1)}
	metas, err := stores.Snapshots.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	if len(metas) > 0 {
		l.hold(position{metas[0].Index, metas[0].Term})
	}
	return l, nil
}

// hold records a stored snapshot. It forgets older ones, which Raft would not start from.
func (l *forkDetector) hold(p position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(slices.DeleteFunc(l.held, func(h position) bool {
		return cmp.Or(cmp.Compare(h.term, p.term), cmp.Compare(h.index, p.index)) <= 0
	}), p)
}

// findFork returns an error for the first entry that contradicts a held snapshot, or nil if there is none.
func (l *forkDetector) findFork(entries []*raft.Log) *undoneError {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		for _, h := range l.held {
			if e.Index <= h.index && e.Term > h.term {
				return &undoneError{snapshot: h, entry: position{e.Index, e.Term}}
			}
		}
	}
	return nil
}

// check refuses a message of another node if it contradicts a snapshot. Raft does not receive it. If Raft has the
// entry after the snapshot, it would otherwise request that one forever before it stores anything.
func (l *forkDetector) check(command any) error {
	req, ok := command.(*raft.AppendEntriesRequest)
	if !ok {
		return nil
	}
	err := l.findFork(req.Entries)
	if err == nil {
		return nil
	}
	// A deposed leader may have sent the message, and contradict entries committed since. Raft itself refuses it by
	// its term, which Raft stores before it installs a snapshot.
	if term, problem := l.stores.Stable.GetUint64(keyCurrentTerm); problem != nil || req.Term < term {
		return nil // a failing store reports its own error
	}
	l.tell(err)
	return err
}

func (l *forkDetector) tell(err *undoneError) {
	select {
	case l.undone <- err:
	default: // one report is enough
	}
}

func (l *forkDetector) logs() raft.LogStore { return guardedLogStore{l.stores.Log, l} }

// guardedLogStore keeps entries that contradict a snapshot out of the log. Entries that arrive while the snapshot is
// being installed pass check, because the snapshot is not held yet.
type guardedLogStore struct {
	raft.LogStore
	forks *forkDetector
}

func (s guardedLogStore) StoreLog(entry *raft.Log) error { return s.StoreLogs([]*raft.Log{entry}) }

func (s guardedLogStore) StoreLogs(entries []*raft.Log) error {
	if err := s.forks.findFork(entries); err != nil {
		s.forks.tell(err)
		return err
	}
	return s.LogStore.StoreLogs(entries)
}

func (l *forkDetector) snapshots() raft.SnapshotStore { return trackedSnapshots{l.stores.Snapshots, l} }

// trackedSnapshots reports stored snapshots to the forkDetector.
type trackedSnapshots struct {
	raft.SnapshotStore
	forks *forkDetector
}

func (s trackedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, cIndex, trans)
	if err != nil {
		return nil, err
	}
	return &notedSink{sink, s.forks, position{index, term}}, nil
}

type notedSink struct {
	raft.SnapshotSink
	forks    *forkDetector
	position position
}

func (s *notedSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil {
		s.forks.hold(s.position)
	}
	return err
}

// watchLineage ends the node when its snapshot was undone, and makes its next start begin without that state.
func (n *Node) watchLineage(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case undone := <-n.forks.undone:
		var err error = undone
		if n.cfg.DataDir != "" {
			err = errors.Join(err, writeMarker(n.cfg.DataDir, restoreMark))
		}
		return err
	}
}
