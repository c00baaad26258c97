package mirror_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// Real sentinels fail over to a replica, and the Writer must continue there.
func TestWriter_SentinelFailover_ContinuesOnTheReplica(t *testing.T) {
	t.Parallel()
	const password = "s3cret"
	master, replica := testredis.Start(t, "--requirepass", password), testredis.Start(t, "--requirepass", password, "--masterauth", password)
	replica.ReplicaOf(master)
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	conf := filepath.Join(t.TempDir(), "sentinel.conf") // the sentinel writes to it
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, "sentinel monitor m %s %s 1\nsentinel auth-pass m %s\nsentinel down-after-milliseconds m 1000\n", host, port, password), 0o600))
	sentinel := testredis.StartSentinel(t, conf)
	require.Eventually(t, func() bool {
		replicas, err := sentinel.Client().Do(t.Context(), "SENTINEL", "REPLICAS", "m").Slice()
		return err == nil && len(replicas) == 1
	}, patience, tick, "the sentinel knows the replica")

	client, err := redisclient.New(redisclient.Options{URL: "redis+sentinel://" + sentinel.Addr() + "?master_name=m", Password: password})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	w := start(t, mirror.Config{Client: client, Heartbeat: 50 * time.Millisecond})
	w.Update(entries(mirror.Healthy, "a"), nil)
	members := func(c *redis.Client) []string { return c.SMembers(t.Context(), active).Val() }
	require.Eventually(t, func() bool { return len(members(master.Client())) == 1 }, patience, tick)

	require.Eventually(t, func() bool {
		return sentinel.Client().Do(t.Context(), "SENTINEL", "FAILOVER", "m").Err() == nil
	}, patience, tick, "it finds the replica good enough")
	w.Update(entries(mirror.Healthy, "b"), nil)
	require.Eventually(t, func() bool {
		role, err := replica.Client().Do(t.Context(), "ROLE").Slice()
		return err == nil && role[0] == "master" && len(members(replica.Client())) == 2
	}, patience, tick, "the new master has all")
}
