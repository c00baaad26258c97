package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
)

// The status shows the results of a real coordinator's checks, and the mirror that it wrote to Redis.
func TestStatus_RealCoordinator_ShowsChecksAndMirror(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	redis := []string{"--redis-url", c.redis.URL()}
	relayer := freeAddress(t)
	serveWell(t, relayer)
	succeed(t, c.remote("services", "register", "oz-relayer-0", "--url", "http://"+relayer)...)
	succeed(t, c.remote("services", "register", "oz-relayer-1", "--url", "http://"+freeAddress(t))...)
	require.Eventually(t, func() bool {
		members, _ := c.redis.Client().SMembers(t.Context(), "relayer:active").Result()
		return len(members) == 1 && members[0] == "oz-relayer-0"
	}, 2*time.Minute, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		r := rollcall(t, c.remote("status")...)
		return r.code == 0 && bytes.Contains([]byte(r.stdout), []byte("unhealthy"))
	}, 2*time.Minute, 50*time.Millisecond)
	out := succeed(t, c.remote("status")...)
	require.Regexp(t, `director  running, checks every 1s`, out)
	require.Regexp(t, `relayer   1 of 2 active`, out)
	require.Regexp(t, `oz-relayer-0 +relayer +healthy +yes`, out)
	require.Regexp(t, `oz-relayer-1 +relayer +unhealthy +no`, out)
	code, body := get("http://" + c.http[0] + "/status")
	require.Equal(t, 200, code)
	require.Equal(t, "degraded", body["status"])

	out = succeed(t, append([]string{"mirror", "show"}, redis...)...)
	require.Contains(t, out, "leader   coordinator-1, epoch ")
	require.Contains(t, out, "active   relayer: oz-relayer-0")
	require.Contains(t, succeed(t, append([]string{"mirror", "show", "-o", "json"}, redis...)...), `"relayer": [`+"\n"+`      "oz-relayer-0"`)
	require.Contains(t, succeed(t, append(c.remote("mirror", "take-over"), redis...)...), " already")
}

// A Redis that another cluster has written to is refused, until the operator says otherwise.
func TestMirrorTakeOver_RedisOfAnotherCluster_IsTakenOver(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	redis := []string{"--redis-url", c.redis.URL()}
	client, err := redisclient.New(redisclient.Options{URL: redis[1]})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, mirror.TakeOver(t.Context(), client, "", "another"))

	require.Eventually(t, func() bool {
		return bytes.Contains([]byte(succeed(t, c.remote("status")...)), []byte("another"))
	}, 2*time.Minute, 50*time.Millisecond, "status says whose it is")
	require.Contains(t, succeed(t, append(c.remote("mirror", "take-over"), redis...)...), "it belonged to cluster another and now does to cluster ")
	require.Eventually(t, func() bool {
		return !bytes.Contains([]byte(succeed(t, c.remote("status")...)), []byte("another"))
	}, 2*time.Minute, 50*time.Millisecond)
	require.Contains(t, succeed(t, append([]string{"mirror", "take-over", "--cluster", "third"}, redis...)...), "cluster third")

	r := rollcall(t, "mirror", "show", "--redis-host", "127.0.0.1", "--redis-port", "1", "--timeout", "2s")
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "redis at redis://127.0.0.1:1: ")
	require.Contains(t, r.stderr, "Check REDIS_URL")
}
