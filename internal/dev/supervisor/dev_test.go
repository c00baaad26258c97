package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// TestMain keeps the tests' clusters out of the user's register.
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

// wish returns ports without a listener. No cluster prefers them, and they are below the range of random ports, here
// and for the Redis servers of other tests.
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

func TestChoosePorts_PreferredPorts_AreChosenIfFree(t *testing.T) {
	t.Parallel()
	wish, data := wish(t), t.TempDir()
	first, err := choosePorts(t.Context(), data, wish)
	require.NoError(t, err)
	require.Equal(t, &wish, first)
	again, err := choosePorts(t.Context(), data, wish)
	require.NoError(t, err)
	require.Equal(t, &wish, again)

	// If a port is taken, another is chosen, and kept while it is taken. Raft's ports are kept longer than that.
	elsewhere := t.TempDir()
	require.NoError(t, os.RemoveAll(data)) // a missing folder holds no ports
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

	// The ports.json of an older version lacks some of the ports.
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
	require.ErrorContains(t, err, "remove the file to choose ports again")
}

// A running cluster may have a stopped member. A stopped cluster has its coordinators' ports in Raft's configuration.
func TestChoosePorts_PortsOfAnotherCluster_AreAvoided(t *testing.T) {
	t.Parallel()
	wish, theirs := wish(t), t.TempDir()
	_, err := choosePorts(t.Context(), theirs, wish)
	require.NoError(t, err)
	lock, err := devinfo.TryLock(filepath.Join(theirs, devinfo.LockFile), syscall.LOCK_EX)
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
	require.Len(t, seen, 5+2*nodes+relays+2*apis+escrows)

	require.NoError(t, lock.Close())
	ours, err = choosePorts(t.Context(), t.TempDir(), wish)
	require.NoError(t, err)
	for i, port := range ours.Cluster {
		require.NotEqual(t, wish.Cluster[i], port)
	}
	wish.Cluster = ours.Cluster
	require.Equal(t, &wish, ours)
}

func TestRunning_OnlyLockedFolder_Counts(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	require.Nil(t, devinfo.Running(filepath.Join(data, "none")))
	require.NoError(t, writeJSON(filepath.Join(data, devinfo.File), devinfo.Info{Coordinators: []devinfo.Coordinator{{Cluster: "127.0.0.1:1"}}}))
	require.Nil(t, devinfo.Running(data), "a file that a crash left behind does not count")
	lock, err := devinfo.TryLock(filepath.Join(data, devinfo.LockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:1"}, devinfo.Running(data).ClusterPorts())
	require.NoError(t, lock.Close())
	require.Nil(t, devinfo.Running(data))
}

func TestRun_AlreadyRunning_Fails(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	lock, err := devinfo.TryLock(filepath.Join(data, devinfo.LockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	defer lock.Close()
	err = Run(t.Context(), Config{Data: data, Out: new(strings.Builder)})
	require.ErrorContains(t, err, "a cluster runs from "+data+" already")
}

func TestInfo_JSON_HasTheFieldsOfScripts(t *testing.T) {
	t.Parallel()
	content, err := json.Marshal(devinfo.Info{
		RedisURL: "r", RedisPID: 9, KeyPrefix: "p", Coordinators: []devinfo.Coordinator{{ID: "c", PID: 1, Cluster: "a", HTTP: "h"}},
		Relayers: []devinfo.Relayer{{ID: "o", URL: "u", PID: 2, APIKey: "k"}}, Gateways: []devinfo.Gateway{{ID: "g", PID: 3, HTTP: "h"}},
		PoolID: "q", Chain: devinfo.Chain{RPCURL: "n", WSURL: "w", ChainID: 5, PID: 4, Forwarder: "f", Recipient: "t"}, DatabaseURL: "d", DatabasePID: 6,
		APIs: []devinfo.API{{ID: "a", PID: 7, URL: "u", APIKey: "k"}}, Consumers: []devinfo.Consumer{{ID: "c", PID: 8, HTTP: "h"}},
		Escrows: []devinfo.Escrow{{ID: "e", PID: 10, HTTP: "h"}}, Contracts: devinfo.Contracts{Factory: "f"},
		PubSub: devinfo.PubSub{EmulatorHost: "h", Project: "p", Topic: "t", PID: 11},
	})
	require.NoError(t, err)
	require.JSONEq(t, `{"redis_url":"r","redis_pid":9,"redis_key_prefix":"p","coordinators":[{"id":"c","pid":1,"cluster":"a","http":"h"}],
		"relayers":[{"id":"o","url":"u","pid":2,"api_key":"k"}],"gateways":[{"id":"g","pid":3,"http":"h"}],
		"pool_id":"q","chain":{"rpc_url":"n","ws_url":"w","chain_id":5,"pid":4,"forwarder":"f","recipient":"t"},
		"apis":[{"id":"a","pid":7,"url":"u","api_key":"k"}],"consumers":[{"id":"c","pid":8,"http":"h"}],
		"escrows":[{"id":"e","pid":10,"http":"h"}],"contracts":{"factory":"f"},"pubsub":{"emulator_host":"h","project":"p","topic":"t","pid":11},
		"database_url":"d","database_pid":6}`, string(content))

	content, err = json.Marshal(devinfo.Info{Coordinators: []devinfo.Coordinator{{}}, Relayers: []devinfo.Relayer{{}}, Gateways: []devinfo.Gateway{{}}, APIs: []devinfo.API{{}}, Consumers: []devinfo.Consumer{{}}, Escrows: []devinfo.Escrow{{}}})
	require.NoError(t, err)
	require.NotContains(t, string(content), "pid", "a script that kills process 0 kills itself")
}

func TestSocketPath_LongFolder_FitsTheLimit(t *testing.T) {
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

func TestKill_NoClusterRuns(t *testing.T) {
	t.Parallel()
	_, err := Kill(t.Context(), t.TempDir(), "leader")
	require.ErrorIs(t, err, ErrNotRunning)
}

// After the answer to a kill dev.json is up to date, even before the end of the process is noticed.
func TestKill_Returns_InfoIsUpToDate(t *testing.T) {
	t.Parallel()
	s := sleepers(t, new(strings.Builder))
	m := s.sleeper("oz-relayer-1", kindRelayer, nil)
	p, err := s.start(t.Context(), m)
	require.NoError(t, err)
	pid, err := s.kill(m)
	require.NoError(t, err)
	require.Equal(t, p.pid(), pid)
	info, err := devinfo.ReadInfo(s.cfg.Data)
	require.NoError(t, err)
	require.Zero(t, info.Relayers[1].PID)
	_, err = s.kill(m)
	require.ErrorIs(t, err, errNotRunning)
	s.stopAll()
}

// sleepers returns a supervisor whose members only wait for their end.
func sleepers(t *testing.T, out io.Writer) *supervisor {
	t.Helper()
	s := &supervisor{published: true, cfg: Config{Data: t.TempDir(), Out: out}, ports: new(ports), launcher: newLauncher(), database: new(database)}
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

func TestStrippedEnv_Variables_AreDroppedOrKept(t *testing.T) {
	t.Parallel()
	for variable, dropped := range map[string]bool{
		"REDIS_URL=x": true, "REDIS_PORT=1": true, "ROLLCALL_TLS_CERT=x": true, "ROLLCALL_CONFIG=x": true,
		"HEALTH_CHECK_PATH=/x": true, "HEALTH_CHECK_AUTH_HEADER=x": true, "HEALTH_CHECK_FALL=3": false, "PATH=x": false,
		"RELAYER_PRIVATE_KEY_0=x": true, "RELAYER_PRIVATE_KEYS_JSON=x": true, "RELAYER_KEYSTORE_DIR=x": true, "RELAYER_ALLOWED_ADDRESSES=x": true,
		"RELAYER_API_KEYS=x": true, "DATABASE_URL=x": true, "RELAYER_DATABASE_URL_FILE=x": true, "RELAYER_RPC_URLS=x": true,
		"RELAYER_SUBSCRIBE_URL=x": true, "PGSSLMODE=require": true, "RELAYER_ENABLED=false": false,
	} {
		require.Equal(t, dropped, strippedEnv(variable), variable)
	}
}

func TestLastLine_LogForms_GiveTheMessage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	require.Empty(t, lastLine(path))
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 5000)+"\nlast\n"), 0o600))
	require.Equal(t, "last", lastLine(path))
	require.NoError(t, os.WriteFile(path, []byte(`{"level":"ERROR","msg":"relayer failed","err":"no key"}`+"\n"), 0o600))
	require.Equal(t, "relayer failed: no key", lastLine(path))
	require.NoError(t, os.WriteFile(path, []byte(`{"level":"INFO","msg":"relayer started"}`+"\n"), 0o600))
	require.Equal(t, "relayer started", lastLine(path))
}

// A process that is stopped while it starts may fail because of that, which is not reported. A failure after it served
// is.
func TestStopAll_DuringStart(t *testing.T) {
	t.Parallel()
	for served, want := range map[bool]string{
		false: "",
		true:  "oz-relayer-1 stopped with an error: exit status 1: relayer failed: canceled\n",
	} {
		var out strings.Builder
		s := sleepers(t, &out)
		m := s.sleeper("oz-relayer-1", kindRelayer, nil)
		begun := filepath.Join(s.cfg.Data, "begun")
		m.launch = func(context.Context) (process, error) {
			const script = `trap 'echo "{\"msg\":\"relayer failed\",\"err\":\"canceled\"}"; kill $!; exit 1' TERM; sleep 1000 & touch "$0"; wait`
			return s.launcher.start("sh", []string{"-c", script, begun}, nil, s.logPath(m))
		}
		r, err := s.start(t.Context(), m)
		require.NoError(t, err)
		ready := func(context.Context) error { _, err := os.Stat(begun); return err }
		if served {
			require.NoError(t, r.await(t.Context(), ready))
		} else {
			require.Eventually(t, func() bool { return ready(t.Context()) == nil }, 2*time.Minute, time.Millisecond)
		}
		s.stopAll()
		require.NotContains(t, out.String(), "{")
		if require.Contains(t, out.String(), want); want == "" {
			require.NotContains(t, out.String(), "stopped with an error")
		}
	}
}

// A relayer without a usable key runs, and is not ready. The operator must learn that it runs.
func TestStart_NotReady_NamesTheProcess(t *testing.T) {
	t.Parallel()
	s := sleepers(t, new(strings.Builder))
	m := s.sleeper("oz-relayer-1", kindRelayer, func(context.Context) error { return errors.New("all keys are paused") })
	_, err := s.startServing(t.Context(), m, 10*time.Millisecond)
	require.ErrorContains(t, err, fmt.Sprintf("oz-relayer-1 runs as process %d, but is not ready after 10ms: ", m.pid()))
	require.ErrorContains(t, err, "all keys are paused; see "+s.logPath(m))
	s.stopAll()
}

// The user interrupts a command that the supervisor has received: it may be executed.
func TestStart_InterruptedAfterRequest_HasNoAnswer(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	socket, err := socketPath(data)
	require.NoError(t, err)
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		if conn, err := l.Accept(); err == nil {
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1)) // the request's first byte
			interrupt()
		}
	}()
	_, err = Start(ctx, data, "oz-relayer-1")
	require.ErrorIs(t, err, ErrNoAnswer)
}

// dev.json is written when the whole cluster serves, follows later changes, and is complete whenever it exists.
func TestInfo_AppearsOncePublished(t *testing.T) {
	t.Parallel()
	s := sleepers(t, new(strings.Builder))
	s.published = false
	m := s.sleeper("oz-relayer-1", kindRelayer, nil)
	r, err := s.start(t.Context(), m)
	require.NoError(t, err)
	path := filepath.Join(s.cfg.Data, devinfo.File)
	require.NoFileExists(t, path)
	require.NoError(t, s.publish())
	info, err := devinfo.ReadInfo(s.cfg.Data)
	require.NoError(t, err)
	require.Equal(t, r.pid(), info.Relayers[1].PID)
	for _, address := range []string{info.Coordinators[0].HTTP, info.Gateways[0].HTTP, info.Relayers[0].URL} {
		require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, address)
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(content), `"pid"`), "only that of a process that runs")
	_, err = s.kill(m)
	require.NoError(t, err)
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(content), "pid")
	s.stopAll()
}

// leaderlessCluster returns a supervisor whose coordinators are sleepers and never elect a leader.
func leaderlessCluster(t *testing.T, out io.Writer) *supervisor {
	t.Helper()
	s := sleepers(t, out)
	wish := wish(t)
	s.ports = &wish
	for i := range nodes {
		_, err := s.start(t.Context(), s.sleeper(coordinatorID(i), kindCoordinator, nil))
		require.NoError(t, err)
	}
	var err error
	s.client, err = gateway.NewClient(gateway.ClientConfig{Coordinators: s.coordinators()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.client.Close()) })
	return s
}

// Without a leader, find("leader") fails soon, with a hint.
func TestFind_NoLeader(t *testing.T) {
	t.Parallel()
	s := leaderlessCluster(t, new(strings.Builder))
	defer s.stopAll()
	for i := range 2 {
		_, err := s.kill(s.members[i])
		require.NoError(t, err)
	}
	began := time.Now()
	_, err := s.find(t.Context(), "leader")
	require.ErrorContains(t, err, "no coordinator leads: 1 of 3 coordinators run, 2 are needed")
	require.ErrorContains(t, err, "start coordinator-1 --data "+s.cfg.Data)
	require.NotContains(t, err.Error(), "rpc error")
	require.Less(t, time.Since(began), 5*leaderWait)
}

func TestReportLeaders_QuorumLost(t *testing.T) {
	t.Parallel()
	out := new(lockedBuilder)
	s := leaderlessCluster(t, out)
	defer s.stopAll()
	ctx, cancel := context.WithCancel(t.Context())
	var reporting sync.WaitGroup
	reporting.Go(func() { s.reportLeaders(ctx) })
	require.Eventually(t, func() bool {
		return strings.Contains(out.String(), "no coordinator leads: 3 of 3 coordinators run, 2 are needed")
	}, 2*time.Minute, time.Millisecond)
	cancel()
	reporting.Wait()
	require.Equal(t, 1, strings.Count(out.String(), "no coordinator leads"))
}

func TestWatch_InterruptedBeforeAllServes(t *testing.T) {
	t.Parallel()
	var out lockedBuilder
	s := leaderlessCluster(t, &out)
	defer s.stopAll()
	s.published, s.redisURL = false, testredis.Start(t).URL()
	require.NoError(t, removeInfo(s.cfg.Data))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.watch(ctx))
	require.NotContains(t, out.String(), "Ctrl-C stops everything")
	require.NoFileExists(t, filepath.Join(s.cfg.Data, devinfo.File))
}

// Services of every kind are reported, with the set that they joined or left.
func TestSayEvents_NamesTheSetOfTheKind(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &supervisor{cfg: Config{Out: &out, KeyPrefix: "p:"}}
	events := make(chan *redis.Message, 3)
	for _, payload := range []string{
		`{"type":"added","id":"worker-1","kind":"worker"}`, `{"type":"removed","id":"worker-1","kind":"worker","reason":"gone"}`,
		`{"type":"added","id":"oz-relayer-1","kind":"relayer"}`,
	} {
		events <- &redis.Message{Payload: payload}
	}
	close(events)
	s.reportEvents(t.Context(), events)
	require.Contains(t, out.String(), "worker-1 joined p:worker:active\n")
	require.Contains(t, out.String(), "worker-1 left p:worker:active: gone\n")
	require.Contains(t, out.String(), "oz-relayer-1 joined p:relayer:active\n")
}

func TestRun_DataFolderThatCannotBeMade(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Config{Data: "/proc/x", Out: new(strings.Builder)})
	require.ErrorContains(t, err, "the data folder cannot be made: ")
	require.ErrorContains(t, err, "name one that you may write to with --data")
}

func TestAbsent_NotRunningOrStarting_IsReported(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	require.ErrorIs(t, Absent(data), ErrNotRunning)
	lock, err := devinfo.TryLock(filepath.Join(data, devinfo.LockFile), syscall.LOCK_EX)
	require.NoError(t, err)
	defer lock.Close()
	require.ErrorIs(t, Absent(data), ErrStarting)
	_, err = Kill(t.Context(), data, "leader")
	require.ErrorIs(t, err, ErrStarting)
}

// lockedBuilder is a strings.Builder for concurrent use.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A member that is killed and started again at once is reported as killed.
func TestKill_StartedAtOnce_IsReportedAsKilled(t *testing.T) {
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
	s.stopAll() // ends all goroutines that print
	require.Contains(t, out.String(), "oz-relayer-1 was killed; ")
}

// After concurrent stops, starts and kills no process runs, and dev.json stays removed.
func TestStopAll_ConcurrentStartsAndKills_LeavesNoProcess(t *testing.T) {
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
			all.Go(func() { _, _ = s.start(t.Context(), m) }) // may be too late
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
		require.NoFileExists(t, filepath.Join(s.cfg.Data, devinfo.File))
		require.Contains(t, out.String(), "stopped; the same command goes on")
	}
}

// A command that runs when the cluster stops ends before the supervisor does.
func TestServeControl_Stopped_WaitsForCommands(t *testing.T) {
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
	control, err := s.listenControl(ctx)
	require.NoError(t, err)
	go func() { served <- s.serveControl(ctx, control) }()
	socket, err := socketPath(s.cfg.Data)
	require.NoError(t, err)
	listens := func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	require.Eventually(t, listens, 2*time.Minute, time.Millisecond)
	answered := make(chan error, 1)
	go func() {
		_, err := Start(t.Context(), s.cfg.Data, "oz-relayer-1")
		answered <- err
	}()
	<-asked
	cancel()
	require.Eventually(t, func() bool { return !listens() }, 2*time.Minute, time.Millisecond)
	close(release)
	require.NoError(t, <-served)
	require.Contains(t, out.String(), "oz-relayer-1 was started")
	require.NoError(t, <-answered)
	s.stopAll()
}

// Secrets are made once, and only their owner can read them.
func TestOpenSecrets_Twice_KeepsSecrets(t *testing.T) {
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
	require.ErrorContains(t, err, "remove the file to have keys made again")
	require.NotContains(t, err.Error(), "s3cret")
}

// A killed PostgreSQL has its data when it is started again. With a new supervisor its database is empty, because the
// chain starts again, too.
func TestDatabase_NewSupervisor_BeginsEmpty(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	url := filepath.Join(data, "url")
	begin := func() (*database, process) {
		d := &database{data: data, port: wish(t).Postgres, urlFile: url}
		p, err := d.start(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() {
			p.kill()
			require.NoError(t, os.RemoveAll(d.folder)) // for root it may be outside of the data folder
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
