package raftstore

import (
	"runtime"
	"testing"
	"weak"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// counted counts reads from the underlying store.
type counted struct {
	*raft.InmemStore
	reads int
}

func (c *counted) GetLog(index uint64, log *raft.Log) error {
	c.reads++
	return c.InmemStore.GetLog(index, log)
}

func entry(index uint64, size int) *raft.Log {
	return &raft.Log{Index: index, Term: index, Data: make([]byte, size)}
}

func TestCache_NewestEntries_AreReadFromMemory(t *testing.T) {
	t.Parallel()
	below := &counted{InmemStore: raft.NewInmemStore()}
	c := newCache(below)
	read := func(index uint64, fromCache bool) {
		t.Helper()
		before := below.reads
		var l raft.Log
		require.NoError(t, c.GetLog(index, &l))
		require.Equal(t, index, l.Term)
		require.Equal(t, fromCache, below.reads == before, "index %d", index)
	}
	require.NoError(t, c.StoreLogs([]*raft.Log{entry(1, 10), entry(2, 10)}))
	require.NoError(t, c.StoreLog(entry(3, 10)))
	for i := uint64(1); i <= 3; i++ {
		read(i, true)
	}
	var l raft.Log
	require.ErrorIs(t, c.GetLog(4, &l), raft.ErrLogNotFound)

	// A follower's log is truncated and continues differently.
	require.NoError(t, c.DeleteRange(2, 3))
	read(1, false)
	require.ErrorIs(t, c.GetLog(2, &l), raft.ErrLogNotFound)
	require.NoError(t, c.StoreLog(entry(2, 10)))
	read(2, true)
	read(1, false)

	// A restored snapshot leaves a gap.
	require.NoError(t, c.StoreLog(entry(100, 10)))
	read(100, true)
	read(2, false)
}

func TestCache_LargeEntries_AreLimitedByBytes(t *testing.T) {
	t.Parallel()
	below := &counted{InmemStore: raft.NewInmemStore()}
	c := newCache(below)
	for i := uint64(1); i <= 100; i++ {
		require.NoError(t, c.StoreLog(entry(i, 1<<20)))
		require.LessOrEqual(t, c.bytes, cacheBytes)
	}
	require.Len(t, c.entries, cacheBytes/(1<<20+entryBytes))
	require.NoError(t, c.StoreLog(entry(101, 2*cacheBytes)))
	require.Len(t, c.entries, 1, "one that is larger than the cache is still read several times")
	var l raft.Log
	require.NoError(t, c.GetLog(101, &l))
	require.NoError(t, c.GetLog(50, &l))
	require.EqualValues(t, 50, l.Index)
}

func TestCache_EmptyEntries_AreLimited(t *testing.T) {
	t.Parallel()
	c := newCache(&forgetful{InmemStore: raft.NewInmemStore()})
	for i := range uint64(2 * cacheBytes / entryBytes) {
		require.NoError(t, c.StoreLog(entry(i+1, 0)))
	}
	require.Equal(t, cacheBytes/entryBytes, len(c.entries))
}

type forgetful struct{ *raft.InmemStore }

func (f *forgetful) StoreLogs([]*raft.Log) error { return nil }

// A leader's entries are part of its pending futures, which the cache must not retain.
func TestCache_StoredEntry_RetainsNoFuture(t *testing.T) {
	t.Parallel()
	c := newCache(&forgetful{InmemStore: raft.NewInmemStore()})
	waiting := &struct {
		log     raft.Log
		results []any
	}{log: raft.Log{Index: 1}}
	require.NoError(t, c.StoreLog(&waiting.log))
	kept := weak.Make(waiting)
	runtime.GC()
	require.Nil(t, kept.Value())
	require.Len(t, c.entries, 1)
}

func TestCache_StoreFails_KeepsNothing(t *testing.T) {
	t.Parallel()
	c := newCache(&failing{InmemStore: raft.NewInmemStore()})
	require.Error(t, c.StoreLog(entry(1, 10)))
	var l raft.Log
	require.ErrorIs(t, c.GetLog(1, &l), raft.ErrLogNotFound)
}

type failing struct{ *raft.InmemStore }

func (f *failing) StoreLogs([]*raft.Log) error { return raft.ErrLogNotFound }
