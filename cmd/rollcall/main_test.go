package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/cli"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// TestMain is also the program: tests that need real processes start this binary with this variable set.
func TestMain(m *testing.M) {
	if os.Getenv("ROLLCALL_TEST_MAIN") != "" {
		main()
	}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		for _, prefix := range []string{"ROLLCALL_", "REDIS_", "RELAYER_", "HEALTH_CHECK_", "DATABASE_", "API_", "CLIENT_", "CONSUMER_", "QUEUE_", "OTEL_", "WEBHOOK_",
			"ESCROW_", "CHAIN_ID", "RPC_", "FACTORY_", "START_BLOCK", "INSTANCE_ID", "PUBSUB_", "PARTITION_", "TOTAL_PARTITIONS", "PORT"} {
			if strings.HasPrefix(name, prefix) {
				_ = os.Unsetenv(name)
			}
		}
	}
	// The clusters of tests are not among those of the user, whose ports rollcall-dev leaves alone.
	cache, err := os.MkdirTemp("", "rollcall-test-")
	if err == nil {
		err = os.Setenv("XDG_CACHE_HOME", cache)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testpostgres.Main(m), append(testchain.Leftovers(), goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(cache)
		os.Exit(code)
	}))...)
}

// result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// rollcall runs a command to its end.
func rollcall(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// succeed runs a command that must succeed and returns what it printed.
func succeed(t *testing.T, args ...string) string {
	t.Helper()
	r := rollcall(t, args...)
	require.Zero(t, r.code, "%v: %s", args, r.stderr)
	require.Empty(t, r.stderr)
	return r.stdout
}

// background is a command that runs until stop.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
	code   int
	out    lockedBuffer // standard output
	log    lockedBuffer // standard error
}

func start(t *testing.T, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &background{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.code = run(ctx, args, &b.out, &b.log)
	}()
	t.Cleanup(func() { b.stop() })
	return b
}

// stop asks the command to end, as SIGTERM does, and returns its exit code.
func (b *background) stop() int {
	b.cancel()
	<-b.done
	return b.code
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// cluster is coordinators of this process, over real TCP, with a Redis.
type cluster struct {
	nodes     []*background
	addresses []string // cluster ports
	http      []string
	redis     *testredis.Server
}

// startCluster starts n coordinators, with more flags for each, and waits until one leads.
func startCluster(t *testing.T, n int, flags ...string) *cluster {
	t.Helper()
	c := &cluster{redis: testredis.Start(t)}
	var peers []string
	for i := range n {
		c.addresses, c.http = append(c.addresses, freeAddress(t)), append(c.http, freeAddress(t))
		peers = append(peers, fmt.Sprintf("coordinator-%d=%s", i+1, c.addresses[i]))
	}
	for i := range n {
		args := append([]string{
			"coordinator", "--node-id", fmt.Sprintf("coordinator-%d", i+1), "--peers", strings.Join(peers, ","),
			"--listen", c.addresses[i], "--http-listen", c.http[i], "--data-dir", filepath.Join(t.TempDir(), "data"),
			"--redis-url", c.redis.URL(), "--relayer-count", "0", "--health-check-interval-ms", "1000",
		}, flags...)
		c.nodes = append(c.nodes, start(t, args...))
	}
	for i, b := range c.nodes {
		b.await(t, "http://"+c.http[i]+"/readyz")
	}
	return c
}

// remote are the flags by which a command reaches the cluster.
func (c *cluster) remote(args ...string) []string {
	return append(args, "--coordinators", strings.Join(c.addresses, ","))
}

// await waits until a URL answers 200.
func (b *background) await(t *testing.T, url string) {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case <-b.done:
			t.Errorf("it ended with %d: %s", b.code, b.log.String())
			return true
		default:
			code, _ := get(url)
			return code == http.StatusOK
		}
	}, 2*time.Minute, 20*time.Millisecond, "%s: %s", url, &b.log)
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}

func get(url string) (code int, body map[string]any) {
	res, err := client.Get(url)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	_ = json.NewDecoder(res.Body).Decode(&body)
	return res.StatusCode, body
}

// serveWell answers every check at an address until the test ends.
func serveWell(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	require.NoError(t, s.Listener.Close())
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
}

// freeAddress is one that nothing listens at now, below the range that connections take their ports from, and between
// the ports of package testproc and those of rollcall-dev.
func freeAddress(t *testing.T) string {
	t.Helper()
	freePort.Lock()
	defer freePort.Unlock()
	for {
		freePort.next++
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", freePort.next))
		if err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
	}
}

var freePort = struct {
	sync.Mutex
	next int
}{next: 15_000 + rand.IntN(5_000)} // not where another run on this machine begins

var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[a-z0-9]{26}`), "CLUSTER"},
	{regexp.MustCompile(`"version": "[^"]*"`), `"version": "VERSION"`},
	{regexp.MustCompile(`(index|epoch|seq)("?[: ]+)\d+`), "${1}${2}N"},
	{regexp.MustCompile(`("(?:term|appliedIndex|version)": )\d+`), "${1}N"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`), "TIME"},
}

// golden compares output with a file, after taking out what differs from run to run.
func golden(t *testing.T, name, got string) {
	t.Helper()
	for _, v := range volatile {
		got = v.pattern.ReplaceAllString(got, v.with)
	}
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// statusOf returns the fleet's status; its zero value while the command fails.
func statusOf(t *testing.T, coordinators string) (f cli.Fleet) {
	t.Helper()
	r := rollcall(t, "status", "-o", "json", coordinators)
	if r.code == 0 {
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &f))
	}
	return f
}
