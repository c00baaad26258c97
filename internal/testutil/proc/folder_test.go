package proc_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

func TestMakeFolder_ProcessesAreDead_RemovesTheirFolders(t *testing.T) {
	t.Parallel()
	const prefix = "rollcall-testproc-"
	for _, parent := range testproc.Parents() {
		folder := func(age time.Duration) string {
			dir, err := os.MkdirTemp(parent, prefix) //nolint:usetesting // in a folder that MakeFolder searches
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
			then := time.Now().Add(-age)
			require.NoError(t, os.Chtimes(dir, then, then))
			return dir
		}
		dead, alive, young := folder(time.Hour), folder(time.Hour), folder(0)
		lock, err := os.Open(filepath.Join(alive, "lock"))
		require.NoError(t, err)
		defer lock.Close()
		require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))

		made, err := testproc.MakeFolder(prefix)
		require.NoError(t, err)
		require.NoDirExists(t, dead)
		require.DirExists(t, alive)
		require.DirExists(t, young)
		require.DirExists(t, made.Path)
		require.NoError(t, made.Remove())
		require.NoDirExists(t, made.Path)
	}
}
