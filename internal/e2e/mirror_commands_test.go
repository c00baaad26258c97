package e2e

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// The mirror commands find Redis by each of the coordinators' variables.
func TestMirrorCommands_RedisVariables_AreApplied(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t, "--requirepass", "s3cret")
	client := redis.Client()
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "alice", "on", ">pw", "~*", "&*", "+@all").Err())
	require.NoError(t, client.HSet(t.Context(), "p:relayer:meta", "cluster", "abc", "epoch", "7", "seq", "9", "leader", "n-1",
		"updated_at", "2026-11-20T09:00:00.123Z", "kinds", "escrow,relayer").Err())
	require.NoError(t, client.SAdd(t.Context(), "p:relayer:active", "r-3", "r-10", "r-1", "r-2").Err())
	require.NoError(t, client.SAdd(t.Context(), "p:escrow:active", "e-1").Err())

	host, port, err := net.SplitHostPort(redis.Addr())
	require.NoError(t, err)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for name, env := range map[string][]string{
		"url":           {"REDIS_URL=redis://:s3cret@" + redis.Addr()},
		"url file":      {"REDIS_URL_FILE=" + file("url", "redis://:s3cret@"+redis.Addr()+"\n")},
		"host and port": {"REDIS_HOST=" + host, "REDIS_PORT=" + port, "REDIS_PASSWORD=s3cret"},
		"port only":     {"REDIS_HOST=127.0.0.1", "REDIS_PORT=" + port, "REDIS_PASSWORD_FILE=" + file("password", "s3cret\n")},
		"user":          {"REDIS_URL=redis://" + redis.Addr(), "REDIS_USERNAME=alice", "REDIS_PASSWORD=pw"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := rollcall(t, append(env, "REDIS_KEY_PREFIX=p:"), "mirror", "show")
			require.Zero(t, code, stderr)
			require.Regexp(t, `^cluster  abc
leader   n-1, epoch 7, seq 9
updated  2026-11-20T09:00:00\.123Z, .* ago
active   escrow: e-1
active   relayer: r-1, r-10, r-2, r-3
$`, stdout)
			stdout, stderr, code = rollcall(t, append(env, "REDIS_KEY_PREFIX=q:"), "mirror", "show")
			require.Zero(t, code, stderr)
			require.Contains(t, stdout, "no coordinator has written here")
		})
	}
	for name, env := range map[string][]string{
		"another password": {"REDIS_HOST=" + host, "REDIS_PORT=" + port, "REDIS_PASSWORD=wrong"},
		"another user":     {"REDIS_HOST=" + host, "REDIS_PORT=" + port, "REDIS_USERNAME=bob", "REDIS_PASSWORD=s3cret"},
		"another port":     {"REDIS_HOST=" + host, "REDIS_PORT=1", "REDIS_PASSWORD=s3cret"},
		"another host":     {"REDIS_HOST=127.0.0.2", "REDIS_PORT=" + port, "REDIS_PASSWORD=s3cret"},
	} {
		_, stderr, code := rollcall(t, env, "mirror", "show")
		require.Equal(t, 1, code, name)
		require.Contains(t, stderr, "Check REDIS_URL, or REDIS_HOST, REDIS_PORT and REDIS_PASSWORD", name)
		require.NotContains(t, stderr, "s3cret")
	}

	stdout, stderr, code := rollcall(t, []string{"REDIS_HOST=" + host, "REDIS_PORT=" + port, "REDIS_PASSWORD=s3cret", "REDIS_KEY_PREFIX=p:"},
		"mirror", "take-over", "--cluster", "def")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "it belonged to cluster abc and now does to cluster def")
	require.Equal(t, "def", client.HGet(t.Context(), "p:relayer:meta", "cluster").Val())
}
