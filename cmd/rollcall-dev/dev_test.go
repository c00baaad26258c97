package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// devRun is a process of rollcall-dev.
type devRun struct {
	cmd  *exec.Cmd
	out  *lockedBuffer
	done chan error
}

// startDev runs rollcall-dev with flags, and more variables of the environment.
func startDev(t *testing.T, data string, settings ...string) *devRun {
	t.Helper()
	isFlag := func(s string) bool { return strings.HasPrefix(s, "--") }
	env := slices.DeleteFunc(slices.Clone(settings), isFlag)
	flags := slices.DeleteFunc(slices.Clone(settings), func(s string) bool { return !isFlag(s) })
	self, err := os.Executable()
	require.NoError(t, err)
	d := &devRun{
		cmd: exec.Command(self, append(flags, "--data", data, "--rollcall", binary, "--health-check-interval-ms", "1000")...),
		out: new(lockedBuffer), done: make(chan error, 1),
	}
	d.cmd.Env = append(append(os.Environ(), "ROLLCALL_TEST_MAIN=1"), env...)
	testpostgres.Folder(t, filepath.Join(data, "postgres"))
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	require.NoError(t, d.cmd.Start())
	go func() { d.done <- d.cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("rollcall-dev:\n%s", d.out)
		}
		_ = d.cmd.Process.Kill() // and with it its children
	})
	return d
}

// says waits until the output holds the text.
func (d *devRun) says(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(d.out.String(), text) }, 5*time.Minute, 20*time.Millisecond, "%q", text)
}

func (d *devRun) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, <-d.done, "Ctrl-C is no error")
}

// here runs rollcall like a user in the folder.
func here(t *testing.T, folder string, args ...string) string {
	t.Helper()
	return output(t, folder, exec.Command(binary, args...))
}

// output runs a program that must succeed in a folder, and returns its output.
func output(t *testing.T, folder string, cmd *exec.Cmd) string {
	t.Helper()
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "ROLLCALL_TEST_MAIN=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func pids(info *devinfo.Info) map[string]int {
	all := map[string]int{}
	for _, c := range info.Coordinators {
		all[c.ID] = c.PID
	}
	for _, r := range info.Relayers {
		all[r.ID] = r.PID
	}
	for _, g := range info.Gateways {
		all[g.ID] = g.PID
	}
	for _, a := range info.APIs {
		all[a.ID] = a.PID
	}
	for _, c := range info.Consumers {
		all[c.ID] = c.PID
	}
	for _, e := range info.Escrows {
		all[e.ID] = e.PID
	}
	all["pubsub"] = info.PubSub.PID
	all["chain"], all["postgres"], all["redis"] = info.Chain.PID, info.DatabasePID, info.RedisPID
	return all
}

// The README's promises to a newcomer hold, with real processes.
func TestDev_Started_KeepsTheReadmesPromises(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	data := filepath.Join(folder, "build", "dev")
	d := startDev(t, data)
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(data, "dev.json")); return err == nil }, 5*time.Minute, time.Millisecond)
	info, err := devinfo.ReadInfo(data)
	require.NoError(t, err)
	for _, url := range []string{info.Coordinators[0].HTTP + "/readyz", info.Gateways[0].HTTP + "/healthz", info.Relayers[0].URL + "/health"} {
		code, _ := get(url)
		require.Equal(t, http.StatusOK, code, "dev.json is there before %s serves", url)
	}
	d.says(t, "Ctrl-C stops everything")
	first := pids(info)
	require.Len(t, first, 17)
	for id, pid := range first {
		require.True(t, alive(pid), "%s, process %d", id, pid)
	}
	demo := subscribe(t, info.PubSub)
	client, err := redisclient.New(redisclient.Options{URL: info.RedisURL})
	require.NoError(t, err)
	defer func() { client.Close() }()
	active := func() []string { return client.SMembers(t.Context(), "relayer:active").Val() }
	all := []string{"oz-relayer-0", "oz-relayer-1", "oz-relayer-2"}
	allActive := func() {
		t.Helper()
		require.Eventually(t, func() bool { return len(active()) == len(all) }, 5*time.Minute, 20*time.Millisecond)
		require.ElementsMatch(t, all, active())
	}
	allActive()
	for _, r := range info.Relayers {
		code, _ := get(r.URL + "/health")
		require.Equal(t, http.StatusOK, code)
	}
	require.Contains(t, d.out.String(), "the chain begins again at each start, and the relayers' data with it\n")
	require.Equal(t, info.Relayers[1].APIKey, strings.TrimSpace(output(t, folder, exec.Command(d.cmd.Path, "api-key", "oz-relayer-1"))))
	tx := mine(t, info)
	demo.requireSettled(t)
	require.Eventually(t, func() bool {
		code, body := get(info.Coordinators[0].HTTP + "/status")
		return code == http.StatusOK && body["status"] == "healthy"
	}, 5*time.Minute, 50*time.Millisecond)
	coordinators := "--coordinators=" + strings.Join(devinfo.Running(data).ClusterPorts(), ",")

	// Called from the folder where it runs, the operator's commands find it.
	require.Contains(t, here(t, folder, "services", "list"), "3 services")
	require.Contains(t, here(t, folder, "mirror", "show"), "active   relayer: oz-relayer-0, oz-relayer-1, oz-relayer-2")
	require.Contains(t, here(t, folder, "mirror", "take-over"), " already")

	// A killed relayer leaves, and comes back when it is started again.
	require.Contains(t, succeed(t, "kill", "oz-relayer-1", "--data", data), "oz-relayer-1 is killed (it was process ")
	require.False(t, alive(first["oz-relayer-1"]))
	info, err = devinfo.ReadInfo(data)
	require.NoError(t, err)
	require.Zero(t, pids(info)["oz-relayer-1"])
	d.says(t, "oz-relayer-1 was killed; start it again with: ")
	d.says(t, "oz-relayer-1 left relayer:active: ")
	require.ElementsMatch(t, []string{"oz-relayer-0", "oz-relayer-2"}, active())
	r := dev(t, "kill", "oz-relayer-1", "--data", data)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "oz-relayer-1 is not running")
	require.Contains(t, succeed(t, "start", "oz-relayer-1", "--data", data), "oz-relayer-1 runs as process ")
	info, err = devinfo.ReadInfo(data)
	require.NoError(t, err)
	require.True(t, alive(pids(info)["oz-relayer-1"]))
	allActive()
	r = dev(t, "start", "oz-relayer-1", "--data", data)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "runs already")

	// Another coordinator leads when the leader is killed, under a higher epoch, and no relayer leaves.
	var before cli.Fleet
	require.Eventually(t, func() bool { before = statusOf(t, coordinators); return before.Director == "running" }, 5*time.Minute, 50*time.Millisecond)
	left := watchRemovals(t, client)
	killed, _, ok := strings.Cut(succeed(t, "kill", "leader", "--data", data), " is killed")
	require.True(t, ok)
	require.False(t, alive(pids(info)[killed]))
	var after cli.Fleet
	require.Eventually(t, func() bool {
		after = statusOf(t, coordinators)
		return after.Epoch > before.Epoch && after.Director == "running"
	}, 5*time.Minute, 50*time.Millisecond)
	require.NotEqual(t, killed, after.Leader)
	d.says(t, after.Leader+" leads, epoch ")
	require.Equal(t, before.Cluster, after.Cluster)
	require.ElementsMatch(t, all, active())
	require.Empty(t, left(), "no healthy relayer was taken out")
	succeed(t, "start", killed, "--data", data)

	// A lost quorum is reported, and its return. Services of other kinds join sets of their own.
	for _, id := range []string{"coordinator-1", "coordinator-2"} {
		succeed(t, "kill", id, "--data", data)
	}
	d.says(t, "no coordinator leads: 1 of 3 coordinators run, 2 are needed")
	r = dev(t, "kill", "leader", "--data", data)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "no coordinator leads: 1 of 3 coordinators run, 2 are needed")
	require.NotContains(t, r.stderr, "--timeout")
	reported := strings.Count(d.out.String(), " leads, epoch ")
	for _, id := range []string{"coordinator-1", "coordinator-2"} {
		succeed(t, "start", id, "--data", data)
	}
	require.Eventually(t, func() bool { return strings.Count(d.out.String(), " leads, epoch ") > reported }, 5*time.Minute, 20*time.Millisecond)
	here(t, folder, "services", "register", "worker-1", "--kind", "worker", "--url", info.Relayers[0].URL, coordinators)
	d.says(t, "worker-1 joined worker:active\n")
	here(t, folder, "services", "deregister", "worker-1", coordinators)
	d.says(t, "worker-1 left worker:active: ")

	// Without PostgreSQL the relayers say that they can't relay, and leave; their data is there when it is back.
	succeed(t, "kill", "postgres", "--data", data)
	require.False(t, alive(first["postgres"]))
	require.Eventually(t, func() bool { return len(active()) == 0 }, 5*time.Minute, 20*time.Millisecond)
	code, health := get(info.Relayers[0].URL + "/health")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, health["reason"], "database")
	succeed(t, "start", "postgres", "--data", data)
	allActive()
	code, kept := call(t, info.Relayers[0], "GET", "/transactions/"+tx, "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "confirmed", kept["status"])

	// A Redis that is started again is empty, and is written in full.
	succeed(t, "kill", "redis", "--data", data)
	require.False(t, alive(first["redis"]))
	succeed(t, "start", "redis", "--data", data)
	allActive()

	// The gateway may go and come: what it registered stays.
	succeed(t, "kill", "gateway", "--data", data)
	succeed(t, "start", "gateway", "--data", data)
	require.Contains(t, here(t, folder, "services", "list", coordinators), "3 services")

	r = dev(t, "kill", "absent", "--data", data)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, `there is no "absent"; there are leader, `)

	// Either instance of the escrow monitor goes on alone.
	for i, victim := range info.Escrows {
		succeed(t, "kill", victim.ID, "--data", data)
		cursor := func() float64 {
			_, status := get(info.Escrows[1-i].HTTP + "/status")
			at, _ := status["cursor"].(map[string]any)
			number, _ := at["number"].(float64)
			return number
		}
		// The other one may have stored what the killed one had not; two blocks later it reads alone.
		require.Eventually(t, func() bool { return cursor() > 0 }, 5*time.Minute, 50*time.Millisecond)
		before := cursor()
		require.Eventually(t, func() bool { return cursor() > before+1 }, 5*time.Minute, 50*time.Millisecond)
		succeed(t, "start", victim.ID, "--data", data)
	}

	// A chain that is started again is another one, on which nothing is sent.
	succeed(t, "kill", "chain", "--data", data)
	require.Eventually(t, func() bool { return len(active()) == 0 }, 5*time.Minute, 20*time.Millisecond)
	succeed(t, "start", "chain", "--data", data)
	d.says(t, "the chain is another one, on which the relayers send nothing")
	require.Eventually(t, func() bool {
		code, health := get(info.Relayers[0].URL + "/health")
		reason, _ := health["reason"].(string)
		return code == http.StatusServiceUnavailable && strings.Contains(reason, "has another history")
	}, 5*time.Minute, 50*time.Millisecond)

	// A process that ends by itself is not started again behind one's back.
	info, err = devinfo.ReadInfo(data)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pids(info)["oz-relayer-2"], syscall.SIGKILL))
	d.says(t, "oz-relayer-2 ended: signal: killed; start it again with: ")

	second := startDev(t, data)
	require.Error(t, <-second.done)
	require.Contains(t, second.out.String(), "a cluster runs from "+data+" already")

	info, err = devinfo.ReadInfo(data)
	require.NoError(t, err)
	last := pids(info)
	requireSecret(t, d, data, info)
	d.interrupt(t)
	for id, pid := range last {
		if pid != 0 {
			require.False(t, alive(pid), "%s, process %d", id, pid)
		}
	}
	require.NotContains(t, d.out.String(), "and was killed\n", "everything stopped by itself")
	require.NotContains(t, d.out.String(), "stopped with an error")
	require.NoFileExists(t, filepath.Join(data, "dev.json"))
	r = dev(t, "kill", "leader", "--data", data)
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "no cluster runs there\nStart one with \"rollcall-dev\"")

	// The second run goes on from the same data, but for the relayers', since their chain is another.
	d = startDev(t, data, "--no-demo")
	d.says(t, "Ctrl-C stops everything")
	again, err := devinfo.ReadInfo(data)
	require.NoError(t, err)
	for i, c := range again.Coordinators {
		require.Equal(t, info.Coordinators[i].Cluster, c.Cluster)
	}
	require.NoError(t, client.Close())
	client, err = redisclient.New(redisclient.Options{URL: again.RedisURL}) // it may be the preferred one now
	require.NoError(t, err)
	allActive()
	var continued cli.Fleet
	require.Eventually(t, func() bool { continued = statusOf(t, coordinators); return continued.Director == "running" }, 5*time.Minute, 50*time.Millisecond)
	require.Equal(t, before.Cluster, continued.Cluster)
	require.Greater(t, continued.Epoch, after.Epoch)
	require.Equal(t, info.Relayers[0].APIKey, again.Relayers[0].APIKey)
	code, _ = call(t, again.Relayers[0], "GET", "/transactions/"+tx, "")
	require.Equal(t, http.StatusNotFound, code, "a transaction of the chain before")
	mine(t, again)
	requireNoEscrow(t, again)

	if runtime.GOOS == "linux" { // elsewhere children outlive a supervisor that is killed
		require.NoError(t, d.cmd.Process.Kill())
		require.Error(t, <-d.done)
		for id, pid := range pids(again) {
			require.Eventually(t, func() bool { return !alive(pid) }, 5*time.Minute, 20*time.Millisecond, id)
		}
	}
}

// subscription gets the messages of the topic from now on.
type subscription struct {
	pubsubpb.SubscriberClient
	name string
}

func subscribe(t *testing.T, info devinfo.PubSub) *subscription {
	t.Helper()
	conn, err := grpc.NewClient(info.EmulatorHost, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	s := &subscription{pubsubpb.NewSubscriberClient(conn), "projects/" + info.Project + "/subscriptions/test"}
	topic := "projects/" + info.Project + "/topics/" + info.Topic
	require.Eventually(t, func() bool { // an instance makes the topic
		_, err := s.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: s.name, Topic: topic, EnableMessageOrdering: true})
		return err == nil
	}, 5*time.Minute, 50*time.Millisecond)
	return s
}

// requireSettled returns once the topic has the messages of an escrow from its creation to its end.
func (s *subscription) requireSettled(t *testing.T) {
	t.Helper()
	types := map[string]string{} // of the messages, by escrow
	require.Eventually(t, func() bool {
		res, err := s.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: s.name, MaxMessages: 100})
		require.NoError(t, err)
		for _, m := range res.ReceivedMessages {
			types[m.Message.OrderingKey] += " " + m.Message.Attributes["type"]
			_, err := s.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: s.name, AckIds: []string{m.AckId}})
			require.NoError(t, err)
		}
		all := slices.Collect(maps.Values(types))
		return slices.Contains(all, " EscrowCreated EscrowDeployed Approved EscrowReleased") || slices.Contains(all, " EscrowCreated EscrowDeployed EscrowRefunded")
	}, 5*time.Minute, 50*time.Millisecond, "%v", types)
}

// requireNoEscrow fails if the factory has created an escrow: a demonstration begins with one at once.
func requireNoEscrow(t *testing.T, info *devinfo.Info) {
	t.Helper()
	client, err := ethclient.DialContext(t.Context(), info.Chain.RPCURL)
	require.NoError(t, err)
	defer client.Close()
	logs, err := client.FilterLogs(t.Context(), ethereum.FilterQuery{Addresses: []common.Address{common.HexToAddress(info.Contracts.Factory)}})
	require.NoError(t, err)
	require.Empty(t, logs)
}

// Ctrl-C while it starts ends it in order, whatever is half started.
func TestDev_InterruptedWhileStarting(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "dev")
	d := startDev(t, data)
	log := filepath.Join(data, "logs", "oz-relayer-2.log") // the last process that is started before anything is awaited of relayers
	require.Eventually(t, func() bool { _, err := os.Stat(log); return err == nil }, 5*time.Minute, time.Millisecond)
	d.interrupt(t)
	require.NotContains(t, d.out.String(), "{")
	require.NotContains(t, d.out.String(), "stopped with an error")
	require.Contains(t, d.out.String(), "stopped; the same command goes on")
	require.NoFileExists(t, filepath.Join(data, "dev.json"))
}

// call is a request to a relayer's pool.
func call(t *testing.T, r devinfo.Relayer, method, path, body string) (code int, data map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.URL+"/api/v1/relayers/pool"+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+r.APIKey)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", body)
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	var answer struct{ Data map[string]any }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&answer))
	return res.StatusCode, answer.Data
}

// mine posts a transaction to each relayer, sees another one call it confirmed, and returns the last one's id.
func mine(t *testing.T, info *devinfo.Info) (id string) {
	t.Helper()
	for i, r := range info.Relayers {
		body := fmt.Sprintf(`{"to":"0x00000000000000000000000000000000000000aa","value":%d}`, i)
		code, tx := call(t, r, "POST", "/transactions", body)
		require.Equal(t, http.StatusOK, code)
		id = tx["id"].(string)
		other := info.Relayers[(i+1)%len(info.Relayers)]
		require.Eventually(t, func() bool {
			_, tx := call(t, other, "GET", "/transactions/"+id, "")
			return tx["status"] == "confirmed"
		}, 5*time.Minute, 100*time.Millisecond)
		_, same := call(t, other, "POST", "/transactions", body)
		require.Equal(t, id, same["id"], "repeated elsewhere it is the same")
	}
	return id
}

// requireSecret finds keys and passwords neither in what the cluster prints and logs, nor where others see processes.
func requireSecret(t *testing.T, d *devRun, data string, info *devinfo.Info) {
	t.Helper()
	database, err := url.Parse(info.DatabaseURL)
	require.NoError(t, err)
	password, _ := database.User.Password()
	secrets := []string{password}
	for _, r := range info.Relayers {
		secrets = append(secrets, r.APIKey)
	}
	secrets = append(secrets, info.APIs[0].APIKey)
	for _, file := range []string{"webhook-secret", "consumer.relayer-key"} {
		content, err := os.ReadFile(filepath.Join(data, "secrets", file))
		require.NoError(t, err)
		secrets = append(secrets, strings.TrimSpace(string(content)))
	}
	content, err := os.ReadFile(filepath.Join(data, "secrets", "keys.json"))
	require.NoError(t, err)
	var keys []string
	require.NoError(t, json.Unmarshal(content, &keys))
	require.Len(t, keys, 4)
	for _, k := range keys {
		secrets = append(secrets, k[2:])
	}
	public := map[string]string{"what it prints": d.out.String()}
	logs, err := filepath.Glob(filepath.Join(data, "logs", "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 16)
	if runtime.GOOS == "linux" {
		for _, pid := range pids(info) {
			if pid != 0 {
				logs = append(logs, fmt.Sprintf("/proc/%d/cmdline", pid))
			}
		}
	}
	for _, path := range logs {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		public[path] = string(content)
	}
	for where, text := range public {
		for _, secret := range secrets {
			require.NotEmpty(t, secret)
			require.NotContains(t, strings.ToLower(text), strings.ToLower(secret), where)
		}
	}
}

func statusOf(t *testing.T, coordinators string) cli.Fleet {
	t.Helper()
	var f cli.Fleet
	out, err := exec.Command(binary, "status", "-o", "json", coordinators).Output()
	if err == nil {
		require.NoError(t, json.Unmarshal(out, &f))
	}
	return f
}

// watchRemovals listens to what the mirror publishes and returns what lists the ids removed since.
func watchRemovals(t *testing.T, client redis.UniversalClient) func() []string {
	t.Helper()
	sub := client.Subscribe(t.Context(), mirror.Keys{}.Events())
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	events := sub.Channel()
	return func() []string {
		var removed []string
		for {
			select {
			case m := <-events:
				var e struct{ Type, ID string }
				require.NoError(t, json.Unmarshal([]byte(m.Payload), &e))
				if e.Type == "removed" {
					removed = append(removed, e.ID)
				}
			default:
				require.NoError(t, sub.Close())
				return removed
			}
		}
	}
}

// With REDIS_URL no Redis is started, and REDIS_KEY_PREFIX holds for all that is written.
func TestDev_RedisURLGiven_StartsNoRedis(t *testing.T) {
	t.Parallel()
	server, folder := testRedis(t), t.TempDir()
	d := startDev(t, filepath.Join(folder, "build", "dev"), "REDIS_URL=redis://"+server, "REDIS_KEY_PREFIX=mine:")
	d.says(t, "Ctrl-C stops everything")
	client := redis.NewClient(&redis.Options{Addr: server})
	defer client.Close()
	active := func() int64 { return client.SCard(t.Context(), "mine:relayer:active").Val() }
	require.Eventually(t, func() bool { return active() == 3 }, 5*time.Minute, 20*time.Millisecond)
	require.Contains(t, here(t, folder, "mirror", "take-over"), " already")
	require.NoFileExists(t, filepath.Join(folder, "build", "dev", "logs", "redis.log"))
	require.Zero(t, client.Exists(t.Context(), "relayer:meta").Val(), "without the prefix it is not ours")
	d.interrupt(t)
	require.Equal(t, int64(3), active(), "readers keep what was last true")
}

// As a process of its own, and not for long: where a check is missing, a cluster starts.
func TestDev_BadFlags_AreUsageErrors(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	for want, args := range map[string][]string{
		"redis URL: the scheme must be": {"--redis-url", "http://x"},
		"--redis-key-prefix: is empty":  {"--redis-url", "redis+cluster://x"},
		`"10" is below 1000`:            {"--health-check-interval-ms", "10"},
		`expected "<member>"`:           {"kill"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, self, args...)
		cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "ROLLCALL_TEST_MAIN=1")
		out, _ := cmd.CombinedOutput()
		require.NoError(t, ctx.Err(), "%v runs: %s", args, out)
		require.Equal(t, cli.ExitUsage, cmd.ProcessState.ExitCode(), "%v: %s", args, out)
		require.Contains(t, string(out), want)
	}
}

func testRedis(t *testing.T) string {
	t.Helper()
	return testredis.Start(t).Addr()
}
