package raftstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

const startOver = "move the data folder away and start again: the node rejoins with an empty disk"

// open opens stores that must not fail.
func open(t *testing.T, dir string) *raftstore.Stores {
	t.Helper()
	return openWith(t, dir, func(err error) { t.Errorf("fatal: %v", err) })
}

func openWith(t *testing.T, dir string, fatal func(error)) *raftstore.Stores {
	t.Helper()
	stores, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: fatal})
	require.NoError(t, err)
	t.Cleanup(func() { _ = stores.Close() })
	return stores
}

// write writes a term and n small entries into a new folder and returns the log's file.
func write(t *testing.T, dir string, n int) string {
	t.Helper()
	stores := open(t, dir)
	require.NoError(t, stores.Stable().SetUint64([]byte("CurrentTerm"), 7))
	var logs []*raft.Log
	for i := 1; i <= n; i++ {
		logs = append(logs, &raft.Log{Index: uint64(i), Term: 7, Data: fmt.Append(nil, "entry ", i, strings.Repeat(".", 100))})
	}
	require.NoError(t, stores.Logs().StoreLogs(logs))
	require.NoError(t, stores.Close())
	return filepath.Join(dir, "raft", "raft.db")
}

func snapshot(t *testing.T, stores *raftstore.Stores, index uint64, content string) string {
	t.Helper()
	sink, err := stores.Snapshots().Create(1, index, 7, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	_, err = io.WriteString(sink, content)
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	return sink.ID()
}

// requireError checks that the error is one line with the file and the remedy.
func requireError(t *testing.T, err error, path, remedy string) {
	t.Helper()
	known, ok := errors.AsType[*raftstore.Error](err)
	require.True(t, ok, "%T: %v", err, err)
	require.Equal(t, path, known.Path)
	require.True(t, strings.HasPrefix(err.Error(), path+": "), err.Error())
	require.True(t, strings.HasSuffix(err.Error(), "; "+remedy), err.Error())
	require.NotContains(t, err.Error(), "\n")
}

func TestOpen_Reopened_KeepsState(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	stores := open(t, dir)
	has, err := raft.HasExistingState(stores.Logs(), stores.Stable(), stores.Snapshots())
	require.NoError(t, err)
	require.False(t, has)
	require.ErrorIs(t, stores.Logs().GetLog(1, new(raft.Log)), raft.ErrLogNotFound)
	_, err = stores.Stable().GetUint64([]byte("CurrentTerm"))
	require.EqualError(t, err, "not found", "raft compares the text")

	require.NoError(t, stores.Stable().SetUint64([]byte("CurrentTerm"), 7))
	require.NoError(t, stores.Stable().Set([]byte("LastVoteCand"), []byte("node-1")))
	require.NoError(t, stores.Logs().StoreLogs([]*raft.Log{{Index: 1, Term: 6}, {Index: 2, Term: 7}}))
	require.NoError(t, stores.Logs().StoreLog(&raft.Log{Index: 3, Term: 7, Data: []byte("three")}))
	require.NoError(t, stores.Logs().StoreLog(&raft.Log{Index: 4, Term: 7}))
	require.NoError(t, stores.Logs().DeleteRange(4, 4))
	require.Positive(t, stores.LogBytes())
	require.Zero(t, stores.SnapshotBytes())
	require.NoError(t, stores.Close())
	require.NoError(t, stores.Close(), "close again")

	info, err := os.Stat(filepath.Join(dir, "raft"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	stores = open(t, dir)
	has, err = raft.HasExistingState(stores.Logs(), stores.Stable(), stores.Snapshots())
	require.NoError(t, err)
	require.True(t, has)
	term, err := stores.Stable().GetUint64([]byte("CurrentTerm"))
	require.NoError(t, err)
	require.EqualValues(t, 7, term)
	candidate, err := stores.Stable().Get([]byte("LastVoteCand"))
	require.NoError(t, err)
	require.Equal(t, "node-1", string(candidate))
	first, err := stores.Logs().FirstIndex()
	require.NoError(t, err)
	last, err := stores.Logs().LastIndex()
	require.NoError(t, err)
	require.EqualValues(t, [2]uint64{1, 3}, [2]uint64{first, last})
	var entry raft.Log
	require.NoError(t, stores.Logs().GetLog(3, &entry))
	require.Equal(t, "three", string(entry.Data))
}

func TestSnapshots_ThreeTaken_KeepsTwo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, 40)
	stores := open(t, dir)
	for i := uint64(10); i <= 30; i += 10 {
		snapshot(t, stores, i, fmt.Sprint("state ", i))
	}
	list, err := stores.Snapshots().List()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.EqualValues(t, len("state 30")*2, stores.SnapshotBytes())

	require.NoError(t, stores.Logs().DeleteRange(1, 30))
	require.NoError(t, stores.Close())
	stores = open(t, dir)
	_, content, err := stores.Snapshots().Open(list[0].ID)
	require.NoError(t, err)
	defer content.Close()
	state, err := io.ReadAll(content)
	require.NoError(t, err)
	require.Equal(t, "state 30", string(state))
}

func TestOpen_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := raftstore.Open(raftstore.Config{})
	require.ErrorContains(t, err, "no data folder")
	require.ErrorContains(t, err, "no handler of fatal errors")
}

func TestOpen_FolderInUse_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, dir)
	_, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(error) {}})
	require.ErrorIs(t, err, raftstore.ErrLocked)
	requireError(t, err, filepath.Join(dir, "raft", "raft.db"),
		"stop that process, or give this node a data folder of its own")
	require.NoError(t, first.Close())
	open(t, dir)
}

func TestOpen_FolderIsFile_Fails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	_, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(error) {}})
	_, ok := errors.AsType[*raftstore.Error](err)
	require.True(t, ok, "%v", err)
}

func TestOpen_LogLostWithSnapshot_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, 10)
	stores := open(t, dir)
	snapshot(t, stores, 10, "state")
	require.NoError(t, stores.Close())
	require.NoError(t, os.Truncate(path, 0))
	_, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(error) {}})
	requireError(t, err, path, startOver)
	require.ErrorContains(t, err, "the vote is missing")
}

func TestOpen_SnapshotLostBeforeLog_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, 10)
	stores := open(t, dir)
	id := snapshot(t, stores, 8, "state")
	require.NoError(t, stores.Logs().DeleteRange(1, 5))
	require.NoError(t, stores.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "raft", "snapshots", id)))
	_, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(error) {}})
	requireError(t, err, path, startOver)
	require.ErrorContains(t, err, "the log starts at 6 but the newest readable snapshot ends at 0")
}

// fatality runs f and returns the error passed to Fatal. f must not return.
func fatality(t *testing.T, dir string, f func(*raftstore.Stores)) error {
	t.Helper()
	fatal := make(chan error, 2)
	stores := openWith(t, dir, func(err error) {
		fatal <- err
		runtime.Goexit() // ends a goroutine that would otherwise block forever
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		f(stores)
		t.Error("raft was told")
	})
	wg.Wait()
	require.Len(t, fatal, 1)
	return <-fatal
}

func TestSnapshots_TornSnapshot_IsFatal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, 10)
	stores := open(t, dir)
	id := snapshot(t, stores, 10, "state")
	require.NoError(t, stores.Close())
	path := filepath.Join(dir, "raft", "snapshots", id)
	require.NoError(t, os.WriteFile(filepath.Join(path, "state.bin"), []byte("stale"), 0o600))
	err := fatality(t, dir, func(stores *raftstore.Stores) { _, _, _ = stores.Snapshots().Open(id) })
	requireError(t, err, path, startOver)
}

func TestSnapshots_SnapshotReplaced_IsNotFatal(t *testing.T) {
	t.Parallel()
	_, _, err := open(t, t.TempDir()).Snapshots().Open("1-1-1")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestStores_FaultAtRunTime_IsFatal(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(*raftstore.Stores){
		"read":   func(s *raftstore.Stores) { _ = s.Logs().GetLog(1, new(raft.Log)) },
		"first":  func(s *raftstore.Stores) { _, _ = s.Logs().FirstIndex() },
		"last":   func(s *raftstore.Stores) { _, _ = s.Logs().LastIndex() },
		"append": func(s *raftstore.Stores) { _ = s.Logs().StoreLogs([]*raft.Log{{Index: 5000}}) },
		"delete": func(s *raftstore.Stores) { _ = s.Logs().DeleteRange(1, 10) },
		"vote":   func(s *raftstore.Stores) { _ = s.Stable().SetUint64([]byte("CurrentTerm"), 8) },
		"term":   func(s *raftstore.Stores) { _, _ = s.Stable().GetUint64([]byte("CurrentTerm")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := write(t, dir, 2000)
			err := fatality(t, dir, func(stores *raftstore.Stores) {
				// The pages are mapped; without a file behind them the kernel sends SIGBUS.
				if err := os.Truncate(path, 0); err != nil {
					t.Error(err)
				}
				f(stores)
			})
			requireError(t, err, path, startOver)
		})
	}
}

func TestGetLog_UndecodableEntry_IsFatal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, 3)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	at := bytes.Index(content, []byte("entry 2"))
	require.Positive(t, at)
	copy(content[at-8:], "\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1") // no such type in MessagePack
	require.NoError(t, os.WriteFile(path, content, 0o600))
	err = fatality(t, dir, func(stores *raftstore.Stores) { _ = stores.Logs().GetLog(2, new(raft.Log)) })
	requireError(t, err, path, startOver)
}

// After the first failure all other callers must block until the process ends.
func TestFailure_OtherCallersBlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, 2000)
	fatal := make(chan error, 2)
	stores := openWith(t, dir, func(err error) {
		fatal <- err
		runtime.Goexit()
	})
	require.NoError(t, os.Truncate(path, 0))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = stores.Logs().GetLog(1, new(raft.Log))
	}()
	<-ended
	requireError(t, <-fatal, path, startOver)
	require.NoError(t, stores.Close(), "locks of a broken file don't hold up the end")
	select {
	case err := <-fatal:
		t.Errorf("told twice: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
}

// A folder that cannot be created has no data to move away, so the remedy must not mention that.
func TestOpen_FolderThatCannotBeMade(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := raftstore.Open(raftstore.Config{Dir: filepath.Join(file, "x"), Fatal: func(error) {}})
	require.ErrorContains(t, err, "name a data folder that this user can make: --data-dir, ROLLCALL_DATA_DIR")
	require.NotContains(t, err.Error(), startOver)
}
