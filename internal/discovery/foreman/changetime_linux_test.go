package foreman

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cp -p onto an existing file writes into it and restores the modification time.
func TestScan_FileRewrittenWithSameSizeAndTime_IsRead(t *testing.T) {
	t.Parallel()
	s := newScanned(t)
	s.write("a.yaml", define("x"))
	path := filepath.Join(s.folder, "a.yaml")
	before, err := os.Stat(path)
	require.NoError(t, err)
	s.pass(time.Second)
	s.sees("a:x", false)
	// The kernel's clock of change times advances in steps of some milliseconds.
	require.Eventually(t, func() bool {
		write(t, s.folder, "a.yaml", define("y"))
		require.NoError(t, os.Chtimes(path, before.ModTime(), before.ModTime()))
		after, err := os.Stat(path)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after))
		require.Equal(t, before.ModTime(), after.ModTime())
		require.Equal(t, before.Size(), after.Size())
		return changeTime(after) != changeTime(before)
	}, 2*time.Minute, time.Millisecond)
	s.sees("a:y", false)
	s.sees("a:y", false)
}
