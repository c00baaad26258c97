package director

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// The director must work over TCP with the Lua scripts of a real Redis.
func TestRun_RedisOverTCP_ListsServices(t *testing.T) {
	t.Parallel()
	client := testredis.Start(t).Client()
	require.NoError(t, client.HSet(t.Context(), "p:relayer:meta", "cluster", "theirs", "epoch", "7", "seq", "1", "leader", "x").Err())

	dir := newDirectory(1)
	dir.register(relayers(3)...)
	network := newNetwork()
	network.set(refuses, url("a-01"))
	d, err := New(Config{
		Cluster: "c-1", Node: "n-1", Epoch: 1, Directory: dir,
		Confirm: func(context.Context) error { return nil }, Lease: 10 * time.Second,
		Health: health.Config{Interval: time.Second, Probe: network.probe},
		Mirror: mirror.Config{Client: client, Prefix: "p:"},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := d.Run(ctx)
		done <- err
	}()

	becomes := func(what func() bool) {
		t.Helper()
		require.Eventually(t, what, 2*time.Minute, 5*time.Millisecond)
	}
	active := func() []string {
		ids, err := client.SMembers(t.Context(), "p:relayer:active").Result()
		require.NoError(t, err)
		slices.Sort(ids)
		return ids
	}
	becomes(func() bool { return strings.Contains(d.Status().Mirror.Error, "theirs") })
	require.Empty(t, active())
	require.NoError(t, mirror.TakeOver(t.Context(), client, "p:", "c-1"))
	becomes(func() bool { return len(active()) == 2 })
	require.Equal(t, []string{"a-00", "a-02"}, active())

	network.set(nil, url("a-01"))
	becomes(func() bool { return len(active()) == 3 })
	dir.deregister("a-00")
	becomes(func() bool { return len(active()) == 2 })
	require.Equal(t, []string{"a-01", "a-02"}, active())
	stop()
	require.NoError(t, <-done)
}
