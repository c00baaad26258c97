package proc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

func TestFreeze_ProcessStops(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo here; while :; do :; done")
	p, err := testproc.Start(cmd, func(string) bool { return true })
	require.NoError(t, err)
	defer p.Kill()
	for range 100 {
		require.NoError(t, p.Freeze())
		require.NoError(t, p.Freeze(), "it stands already")
		require.Equal(t, "T", state(t, cmd.Process.Pid))
		require.NoError(t, p.Signal(syscall.SIGCONT))
		require.NotEqual(t, "T", state(t, cmd.Process.Pid))
	}
	p.Kill()
	require.ErrorIs(t, p.Freeze(), os.ErrProcessDone)
}

// state returns the state of a process in the notation of proc(5).
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(stat), ") ")
	require.True(t, ok)
	return after[:1]
}
