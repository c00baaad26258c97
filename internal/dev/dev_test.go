package dev

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPortsAreChosenOnceAndKept(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first, err := choosePorts(t.Context(), data)
	require.NoError(t, err)
	seen := map[int]bool{}
	all, _ := first.all()
	for _, port := range all {
		require.False(t, seen[*port], "%d twice", *port)
		seen[*port] = true
	}
	require.Len(t, seen, 2+2*nodes+relays)
	again, err := choosePorts(t.Context(), data)
	require.NoError(t, err)
	require.Equal(t, first, again)

	// Another cluster leaves them alone, although nobody listens there.
	other, err := choosePorts(t.Context(), t.TempDir())
	require.NoError(t, err)
	all, _ = other.all()
	for _, port := range all {
		require.False(t, seen[*port], "%d is another's", *port)
	}

	// A port of HTTP that is taken meanwhile is replaced, one that Raft remembers is not.
	taken, err := net.Listen("tcp", local(first.HTTP[1]))
	require.NoError(t, err)
	again, err = choosePorts(t.Context(), data)
	require.NoError(t, err)
	require.NotEqual(t, first.HTTP[1], again.HTTP[1])
	require.Equal(t, first.Cluster, again.Cluster)
	require.NoError(t, taken.Close())
	taken, err = net.Listen("tcp", local(first.Cluster[2]))
	require.NoError(t, err)
	defer taken.Close()
	_, err = choosePorts(t.Context(), data)
	require.ErrorContains(t, err, "which a coordinator of "+data+" uses, is taken by another process")

	require.NoError(t, os.WriteFile(filepath.Join(data, portsFile), []byte("{"), 0o600))
	_, err = choosePorts(t.Context(), data)
	require.ErrorContains(t, err, "remove the file to choose ports anew")
}

func TestRunning(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	require.Nil(t, Running(filepath.Join(data, "none")))
	require.NoError(t, writeJSON(filepath.Join(data, infoFile), Info{Coordinators: []Coordinator{{Cluster: "127.0.0.1:1"}}}))
	require.Nil(t, Running(data), "a file that a crash left behind does not count")
	lock, err := tryLock(filepath.Join(data, lockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:1"}, Running(data))
	require.NoError(t, lock.Close())
	require.Nil(t, Running(data))
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	lock, err := tryLock(filepath.Join(data, lockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	defer lock.Close()
	err = Run(t.Context(), Config{Data: data, Out: new(strings.Builder)})
	require.ErrorContains(t, err, "a cluster runs from "+data+" already")
}

func TestInfoIsAsScriptsExpect(t *testing.T) {
	t.Parallel()
	content, err := json.Marshal(Info{
		RedisURL: "r", Coordinators: []Coordinator{{ID: "c", PID: 1, Cluster: "a", HTTP: "h"}},
		Relayers: []Relayer{{ID: "o", URL: "u", PID: 2}}, Gateways: []Gateway{{ID: "g", PID: 3, HTTP: "h"}},
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"redis_url":"r","coordinators":[{"id":"c","pid":1,"cluster":"a","http":"h"}],
		"relayers":[{"id":"o","url":"u","pid":2}],"gateways":[{"id":"g","pid":3,"http":"h"}]}`, string(content))
}

func TestSocketFitsItsAddress(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"build/dev", "/" + strings.Repeat("x", 200)} {
		path, err := socketPath(data)
		require.NoError(t, err)
		require.Less(t, len(path), 104, "the shortest limit there is")
		again, err := socketPath(data)
		require.NoError(t, err)
		require.Equal(t, path, again)
	}
	a, err := socketPath("/" + strings.Repeat("x", 200))
	require.NoError(t, err)
	b, err := socketPath("/" + strings.Repeat("x", 201))
	require.NoError(t, err)
	require.NotEqual(t, a, b)
}

func TestNothingRuns(t *testing.T) {
	t.Parallel()
	_, err := Kill(t.Context(), t.TempDir(), "leader")
	require.ErrorIs(t, err, ErrNotRunning)
}

func TestChildrenFollowTheirFlags(t *testing.T) {
	t.Parallel()
	for variable, dropped := range map[string]bool{
		"REDIS_URL=x": true, "REDIS_PORT=1": true, "ROLLCALL_TLS_CERT=x": true, "ROLLCALL_CONFIG=x": true,
		"HEALTH_CHECK_PATH=/x": true, "HEALTH_CHECK_AUTH_HEADER=x": true, "HEALTH_CHECK_FALL=3": false, "PATH=x": false,
	} {
		require.Equal(t, dropped, ours(variable), variable)
	}
}

func TestLastLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	require.Empty(t, lastLine(path))
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 5000)+"\nlast\n"), 0o600))
	require.Equal(t, "last", lastLine(path))
}
