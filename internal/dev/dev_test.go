package dev

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

	// A folder of an older version knows nothing of some of the ports.
	again.Chain, again.Postgres = 0, 0
	require.NoError(t, writeJSON(filepath.Join(elsewhere, portsFile), again))
	leave = []func(){occupy(t, wish.Chain)}
	again, err = choosePorts(t.Context(), elsewhere, wish)
	require.NoError(t, err)
	require.NotContains(t, []int{0, wish.Chain}, again.Chain)
	require.Equal(t, wish.Postgres, again.Postgres)
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
	require.Len(t, seen, 4+2*nodes+relays)

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
		Relayers: []Relayer{{ID: "o", URL: "u", PID: 2, APIKey: "k"}}, Gateways: []Gateway{{ID: "g", PID: 3, HTTP: "h"}},
		PoolID: "q", Chain: Chain{RPCURL: "n", WSURL: "w", ChainID: 5, PID: 4}, DatabaseURL: "d", DatabasePID: 6,
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"redis_url":"r","redis_key_prefix":"p","coordinators":[{"id":"c","pid":1,"cluster":"a","http":"h"}],
		"relayers":[{"id":"o","url":"u","pid":2,"api_key":"k"}],"gateways":[{"id":"g","pid":3,"http":"h"}],
		"pool_id":"q","chain":{"rpc_url":"n","ws_url":"w","chain_id":5,"pid":4},"database_url":"d","database_pid":6}`, string(content))
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
	s := sleepers(t, new(strings.Builder))
	m := s.sleeper("oz-relayer-1", kindRelayer, nil)
	p, err := s.start(t.Context(), m)
	require.NoError(t, err)
	pid, err := s.kill(m)
	require.NoError(t, err)
	require.Equal(t, p.pid(), pid)
	info, err := ReadInfo(s.cfg.Data)
	require.NoError(t, err)
	require.Zero(t, info.Relayers[1].PID)
	_, err = s.kill(m)
	require.ErrorIs(t, err, errNotRunning)
	s.stopAll()
}

// sleepers is a supervisor whose members do nothing but wait for their end.
func sleepers(t *testing.T, out io.Writer) *supervisor {
	t.Helper()
	s := &supervisor{cfg: Config{Data: t.TempDir(), Out: out}, ports: new(ports), launcher: newLauncher(), database: new(database)}
	t.Cleanup(s.launcher.close)
	require.NoError(t, os.Mkdir(filepath.Join(s.cfg.Data, "logs"), 0o700))
	var err error
	s.secrets, err = OpenSecrets(t.Context(), filepath.Join(s.cfg.Data, "secrets"), relays)
	require.NoError(t, err)
	return s
}

func (s *supervisor) sleeper(id string, k kind, ready func(context.Context) error) *member {
	m := &member{id: id, kind: k, ready: ready}
	m.launch = func(context.Context) (process, error) {
		return s.launcher.start("sleep", []string{"1000"}, nil, s.logPath(m))
	}
	s.members = append(s.members, m)
	return m
}

func TestChildrenFollowTheirFlags(t *testing.T) {
	t.Parallel()
	for variable, dropped := range map[string]bool{
		"REDIS_URL=x": true, "REDIS_PORT=1": true, "ROLLCALL_TLS_CERT=x": true, "ROLLCALL_CONFIG=x": true,
		"HEALTH_CHECK_PATH=/x": true, "HEALTH_CHECK_AUTH_HEADER=x": true, "HEALTH_CHECK_FALL=3": false, "PATH=x": false,
		"RELAYER_PRIVATE_KEY_0=x": true, "RELAYER_PRIVATE_KEYS_JSON=x": true, "RELAYER_KEYSTORE_DIR=x": true, "RELAYER_ALLOWED_ADDRESSES=x": true,
		"RELAYER_API_KEYS=x": true, "DATABASE_URL=x": true, "RELAYER_DATABASE_URL_FILE=x": true, "RELAYER_RPC_URLS=x": true,
		"RELAYER_SUBSCRIBE_URL=x": true, "PGSSLMODE=require": true, "RELAYER_ENABLED=false": false,
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
	s := sleepers(t, &out)
	m := s.sleeper("oz-relayer-1", kindRelayer, nil)
	first, err := s.start(t.Context(), m)
	require.NoError(t, err)
	_, err = s.kill(m)
	require.NoError(t, err)
	second, err := s.start(t.Context(), m)
	require.NoError(t, err)
	require.NotEqual(t, first.pid(), second.pid())
	s.ended(m, first)
	s.stopAll() // and with it whoever else says something
	require.Contains(t, out.String(), "oz-relayer-1 was killed; ")
}

// Whoever stops, starts and kills at once, nothing runs afterwards, and dev.json is gone for good.
func TestStopWhileOthersStartAndKill(t *testing.T) {
	t.Parallel()
	for range 20 {
		var out strings.Builder
		s := sleepers(t, &out)
		for _, k := range []kind{kindRelayer, kindCoordinator, kindGateway} {
			s.sleeper(string(k), k, nil)
		}
		_, err := s.start(t.Context(), s.members[0])
		require.NoError(t, err)
		var all sync.WaitGroup
		for _, m := range s.members {
			all.Go(func() { _, _ = s.start(t.Context(), m) }) // before it is too late, or not
			all.Go(func() { _, _ = s.kill(m) })               // likewise
		}
		for range 2 {
			all.Go(s.stopAll)
		}
		all.Wait()
		for _, m := range s.members {
			require.Zero(t, m.pid(), m.id)
			_, err := s.start(t.Context(), m)
			require.ErrorIs(t, err, errStopping)
		}
		require.NoFileExists(t, filepath.Join(s.cfg.Data, infoFile))
		require.Contains(t, out.String(), "stopped; the same command goes on")
	}
}

// A command that is being carried out when the cluster stops has ended before it has.
func TestStopWaitsForCommands(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := sleepers(t, &out)
	asked, release := make(chan struct{}), make(chan struct{})
	s.sleeper("oz-relayer-1", kindRelayer, func(context.Context) error {
		close(asked)
		<-release
		return nil
	})
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

// Secrets are made once, and nobody but their owner reads them.
func TestSecretsAreKept(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "secrets")
	first, err := OpenSecrets(t.Context(), folder, 2)
	require.NoError(t, err)
	require.Len(t, first.Addresses, keyCount)
	again, err := OpenSecrets(t.Context(), folder, 3)
	require.NoError(t, err)
	require.Equal(t, first.Addresses, again.Addresses)
	require.Equal(t, first.apiKeys, again.apiKeys[:2])
	require.NotEqual(t, again.apiKeys[0], again.apiKeys[1])
	info, err := os.Stat(folder)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	for _, name := range []string{"keys.json", "oz-relayer-0.api-key"} {
		info, err := os.Stat(filepath.Join(folder, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}

	require.NoError(t, os.WriteFile(filepath.Join(folder, "oz-relayer-0.api-key"), []byte("s3cret"), 0o600))
	_, err = OpenSecrets(t.Context(), folder, 1)
	require.ErrorContains(t, err, "does not hold name:key; remove it")
	require.NotContains(t, err.Error(), "s3cret")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "keys.json"), []byte(`["s3cret"]`), 0o600))
	_, err = OpenSecrets(t.Context(), folder, 1)
	require.ErrorContains(t, err, "remove the file to have keys made anew")
	require.NotContains(t, err.Error(), "s3cret")
}

// A PostgreSQL that was killed has its data when it is started again; with a new supervisor it begins anew, since the
// chain does.
func TestDatabaseBeginsAnewWithItsSupervisor(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	url := filepath.Join(data, "url")
	begin := func() (*database, process) {
		d := &database{data: data, port: wish(t).Postgres, urlFile: url}
		p, err := d.start(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() {
			p.kill()
			require.NoError(t, os.RemoveAll(d.folder)) // root's may be elsewhere
		})
		return d, p
	}
	exec := func(statement string) error {
		content, err := os.ReadFile(url)
		require.NoError(t, err)
		conn, err := pgx.Connect(t.Context(), strings.TrimSpace(string(content)))
		require.NoError(t, err)
		defer conn.Close(t.Context())
		_, err = conn.Exec(t.Context(), statement)
		return err
	}
	d, p := begin()
	require.NoError(t, exec("CREATE TABLE t ()"))
	p.kill()
	require.Error(t, p.err())
	p, err := d.start(t.Context())
	require.NoError(t, err)
	require.NoError(t, exec("SELECT FROM t"))
	require.True(t, p.stop(time.Minute))
	require.NoError(t, p.err())

	_, p = begin()
	require.ErrorContains(t, exec("SELECT FROM t"), "42P01")
	require.True(t, p.stop(time.Minute))
}
