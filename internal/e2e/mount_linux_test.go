package e2e

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// mountSmall mounts a file system of a few bytes at dir, until the test ends. It reports whether this user may mount,
// which is required in CI.
func mountSmall(t *testing.T, dir string, bytes int) bool {
	t.Helper()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", bytes))
	if errors.Is(err, syscall.EPERM) && os.Getenv("CI") != "true" {
		return false
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return true
}
