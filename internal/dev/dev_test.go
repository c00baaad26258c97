package dev

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain keeps the tests' clusters out of the list of the user's.
func TestMain(m *testing.M) {
	cache, err := os.MkdirTemp("", "rollcall-dev-")
	if err == nil {
		err = os.Setenv("XDG_CACHE_HOME", cache)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(cache)
		os.Exit(code)
	}))
}

var wished atomic.Int32

// wish returns ports that nothing listens at, which no cluster prefers, and below those that are drawn by lot, here and
// for the Redis servers of other tests.
func wish(t *testing.T) (p ports) {
	t.Helper()
	next := 9_000 + 100*int(wished.Add(1))
	all, _ := p.all()
	for _, port := range all {
		for next++; !free(next); next++ {
		}
		*port = next
	}
	return p
}

func occupy(t *testing.T, port int) (leave func()) {
	t.Helper()
	l, err := net.Listen("tcp", local(port))
	require.NoError(t, err)
	return func() { require.NoError(t, l.Close()) }
}

func TestPreferredPortsAreTaken(t *testing.T) {
	t.Parallel()
	wish, data := wish(t), t.TempDir()
	first, err := choosePorts(t.Context(), data, wish)
	require.NoError(t, err)
	require.Equal(t, &wish, first)
	again, err := choosePorts(t.Context(), data, wish)
	require.NoError(t, err)
	require.Equal(t, &wish, again)

	// Where something listens, another is taken, and kept as long as something does. Raft's are kept beyond that.
	elsewhere := t.TempDir()
	require.NoError(t, os.RemoveAll(data)) // a folder that is gone holds nothing
	leave := []func(){occupy(t, wish.Redis), occupy(t, wish.Cluster[1])}
	first, err = choosePorts(t.Context(), elsewhere, wish)
	require.NoError(t, err)
	require.NotEqual(t, wish.Redis, first.Redis)
	require.NotEqual(t, wish.Cluster[1], first.Cluster[1])
	require.Equal(t, wish.Gateway, first.Gateway)
	again, err = choosePorts(t.Context(), elsewhere, wish)
	require.NoError(t, err)
	require.Equal(t, first, again)
	for _, f := range leave {
		f()
	}
	again, err = choosePorts(t.Context(), elsewhere, wish)
	require.NoError(t, err)
	require.Equal(t, wish.Redis, again.Redis)
	require.Equal(t, first.Cluster, again.Cluster)
	require.NotEqual(t, wish.Cluster[1], again.Cluster[1])

	leave = []func(){occupy(t, first.Cluster[1])}
	_, err = choosePorts(t.Context(), elsewhere, wish)
	require.ErrorContains(t, err, "which a coordinator of "+elsewhere+" uses, is taken by another process")
	leave[0]()

	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, portsFile), []byte("{"), 0o600))
	_, err = choosePorts(t.Context(), elsewhere, wish)
	require.ErrorContains(t, err, "remove the file to choose ports anew")
}

// A cluster that runs may have a member down, one that does not has its coordinators' ports in Raft.
func TestPortsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	wish, theirs := wish(t), t.TempDir()
	_, err := choosePorts(t.Context(), theirs, wish)
	require.NoError(t, err)
	lock, err := tryLock(filepath.Join(theirs, lockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	held := map[int]bool{}
	all, _ := wish.all()
	for _, port := range all {
		held[*port] = true
	}
	ours, err := choosePorts(t.Context(), t.TempDir(), wish)
	require.NoError(t, err)
	all, _ = ours.all()
	seen := map[int]bool{}
	for _, port := range all {
		require.False(t, held[*port], "%d is another's", *port)
		seen[*port] = true
	}
	require.Len(t, seen, 2+2*nodes+relays)

	require.NoError(t, lock.Close())
	ours, err = choosePorts(t.Context(), t.TempDir(), wish)
	require.NoError(t, err)
	for i, port := range ours.Cluster {
		require.NotEqual(t, wish.Cluster[i], port)
	}
	wish.Cluster = ours.Cluster
	require.Equal(t, &wish, ours)
}

func TestRunning(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	require.Nil(t, Running(filepath.Join(data, "none")))
	require.NoError(t, writeJSON(filepath.Join(data, infoFile), Info{Coordinators: []Coordinator{{Cluster: "127.0.0.1:1"}}}))
	require.Nil(t, Running(data), "a file that a crash left behind does not count")
	lock, err := tryLock(filepath.Join(data, lockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:1"}, Running(data).ClusterPorts())
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
		RedisURL: "r", KeyPrefix: "p", Coordinators: []Coordinator{{ID: "c", PID: 1, Cluster: "a", HTTP: "h"}},
		Relayers: []Relayer{{ID: "o", URL: "u", PID: 2}}, Gateways: []Gateway{{ID: "g", PID: 3, HTTP: "h"}},
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"redis_url":"r","redis_key_prefix":"p","coordinators":[{"id":"c","pid":1,"cluster":"a","http":"h"}],
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

// Whoever is told that a member is killed finds that in dev.json, also before anybody else noticed its end.
func TestKilledIsWrittenDown(t *testing.T) {
	t.Parallel()
	s := &supervisor{cfg: Config{Data: t.TempDir()}, ports: new(ports), launcher: newLauncher()}
	defer s.launcher.close()
	p, err := s.launcher.start("sleep", []string{"1000"}, nil, filepath.Join(s.cfg.Data, "log"))
	require.NoError(t, err)
	m := &member{id: "oz-relayer-1", proc: p}
	s.members = []*member{m}
	require.NoError(t, s.writeInfo())
	pid, err := s.kill(m)
	require.NoError(t, err)
	require.Equal(t, p.pid(), pid)
	info, err := ReadInfo(s.cfg.Data)
	require.NoError(t, err)
	require.Zero(t, info.Relayers[1].PID)
	_, err = s.kill(m)
	require.ErrorIs(t, err, errNotRunning)
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

// A member that is started again at once was killed all the same.
func TestKilledAndStarted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &supervisor{cfg: Config{Data: t.TempDir(), Executable: "sleep", Out: &out}, ports: new(ports), launcher: newLauncher()}
	defer s.launcher.close()
	require.NoError(t, os.Mkdir(filepath.Join(s.cfg.Data, "logs"), 0o700))
	m := &member{id: "oz-relayer-1", kind: "relayer", args: []string{"1000"}}
	s.members = []*member{m}
	var err error
	m.proc, err = s.launcher.start("sleep", m.args, nil, s.logPath(m))
	require.NoError(t, err)
	first := m.proc
	_, err = s.kill(m)
	require.NoError(t, err)
	second, err := s.start(m)
	require.NoError(t, err)
	require.NotEqual(t, first.pid(), second.pid())
	s.ended(m, first)
	require.Contains(t, out.String(), "oz-relayer-1 was killed; ")
	s.stopAll()
}

// Whoever stops, starts and kills at once, nothing runs afterwards, and dev.json is gone for good.
func TestStopWhileOthersStartAndKill(t *testing.T) {
	t.Parallel()
	for range 20 {
		var out strings.Builder
		s := &supervisor{cfg: Config{Data: t.TempDir(), Executable: "sleep", Out: &out}, ports: new(ports), launcher: newLauncher()}
		require.NoError(t, os.Mkdir(filepath.Join(s.cfg.Data, "logs"), 0o700))
		for _, kind := range []string{"relayer", "coordinator", "gateway"} {
			s.members = append(s.members, &member{id: kind, kind: kind, args: []string{"1000"}})
		}
		_, err := s.start(s.members[0])
		require.NoError(t, err)
		var all sync.WaitGroup
		for _, m := range s.members {
			all.Go(func() { _, _ = s.start(m) }) // before it is too late, or not
			all.Go(func() { _, _ = s.kill(m) })  // likewise
		}
		for range 2 {
			all.Go(s.stopAll)
		}
		all.Wait()
		for _, m := range s.members {
			require.Zero(t, m.pid(), m.id)
			_, err := s.start(m)
			require.ErrorIs(t, err, errStopping)
		}
		require.NoFileExists(t, filepath.Join(s.cfg.Data, infoFile))
		require.Contains(t, out.String(), "stopped; the same command goes on")
		s.launcher.close()
	}
}

// A command that is being carried out when the cluster stops has ended before it has.
func TestStopWaitsForCommands(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &supervisor{cfg: Config{Data: t.TempDir(), Executable: "sleep", Out: &out}, ports: new(ports), launcher: newLauncher()}
	defer s.launcher.close()
	require.NoError(t, os.Mkdir(filepath.Join(s.cfg.Data, "logs"), 0o700))
	asked, release := make(chan struct{}), make(chan struct{})
	s.members = []*member{{id: "oz-relayer-1", kind: "relayer", args: []string{"1000"}, ready: func(context.Context) error {
		close(asked)
		<-release
		return nil
	}}}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.serveControl(ctx) }()
	socket, err := socketPath(s.cfg.Data)
	require.NoError(t, err)
	listens := func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	require.Eventually(t, listens, 10*time.Second, time.Millisecond)
	answered := make(chan error, 1)
	go func() {
		_, err := Start(t.Context(), s.cfg.Data, "oz-relayer-1")
		answered <- err
	}()
	<-asked
	cancel()
	require.Eventually(t, func() bool { return !listens() }, 10*time.Second, time.Millisecond)
	close(release)
	require.NoError(t, <-served)
	require.Contains(t, out.String(), "oz-relayer-1 was started")
	require.NoError(t, <-answered)
	s.stopAll()
}
