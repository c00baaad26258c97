package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// single starts the only coordinator of a cluster on the given data, with addresses that stay.
type single struct {
	address, http, data string
	redis               *testredis.Server
}

func newSingle(t *testing.T) *single {
	return &single{address: freeAddress(t), http: freeAddress(t), data: t.TempDir(), redis: testredis.Start(t)}
}

func (s *single) args(flags ...string) []string {
	return append([]string{
		"coordinator", "--node-id", "c1", "--peers", "c1=" + s.address, "--listen", s.address, "--http-listen", s.http,
		"--data-dir", s.data, "--redis-url", s.redis.URL(), "--health-check-interval-ms", "1000",
	}, flags...)
}

func (s *single) start(t *testing.T, flags ...string) *background {
	t.Helper()
	b := start(t, s.args(flags...)...)
	b.await(t, "http://"+s.http+"/readyz")
	return b
}

func (s *single) remote(args ...string) []string { return append(args, "--coordinators", s.address) }

func TestCoordinator_Stopped_LogsNoError(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	b := s.start(t)
	require.Zero(t, b.stop())
	lines := strings.Split(strings.TrimSpace(b.log.String()), "\n")
	for _, line := range lines {
		var entry map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
		require.NotEqual(t, "ERROR", entry["level"], line)
	}
	require.Contains(t, lines[len(lines)-1], `"msg":"coordinator stopped"`)
	require.Empty(t, b.out.String())
}

// A role that cannot start says why in its log, in one line of the log's form.
func TestCoordinator_CannotStart_LogsTheReason(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.start(t)
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--data-dir", t.TempDir(), "--http-listen", freeAddress(t)}, "open cluster port: listen tcp " + s.address},
		{[]string{"--data-dir", t.TempDir(), "--listen", freeAddress(t)}, "listen for HTTP at " + s.http},
	} {
		r := rollcall(t, s.args(c.flags...)...)
		require.Equal(t, cli.ExitNotDone, r.code)
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		last := lines[len(lines)-1]
		require.Contains(t, last, `"msg":"coordinator failed"`)
		require.Contains(t, last, c.want)
	}
	r := rollcall(t, "coordinator", "--relayer-count", "99")
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, "rollcall coordinator: 3 problems\n  - --relayer-count: \"99\" is above 10")
}

// The static fleet is what RELAYER_COUNT says, also after it said something else.
func TestCoordinator_RelayerCountChanges_FleetFollows(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	b := s.start(t, "--relayer-url-template", "http://127.0.0.1:1/{N}")
	list := func() admin.Directory {
		var d admin.Directory
		require.NoError(t, json.Unmarshal([]byte(succeed(t, s.remote("services", "list", "-o", "json")...)), &d))
		return d
	}
	require.Eventually(t, func() bool { return len(list().Services) == 3 }, 2*time.Minute, 20*time.Millisecond)
	require.Equal(t, admin.Service{ID: "oz-relayer-2", Kind: "relayer", URL: "http://127.0.0.1:1/2", Labels: map[string]string{}, Owner: "static", Version: list().Services[2].Version},
		list().Services[2])
	b.stop()
	s.start(t, "--relayer-url-template", "http://127.0.0.1:1/{N}", "--relayer-count", "2")
	require.Eventually(t, func() bool { return len(list().Services) == 2 }, 2*time.Minute, 20*time.Millisecond)
	_, body := get("http://" + s.http + "/status")
	require.EqualValues(t, 2, body["totalConfigured"])
}

// A leader whose directory was restored from an older copy goes on above what Redis has seen of its cluster.
func TestCoordinator_RedisHasHigherEpoch_GoesOnAboveIt(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	b := s.start(t)
	cluster := statusOf(t, "--coordinators="+s.address).Cluster
	b.stop()
	client, err := redisclient.New(redisclient.Options{URL: s.redis.URL()})
	require.NoError(t, err)
	defer client.Close()
	_, err = mirror.NewStore(client, "").Write(t.Context(), mirror.Write{
		Op: mirror.OpClaim, Cluster: cluster, Leader: "elder", Token: mirror.Token{Epoch: 1000},
		NotAfter: time.Now().Add(time.Hour), Interval: time.Second,
	})
	require.NoError(t, err)
	s.start(t)
	require.Eventually(t, func() bool {
		f := statusOf(t, "--coordinators="+s.address)
		return f.Epoch == 1001 && f.Mirror.Connected
	}, 2*time.Minute, 20*time.Millisecond)
}

func TestCoordinator_Metrics_AreServed(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.start(t)
	require.Eventually(t, func() bool {
		res, err := client.Get("http://" + s.http + "/metrics")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		missing := 0
		for _, name := range []string{
			"rollcall_check_failures_total", "rollcall_mirror_writes_total", "rollcall_epoch", "rollcall_leader",
			"rollcall_director_", "rollcall_registration_batch_services", "go_goroutines", "process_open_fds",
		} {
			if !strings.Contains(string(body), "\n"+name) {
				t.Logf("no %s", name)
				missing++
			}
		}
		return missing == 0
	}, 2*time.Minute, 100*time.Millisecond)
}

// The program as a process: its environment is read, and SIGTERM ends it with 0. Raft's metrics are the
// process's, so they are looked at here.
func TestCoordinator_OwnProcess_ReadsEnvironmentAndStops(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "coordinator")
	var log lockedBuffer
	cmd.Stderr = &log
	file := writeFile(t, "rollcall.yaml", "data-dir: "+filepath.Join(s.data, "raft")+"\nrelayer-count: 1\n")
	cmd.Env = append(os.Environ(), "ROLLCALL_TEST_MAIN=1", "ROLLCALL_CONFIG="+file, "ROLLCALL_NODE_ID=c1", "ROLLCALL_PEERS=c1="+s.address,
		"ROLLCALL_LISTEN="+s.address, "ROLLCALL_HTTP_LISTEN="+s.http, "REDIS_URL="+s.redis.URL(), "ROLLCALL_LOG_FORMAT=text")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	require.Eventually(t, func() bool {
		code, body := get("http://" + s.http + "/status")
		return code != 0 && body["totalConfigured"] == 1.0
	}, 2*time.Minute, 20*time.Millisecond, "%s", &log)
	res, err := client.Get("http://" + s.http + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "\nrollcall_raft_")
	require.Contains(t, string(body), "\nrollcall_build_info{goversion=\""+runtime.Version()+"\"")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	require.Contains(t, log.String(), `msg="coordinator stopped" node=c1 cause="terminated signal received"`)
	require.DirExists(t, filepath.Join(s.data, "raft"))
}
