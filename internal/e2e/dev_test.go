package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// devPorts returns the variable by which the tests' development clusters find the ports of each other.
func devPorts() string { return "XDG_CACHE_HOME=" + filepath.Join(filepath.Dir(devBinary), "cache") }

// awaitUp waits until rollcall-dev has started its cluster in a folder. Before, it refuses commands.
func awaitUp(t *testing.T, run *process, folder string) (info *devinfo.Info) {
	t.Helper()
	eventually(t, 4*patience, func() bool {
		require.True(t, run.running(), "%s", strings.Join(run.tail(5), "\n"))
		info = devinfo.Running(folder)
		return info != nil
	}, "the cluster is up")
	return info
}

// The leader of rollcall-dev's cluster is killed twice and started again: no relayer leaves the set meanwhile.
func TestDev_LeaderKilled_SetStays(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, redis: testredis.Start(t)}
	folder := filepath.Join(t.TempDir(), "dev")
	data := []string{"--data", folder}
	testpostgres.Folder(t, filepath.Join(folder, "postgres"))
	run := launchProgram(t, "dev", []string{"REDIS_URL=" + c.redis.URL(), devPorts()}, devBinary, append([]string{"--health-check-interval-ms", "1000"}, data...)...)
	ids := []string{"oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}
	awaitUp(t, run, folder)
	c.awaitActive(patience, ids...)
	stop := c.watchSet(ids...)
	for range 2 {
		before := c.meta()
		stdout, stderr, code := runProgram(t, nil, devBinary, append([]string{"kill", "leader"}, data...)...)
		require.Zero(t, code, stderr)
		killed, _, ok := strings.Cut(stdout, " is killed")
		require.True(t, ok, stdout)
		eventually(t, patience, func() bool { now := c.meta(); return now["epoch"] != before["epoch"] && now["leader"] != killed }, "another leader's claim")
		c.awaitWrites(2)
		_, stderr, code = runProgram(t, nil, devBinary, append([]string{"start", killed}, data...)...)
		require.Zero(t, code, stderr)
	}
	stop()
	require.Zero(t, run.stop())
}
