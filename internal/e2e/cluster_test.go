package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// options configure a cluster. The zero value is three coordinators with their own Redis, no static fleet and checks
// each second.
type options struct {
	size  int               // coordinators; 3
	env   map[string]string // of every coordinator, overriding the defaults
	redis *testredis.Server
	// nodeEnv is the environment of one coordinator, by id, overriding env.
	nodeEnv map[string]map[string]string
	// fileLimit is the maximum size of a coordinator's files, by id.
	fileLimit map[string]int
	// program is the program to run instead of the product, by id.
	program map[string][]string
	cliEnv  []string // of the operator's commands
	// creds are the credentials of the test's own connections; default plain text.
	creds credentials.TransportCredentials
}

// steady is the environment of coordinators whose leader must not change: with the default timing, a process that waits for
// the processor for 200 ms loses the leadership.
var steady = map[string]string{"ROLLCALL_RAFT_TIMING": "wan"}

// slowRelayers is the environment of coordinators whose relayers do not fail in the test: on a busy machine a healthy relayer
// takes longer than the default timeout of a check.
var slowRelayers = map[string]string{
	"HEALTH_CHECK_INTERVAL_MS": "5000", "HEALTH_CHECK_TIMEOUT_MS": "4000", "HEALTH_CHECK_CONNECT_TIMEOUT_MS": "4000",
}

// cluster is a set of coordinator processes on loopback.
type cluster struct {
	t     testing.TB
	opts  options
	redis *testredis.Server
	ids   []string
	nodes map[string]*node
}

// node is one coordinator with its state between runs.
type node struct {
	*process
	id, address, http, data string
	conn                    *grpc.ClientConn
}

func startCluster(t testing.TB, opts options) *cluster {
	t.Helper()
	c := planCluster(t, opts)
	c.startAll()
	c.awaitVoters()
	return c
}

// awaitVoters waits until all coordinators vote. A founder that starts slowly joins as a non-voter at first. Meanwhile
// the loss of another one would lose the quorum.
func (c *cluster) awaitVoters() {
	c.t.Helper()
	for _, id := range c.ids {
		c.awaitReady(c.nodes[id])
	}
}

func (c *cluster) startAll() {
	for _, id := range c.ids {
		c.start(id)
	}
}

// planCluster gives a cluster its addresses and its Redis, without starting its coordinators.
func planCluster(t testing.TB, opts options) *cluster {
	t.Helper()
	if opts.size == 0 {
		opts.size = 3
	}
	c := &cluster{t: t, opts: opts, redis: opts.redis, nodes: make(map[string]*node)}
	if c.redis == nil {
		c.redis = testredis.Start(t)
	}
	for i := range opts.size {
		c.define(fmt.Sprintf("coordinator-%d", i+1))
	}
	return c
}

// define gives a coordinator its addresses and an empty data folder.
func (c *cluster) define(id string) *node {
	n := &node{id: id, data: filepath.Join(c.t.TempDir(), id)}
	c.readdress(n, fmt.Sprintf("127.0.0.1:%d", freePort(c.t)), fmt.Sprintf("127.0.0.1:%d", freePort(c.t)))
	c.ids = append(c.ids, id)
	c.nodes[id] = n
	return n
}

// readdress sets the addresses of a coordinator.
func (c *cluster) readdress(n *node, address, http string) {
	n.address, n.http = address, http
	conn, err := grpc.NewClient("passthrough:///"+n.address, grpc.WithTransportCredentials(cmp.Or(c.opts.creds, insecure.NewCredentials())),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)),
		grpc.WithConnectParams(quickReconnect))
	require.NoError(c.t, err)
	n.conn = conn
	c.t.Cleanup(func() { closeBody(conn) })
}

// peers returns ROLLCALL_PEERS: the coordinators that the cluster starts with.
func (c *cluster) peers() string {
	var peers []string
	for _, id := range c.ids[:c.opts.size] {
		peers = append(peers, id+"="+c.nodes[id].address)
	}
	return strings.Join(peers, ",")
}

// addresses returns the addresses of all coordinators, for gateways and the command line.
func (c *cluster) addresses() string {
	var all []string
	for _, id := range c.ids {
		all = append(all, c.nodes[id].address)
	}
	return strings.Join(all, ",")
}

// start starts a coordinator with the data of its earlier runs.
func (c *cluster) start(id string) *node {
	c.t.Helper()
	n := c.nodes[id]
	env := map[string]string{
		"ROLLCALL_NODE_ID": id, "ROLLCALL_PEERS": c.peers(), "ROLLCALL_LISTEN": n.address, "ROLLCALL_ADVERTISE": n.address,
		"ROLLCALL_HTTP_LISTEN": n.http, "ROLLCALL_DATA_DIR": n.data, "ROLLCALL_LOG_LEVEL": "debug",
		"REDIS_URL": c.redis.URL(), "RELAYER_COUNT": "0", "HEALTH_CHECK_INTERVAL_MS": "1000",
	}
	maps.Copy(env, c.opts.env)
	maps.Copy(env, c.opts.nodeEnv[id])
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	if program := c.opts.program[id]; program != nil {
		n.process = launchProgram(c.t, id, list, program[0], program[1:]...)
	} else if limit := c.opts.fileLimit[id]; limit > 0 {
		n.process = launchProgram(c.t, id, list, "sh", "-c", fmt.Sprintf(`ulimit -f %d && exec "$0" coordinator`, limit/512), binary)
	} else {
		n.process = launch(c.t, id, list, "coordinator")
	}
	return n
}

func (n *node) discovery() rollcallv1.DiscoveryServiceClient {
	return rollcallv1.NewDiscoveryServiceClient(n.conn)
}

// client returns a client of a coordinator, by id.
func (c *cluster) client(id string) rollcallv1.DiscoveryServiceClient { return c.nodes[id].discovery() }

func (n *node) admin() rollcallv1.ClusterServiceClient {
	return rollcallv1.NewClusterServiceClient(n.conn)
}

// ping returns a node's answer to Ping; nil if it does not answer.
func (n *node) ping(t testing.TB) *rollcallv1.PingResponse {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	resp, err := n.discovery().Ping(ctx, &rollcallv1.PingRequest{})
	if err != nil {
		return nil
	}
	return resp
}

// leader waits for an established leader, and returns it with its epoch.
func (c *cluster) leader() (*node, uint64) {
	c.t.Helper()
	return c.leaderAfter(0)
}

// leaderAfter waits for a leader of an epoch above the given one.
func (c *cluster) leaderAfter(epoch uint64) (leader *node, now uint64) {
	c.t.Helper()
	eventually(c.t, patience, func() bool {
		leader, now = nil, epoch
		for _, n := range c.nodes {
			if n.process == nil || !n.running() {
				continue
			}
			if p := n.ping(c.t); p != nil && p.Leader.GetNode() == n.id && p.Epoch > now {
				leader, now = n, p.Epoch
			}
		}
		return leader != nil
	}, "an established leader after epoch %d", epoch)
	return leader, now
}

// follower returns a running coordinator that is not the leader.
func (c *cluster) follower() *node {
	c.t.Helper()
	leader, _ := c.leader()
	for _, id := range c.ids {
		if n := c.nodes[id]; n != leader && n.process != nil && n.running() {
			return n
		}
	}
	require.FailNow(c.t, "no follower runs")
	return nil
}

// logged returns the log lines with a message, of all coordinators.
func (c *cluster) logged(msg string) (lines []map[string]any) {
	for _, n := range c.nodes {
		lines = append(lines, n.logged(msg)...)
	}
	return lines
}

// awaitError waits until a coordinator has logged an error, and returns the line.
func (c *cluster) awaitError(msg string) map[string]any {
	c.t.Helper()
	eventually(c.t, patience, func() bool { return len(c.logged(msg)) > 0 }, "%q in a log", msg)
	line := c.logged(msg)[0]
	require.Equal(c.t, "ERROR", line["level"])
	return line
}

// cli runs an operator's command on this cluster.
func (c *cluster) cli(args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	return rollcall(c.t, append([]string{"ROLLCALL_COORDINATORS=" + c.addresses(), "REDIS_URL=" + c.redis.URL()}, c.opts.cliEnv...), args...)
}

// mustCLI runs a command that must succeed, and returns its output.
func (c *cluster) mustCLI(args ...string) string {
	c.t.Helper()
	stdout, stderr, code := c.cli(args...)
	require.Zero(c.t, code, "rollcall %v: %s", args, stderr)
	return stdout
}

// operator returns the writer of the command line.
func operator() *rollcallv1.Writer {
	return &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR}}
}

func service(id, url string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: url}}
}

// register writes relayers as an operator, at the current leader.
func (c *cluster) register(relayers ...*relayer) {
	c.t.Helper()
	req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
	for _, r := range relayers {
		req.Services = append(req.Services, service(r.id, r.url()))
	}
	eventually(c.t, patience, func() bool {
		leader, _ := c.leader()
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
		defer cancel()
		_, err := leader.discovery().RegisterServices(ctx, req)
		return err == nil
	}, "a registration")
}

// directory returns the ids in the directory, by a linearizable read.
func (c *cluster) directory() []string {
	c.t.Helper()
	var ids []string
	eventually(c.t, patience, func() bool {
		leader, _ := c.leader()
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
		defer cancel()
		resp, err := leader.discovery().ListServices(ctx, &rollcallv1.ListServicesRequest{})
		if err != nil {
			return false
		}
		ids = nil
		for _, r := range resp.Records {
			ids = append(ids, r.Service.Id)
		}
		return true
	}, "a list of the directory")
	return ids
}

const activeKey = "relayer:active"

// active returns the set as a consumer reads it, sorted; nil if Redis does not answer.
func (c *cluster) active() []string {
	ids, err := c.redis.Client().SMembers(c.t.Context(), activeKey).Result()
	if err != nil {
		return nil
	}
	slices.Sort(ids)
	return ids
}

// awaitActive waits until the set is exactly ids.
func (c *cluster) awaitActive(within time.Duration, ids ...string) {
	c.t.Helper()
	slices.Sort(ids)
	eventually(c.t, within, func() bool { return slices.Equal(ids, c.active()) }, "the set is %v; it should be %v", c.active(), ids)
}

// meta returns relayer:meta; empty if Redis does not answer or has none.
func (c *cluster) meta() map[string]string {
	m, err := c.redis.Client().HGetAll(c.t.Context(), "relayer:meta").Result()
	if err != nil {
		return nil
	}
	return m
}

// awaitEpochInRedis waits until the leader of an epoch, or of a later one, has written. On a busy machine a later one
// may follow soon.
func (c *cluster) awaitEpochInRedis(epoch uint64) {
	c.t.Helper()
	eventually(c.t, patience, func() bool {
		held, err := strconv.ParseUint(c.meta()["epoch"], 10, 64)
		return err == nil && held >= epoch
	}, "epoch %d in Redis; meta was %v", epoch, c.meta())
}

// statusPage is /status as the contract defines it.
type statusPage struct {
	Service       string `json:"service"`
	Status        string `json:"status"`
	Timestamp     string `json:"timestamp"`
	ActiveRelayer []struct {
		ID                 string `json:"id"`
		Status             string `json:"status"`
		LastCheckTimestamp string `json:"lastCheckTimestamp"`
		URL                string `json:"url"`
	} `json:"activeRelayers"`
	TotalConfigured     int `json:"totalConfigured"`
	TotalActive         int `json:"totalActive"`
	HealthCheckInterval int `json:"healthCheckInterval"`
	// Some of our own fields.
	Mirror struct {
		Connected bool   `json:"connected"`
		Error     string `json:"error"`
	} `json:"mirror"`
	Notes []string `json:"notes"`
}

// status reads a coordinator's /status. On a busy machine the leader's first answer may be too late for a reader; it serves the next.
func (n *node) status(t testing.TB) (page statusPage, code int) {
	t.Helper()
	for range 5 {
		page, code = n.statusOnce(t)
		if !slices.ContainsFunc(page.Notes, func(note string) bool { return strings.Contains(note, "nothing came within") }) {
			break
		}
	}
	return page, code
}

func (n *node) statusOnce(t testing.TB) (page statusPage, code int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.http+"/status", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return page, 0
	}
	defer closeBody(resp.Body)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&page))
	return page, resp.StatusCode
}

// get returns the status code of a coordinator's page; 0 if it does not answer.
func (n *node) get(t testing.TB, path string) (code int) {
	t.Helper()
	code, _ = n.page(t, path)
	return code
}

func (n *node) page(t testing.TB, path string) (code int, body string) {
	t.Helper()
	return readPage(t, "http://"+n.http+path)
}

// readPage returns the status code and the body of a page; 0 without an answer.
func readPage(t testing.TB, url string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer closeBody(resp.Body)
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(content)
}
