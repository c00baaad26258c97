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

// A follower may have installed a restored snapshot (see replace.go) that is never committed: it stands at an index that
// the next leader, which knows nothing of it, fills with an entry of its own. Raft compares a new entry with the log
// alone, where there is none at that index, stores it, and does not apply it, for the snapshot is said to hold it. But the
// terms give it away. A snapshot of index i and term t holds entries up to i, of terms up to t, since terms only
// grow along a log. So an entry of a later term at one of these indexes is from a log without the snapshot. A snapshot
// that is committed meets none: every later leader has what it holds. And one that came undone meets one before anything
// else: whoever restored it had opened its epoch in that term, so that later leaders have all that was before the
// snapshot, and continue that with entries of their own terms.
//
// Rejected: restoring through the log, which would put a whole directory into every log again.

// undoneError ends a node that holds a restored snapshot which the cluster does not.
type undoneError struct{ snapshot, entry position }

func (e *undoneError) Error() string {
	return fmt.Sprintf("a restored snapshot, installed here up to index %d of term %d, came undone: the leader has another entry %d, of term %d; ending, to take over what the others have",
		e.snapshot.index, e.snapshot.term, e.entry.index, e.entry.term)
}

// position is where in the history of a cluster a snapshot or an entry stands.
type position struct{ index, term uint64 }

// forkDetector stands between Raft and its stores and sees to it that the log goes on from what the snapshots hold. Safe for
// concurrent use.
type forkDetector struct {
	stores *Stores
	// undone gets the first contradiction.
	undone chan *undoneError

	mu sync.Mutex
	// held are the newest snapshot on disk, which a restart begins with, and any older that were stored after it.
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

// hold notes a snapshot that has been stored. It forgets older ones, which Raft would not start from.
func (l *forkDetector) hold(p position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(slices.DeleteFunc(l.held, func(h position) bool {
		return cmp.Or(cmp.Compare(h.term, p.term), cmp.Compare(h.index, p.index)) <= 0
	}), p)
}

// findFork finds an entry that belongs to a history without a snapshot which this node has; nil when there is none.
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

// check refuses what another node sends if it contradicts a snapshot. Raft is not shown it: where it has the entry above,
// it asks for that before it stores anything, and would for ever.
func (l *forkDetector) check(command any) error {
	req, ok := command.(*raft.AppendEntriesRequest)
	if !ok {
		return nil
	}
	err := l.findFork(req.Entries)
	if err == nil {
		return nil
	}
	// A deposed leader may have sent it, and contradict what was committed since. Raft itself refuses that, by the term,
	// which it writes down before it installs a snapshot.
	if term, problem := l.stores.Stable.GetUint64(keyCurrentTerm); problem != nil || req.Term < term {
		return nil //nolint:nilerr // a store that fails says so itself
	}
	l.tell(err)
	return err
}

func (l *forkDetector) tell(err *undoneError) {
	select {
	case l.undone <- err:
	default: // once is enough
	}
}

func (l *forkDetector) logs() raft.LogStore { return guardedLogStore{l.stores.Log, l} }

// guardedLogStore keeps out of the log what contradicts a snapshot. Entries that came while the snapshot was being installed
// passed the check before there was anything to contradict.
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

// trackedSnapshots tells of the snapshots that are stored.
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

// watchLineage ends the node when what it holds came undone, and has its next start begin again.
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
