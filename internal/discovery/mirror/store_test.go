package mirror_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	client, err := redisclient.New(redisclient.Options{URL: url})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// patient sets a client's timeouts longer than a loaded machine needs.
const patient = "?dial_timeout=1m&read_timeout=1m&write_timeout=1m"

// shared returns a function that opens Backends with different prefixes on one server.
func shared(t *testing.T, url, prefix string) func(t *testing.T) mirrortest.Backend {
	t.Helper()
	client := newClient(t, url+patient)
	var n atomic.Int64
	return func(t *testing.T) mirrortest.Backend {
		t.Helper()
		return mirrortest.OnRedis(t, client, fmt.Sprintf(prefix, n.Add(1)))
	}
}

func TestStore_Memory_Conforms(t *testing.T) {
	t.Parallel()
	mirrortest.Run(t, func(*testing.T) mirrortest.Backend { return mirrortest.NewMemory() })
}

func TestStore_Redis_Conforms(t *testing.T) {
	t.Parallel()
	mirrortest.Run(t, shared(t, testredis.Start(t).URL(), "prod%d:"))
}

// A Redis Cluster refuses a script that names keys of several slots, or uses undeclared keys.
func TestStore_RedisCluster_Conforms(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--cluster-enabled", "yes")
	require.NoError(t, s.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		return s.Client().Set(t.Context(), "ready", "1", 0).Err() == nil
	}, patience, tick)
	mirrortest.Run(t, shared(t, "redis+cluster://"+s.Addr(), "{mirror%d}:"))
}
