package coordinator

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

// A contradiction of a snapshot must be distinguished from a continuation of it, and from a late message of a deposed
// leader.
func TestLineageTellsAnotherHistory(t *testing.T) {
	store := raft.NewInmemStore()
	require.NoError(t, store.SetUint64(keyCurrentTerm, 5))
	l, err := newLineage(&Stores{Log: store, Stable: store, Snapshots: raft.NewInmemSnapshotStore()})
	require.NoError(t, err)
	asked := func(leader uint64, entries ...position) error {
		req := &raft.AppendEntriesRequest{Term: leader}
		for _, p := range entries {
			req.Entries = append(req.Entries, &raft.Log{Index: p.index, Term: p.term})
		}
		return l.check(req)
	}
	require.NoError(t, asked(5, position{1, 5}), "there is no snapshot yet")
	sink, err := l.snapshots().Create(raft.SnapshotVersionMax, 10, 3, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, asked(5, position{10, 5}), "nor while it is being written")
	require.NoError(t, sink.Close())

	require.NoError(t, l.check(new(raft.RequestVoteRequest)))
	require.NoError(t, asked(5))
	require.NoError(t, asked(5, position{9, 2}, position{10, 3}, position{11, 3}, position{12, 5}), "a history with it")
	require.NoError(t, asked(4, position{10, 4}), "a deposed leader's, which Raft refuses")
	require.Error(t, asked(5, position{10, 5}))
	require.Error(t, asked(5, position{9, 3}, position{10, 4}, position{11, 5}))
	require.Error(t, asked(6, position{4, 6}), "long before its index")
	undone := <-l.undone
	require.Equal(t, position{10, 3}, undone.snapshot)
	require.Equal(t, position{10, 5}, undone.entry)

	// A snapshot from which a restart does not begin must leave the other one in force; a newer one must replace it.
	l.hold(position{7, 2})
	require.Error(t, asked(5, position{7, 3}))
	require.Error(t, asked(5, position{10, 5}))
	l.hold(position{8, 5})
	require.NoError(t, asked(5, position{10, 5}))
}

// After a restart, an older snapshot on disk must be ignored.
func TestLineageAfterARestart(t *testing.T) {
	store, err := raftstore.Open(raftstore.Config{Dir: t.TempDir(), Fatal: func(err error) { t.Error(err) }})
	require.NoError(t, err)
	defer store.Close()
	require.NoError(t, store.Stable().SetUint64(keyCurrentTerm, 6))
	for _, p := range []position{{100, 5}, {200, 6}} {
		sink, err := store.Snapshots().Create(raft.SnapshotVersionMax, p.index, p.term, raft.Configuration{}, 1, nil)
		require.NoError(t, err)
		require.NoError(t, sink.Close())
	}
	l, err := newLineage(&Stores{Log: store.Logs(), Stable: store.Stable(), Snapshots: store.Snapshots()})
	require.NoError(t, err)
	require.Nil(t, l.findFork([]*raft.Log{{Index: 100, Term: 6}}))
	require.NotNil(t, l.findFork([]*raft.Log{{Index: 200, Term: 7}}))
}
