package raftstore_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A full disk must end the process without data loss. The test uses a separate file system if mounting is allowed, and
// a process with a file size limit.
func TestStores_DiskFull_EndsWithoutDataLoss(t *testing.T) {
	t.Parallel()
	t.Run("file size limit", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		acknowledged, line := fillUp(t, dir, "RAFTSTORE_TEST_LIMIT=1048576")
		require.NotEmpty(t, acknowledged)
		requireFull(t, line, dir)
		requireKept(t, dir, len(acknowledged))
	})

	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("no file system of its own: %v", err)
		return
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(small, 0)) })
	t.Run("tmpfs", func(t *testing.T) {
		ballast := filepath.Join(small, "ballast")
		require.NoError(t, os.WriteFile(ballast, make([]byte, 100<<10), 0o600))
		acknowledged, line := fillUp(t, small, "")
		require.NotEmpty(t, acknowledged)
		requireFull(t, line, small)

		// A restart on the full disk must end the same way, with at most a few more entries.
		more, line := fillUp(t, small, "")
		requireFull(t, line, small)

		require.NoError(t, os.Remove(ballast))
		requireKept(t, small, len(acknowledged)+len(more))
	})
}

// fillUp runs a node until its disk is full.
func fillUp(t *testing.T, dir, env string) (acknowledged []string, stderr string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), fillEnv+"="+dir, env)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	require.Error(t, err)
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), complaint.String())
	return strings.Fields(out.String()), complaint.String()
}

func requireFull(t *testing.T, stderr, dir string) {
	t.Helper()
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.True(t, strings.HasPrefix(stderr, filepath.Join(dir, "raft")), stderr)
	require.True(t, strings.HasSuffix(stderr, "; make room on its disk and start again\n"), stderr)
}

// requireKept checks that no acknowledged entry is lost.
func requireKept(t *testing.T, dir string, acknowledged int) {
	t.Helper()
	stores := open(t, dir)
	last, err := stores.Logs().LastIndex()
	require.NoError(t, err)
	require.GreaterOrEqual(t, last, uint64(acknowledged))
	require.NoError(t, stores.Close())
}
