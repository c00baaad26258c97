package raftstore_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

func TestOpen_TornFile_IsRefused(t *testing.T) {
	t.Parallel()
	pageSize := int64(os.Getpagesize())
	overwrite := func(at, length int64, with byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			content := make([]byte, length)
			for i := range content {
				content[i] = with
			}
			_, err = file.WriteAt(content, at)
			require.NoError(t, err)
			require.NoError(t, file.Close())
		}
	}
	truncate := func(share float64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(path, int64(float64(info.Size())*share)))
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"cut to a tenth":    truncate(0.1),
		"cut to a half":     truncate(0.5),
		"cut to a byte":     func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 1)) },
		"cut to meta pages": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 2*pageSize)) },
		"meta pages zeroed": overwrite(0, 2*pageSize, 0),
		"all but meta":      overwrite(2*pageSize, 30*pageSize, 0),
		"all garbage":       overwrite(0, 30*pageSize, 0xA5),
		"garbage past meta": overwrite(2*pageSize, 30*pageSize, 0xA5),
		"another file":      func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("text\n"), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := write(t, dir, 1000)
			damage(t, path)
			for range 2 { // repeated: the first attempt must not leave a lock
				_, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(error) {}})
				requireError(t, err, path, startOver)
			}
		})
	}
}

// bbolt has two meta pages, so that the commit before the damaged one can still be read.
func TestOpen_NewestMetaPageDamaged_UsesThePreviousCommit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, dir, 10)
	stores := open(t, dir)
	require.NoError(t, stores.Logs().StoreLog(&raft.Log{Index: 11}))
	require.NoError(t, stores.Logs().StoreLog(&raft.Log{Index: 12}))
	require.NoError(t, stores.Close())
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	pageSize := os.Getpagesize()
	lasts := make(map[uint64]bool)
	for meta := range 2 {
		torn := append([]byte(nil), content...)
		torn[meta*pageSize+40]++
		require.NoError(t, os.WriteFile(path, torn, 0o600))
		stores := open(t, dir)
		last, err := stores.Logs().LastIndex()
		require.NoError(t, err)
		require.NoError(t, stores.Close())
		lasts[last] = true
	}
	require.Equal(t, map[uint64]bool{11: true, 12: true}, lasts)
}

// For random damage the process must survive. A file that passes the check must return every entry or a fatal error.
func TestOpen_RandomDamage_ProcessSurvives(t *testing.T) {
	t.Parallel()
	const entries = 300
	content, err := os.ReadFile(write(t, t.TempDir(), entries))
	require.NoError(t, err)
	require.NoError(t, readAll(t, content, entries), "undamaged")

	random := rand.New(rand.NewPCG(1, 2))
	refused, fatal := 0, 0
	for round := range 200 {
		damaged := append([]byte(nil), content...)
		for range 1 + random.IntN(4) {
			at := random.IntN(len(damaged))
			switch random.IntN(4) {
			case 0: // a flipped bit in a page's metadata
				at = at/os.Getpagesize()*os.Getpagesize() + random.IntN(64)
				damaged[at] ^= 1 << random.IntN(8)
			case 1: // a flipped bit anywhere
				damaged[at] ^= 1 << random.IntN(8)
			case 2: // a lost page
				page := at / os.Getpagesize() * os.Getpagesize()
				clear(damaged[page : page+os.Getpagesize()])
			case 3: // a misdirected page
				page, from := at/os.Getpagesize()*os.Getpagesize(), random.IntN(len(damaged))/os.Getpagesize()*os.Getpagesize()
				copy(damaged[page:page+os.Getpagesize()], damaged[from:])
			}
		}
		switch err := readAll(t, damaged, entries); err.(type) { //nolint:errorlint // readAll's own types
		case nil:
		case refusedError:
			refused++
		default:
			fatal++
			t.Logf("round %d: fatal at run time: %v", round, err)
		}
	}
	t.Logf("%d refused, %d fatal later", refused, fatal)
	require.Greater(t, refused, 50)
}

type refusedError struct{ error }

// readAll opens stores with this log, reads all entries and writes one. It returns the first error.
func readAll(t *testing.T, content []byte, entries int) error {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "raft"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "raft", "raft.db"), content, 0o600))
	fatal := make(chan error, 1)
	stores, err := raftstore.Open(raftstore.Config{Dir: dir, Fatal: func(err error) {
		fatal <- err
		runtime.Goexit()
	}})
	if err != nil {
		require.NotErrorIs(t, err, raftstore.ErrLocked)
		return refusedError{err}
	}
	defer stores.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(fatal)
		for i := range entries {
			var entry raft.Log
			err := stores.Logs().GetLog(uint64(i+1), &entry)
			if err != nil && err != raft.ErrLogNotFound { //nolint:errorlint // raft compares like this
				panic(fmt.Sprint("raft was told: ", err))
			}
		}
		if err := stores.Logs().StoreLog(&raft.Log{Index: uint64(entries + 1)}); err != nil {
			panic(fmt.Sprint("raft was told: ", err))
		}
	})
	wg.Wait()
	return <-fatal
}
