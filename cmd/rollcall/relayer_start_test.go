package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

const startKey = "0123456789abcdef0123456789abcdef"

// starting is a relayer as a process of its own, from its first log line on.
type starting struct {
	cmd   *exec.Cmd
	out   *lockedBuffer
	ended chan error
	url   string
}

// logLine is what tests look at.
type logLine struct {
	Level, Msg, Err, HTTP, Component, Endpoint string
}

func startRelayer(t *testing.T, env ...string) *starting {
	t.Helper()
	key := signertest.Keys(t, t.Name(), 1)[0]
	cmd, out := program(t, append([]string{
		"RELAYER_LISTEN=127.0.0.1:0", "RELAYER_CHAIN_ID=1337", "RELAYER_API_KEYS=me:" + startKey, "RELAYER_PRIVATE_KEY_0=" + key.Hex(),
		"RELAYER_POLL_INTERVAL=100ms",
	}, env...), "relayer")
	s := &starting{cmd: cmd, out: out, ended: make(chan error, 1)}
	require.NoError(t, cmd.Start())
	go func() { s.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relayer:\n%s", out)
		}
		_ = cmd.Process.Kill()
	})
	require.Eventually(t, func() bool {
		for _, l := range s.lines("listening for HTTP") {
			s.url = "http://" + l.HTTP
		}
		return s.url != ""
	}, 2*time.Minute, time.Millisecond, "%s", out)
	return s
}

// lines are what it has logged with a message; all lines without one.
func (s *starting) lines(msg string) (found []logLine) {
	for line := range strings.Lines(s.out.String()) {
		var l logLine
		if json.Unmarshal([]byte(line), &l) == nil && (msg == "" || l.Msg == msg) {
			found = append(found, l)
		}
	}
	return found
}

// reason is what /health says.
func (s *starting) reason() (code int, reason string) {
	code, body := get(s.url + "/health")
	reason, _ = body["reason"].(string)
	return code, reason
}

func (s *starting) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-s.ended)
	require.NotEmpty(t, s.lines("relayer stopped"))
	require.Empty(t, s.lines("relayer failed"))
}

// forwardConnections serves an address with connections to another one, until the test ends.
func forwardConnections(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				all.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_ = way[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
}

// A relayer without its database has an open port. It reports that there and the cause in its log, and starts when the database answers.
func TestRelayer_DatabaseAway(t *testing.T) {
	t.Parallel()
	database, err := url.Parse(testpostgres.New(t).URL())
	require.NoError(t, err)
	for name, cause := range map[string]string{"refused": "connection refused", "unresolvable": "lookup db.invalid"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain := testchain.Simulated(t, testchain.SimulatedOptions{})
			away := *database
			away.Host = freeAddress(t)
			if name == "unresolvable" {
				away.Host = "db.invalid:5432"
			}
			r := startRelayer(t, "DATABASE_URL="+away.String(), "RELAYER_RPC_URLS="+chain.URL())
			require.Eventually(t, func() bool {
				code, now := r.reason()
				return code == http.StatusServiceUnavailable && now == "starting: database: unreachable"
			}, 2*time.Minute, time.Millisecond)
			// The log comes through a pipe, and may be read after the answer.
			require.Eventually(t, func() bool { return len(r.lines("waiting for the database")) > 0 }, 2*time.Minute, time.Millisecond)
			require.Contains(t, r.lines("waiting for the database")[0].Err, cause)
			for path, want := range map[string]int{"/api/v1/health": 200, "/api/v1/ready": 503, "/api/v1/relayers": 503, "/metrics": 200} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
				require.NoError(t, err)
				req.Header.Set("Authorization", "Bearer "+startKey)
				res, err := client.Do(req)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				require.Equal(t, want, res.StatusCode, path)
			}
			password, _ := database.User.Password()
			require.NotContains(t, r.out.String(), password)
			if name == "refused" {
				forwardConnections(t, away.Host, database.Host)
				require.Eventually(t, func() bool { return len(r.lines("relayer started")) == 1 }, 2*time.Minute, time.Millisecond)
			}
			r.stop(t)
		})
	}
}

// A cause that keeps a relayer from working is logged once a minute, however many of its parts fail because of it.
func TestRelayer_WarnsOncePerCause(t *testing.T) {
	t.Parallel()
	database := func(t *testing.T) string {
		t.Helper()
		return testpostgres.New(t, testpostgres.Migrated(store.Migrations())).URL()
	}
	// requests returns how many calls the relayer has made to the node: each has met the cause.
	requests := func(r *starting) (total float64) {
		res, err := client.Get(r.url + "/metrics")
		require.NoError(t, err)
		defer res.Body.Close()
		content, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			if _, count, found := strings.Cut(line, "} "); found && strings.HasPrefix(line, "rollcall_rpc_requests_total{") {
				n, err := strconv.ParseFloat(strings.TrimSpace(count), 64)
				require.NoError(t, err)
				total += n
			}
		}
		return total
	}
	for name, cause := range map[string]string{"wrong chain": "chain", "unreachable": "connection refused"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := []string{"DATABASE_URL=" + database(t), "RELAYER_RPC_URLS=http://" + freeAddress(t)}
			if name == "wrong chain" {
				env = []string{env[0], "RELAYER_CHAIN_ID=4711", "RELAYER_RPC_URLS=" + testchain.Simulated(t, testchain.SimulatedOptions{}).URL()}
			}
			r := startRelayer(t, env...)
			require.Eventually(t, func() bool { return requests(r) > 10 }, 2*time.Minute, 10*time.Millisecond)
			var all []string
			for _, l := range r.lines("") {
				if l.Level == "WARN" || l.Level == "ERROR" {
					all = append(all, l.Msg+": "+l.Err)
					require.Contains(t, l.Err, cause, "%s", l.Msg)
				}
			}
			require.Len(t, all, 1, "%q", all)
			r.stop(t)
		})
	}
	t.Run("no subscription", func(t *testing.T) {
		t.Parallel()
		var attempts atomic.Int32
		heads := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			attempts.Add(1)
			w.WriteHeader(http.StatusForbidden)
		}))
		t.Cleanup(heads.Close)
		r := startRelayer(t, "DATABASE_URL="+database(t), "RELAYER_RPC_URLS="+testchain.Simulated(t, testchain.SimulatedOptions{}).URL(),
			"RELAYER_SUBSCRIBE_URL=ws"+strings.TrimPrefix(heads.URL, "http"))
		require.Eventually(t, func() bool { return attempts.Load() > 3 }, 2*time.Minute, 10*time.Millisecond)
		require.Len(t, r.lines("subscription to heads ended"), 1)
		r.stop(t)
	})
	t.Run("healthy", func(t *testing.T) {
		t.Parallel()
		chain := testchain.Simulated(t, testchain.SimulatedOptions{})
		chain.Fund(testchain.Ether(1), signertest.Ring(t, t.Name(), 1).Addresses()...)
		r := startRelayer(t, "DATABASE_URL="+database(t), "RELAYER_RPC_URLS="+chain.URL())
		require.Eventually(t, func() bool { code, _ := r.reason(); return code == http.StatusOK }, 2*time.Minute, 10*time.Millisecond)
		for _, l := range r.lines("") {
			require.Equal(t, "INFO", l.Level, "%s: %s", l.Msg, l.Err)
		}
		r.stop(t)
	})
}

// No block for an hour is no fault on a chain that makes blocks on demand.
func TestRelayer_ChainIsQuiet_ReadyAndSends(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	key := signertest.Keys(t, t.Name(), 1)[0].Address
	chain.Fund(testchain.Ether(1), key)
	node, err := proxy.Open(proxy.Config{HTTP: chain.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	node.SetRules(proxy.Rule{Name: "old", Methods: []string{"eth_getBlockByNumber", "eth_getBlockByHash"}, Fault: proxy.Fault{
		Kind: proxy.Change, Alter: func(block json.RawMessage) json.RawMessage {
			var fields map[string]any
			if json.Unmarshal(block, &fields) != nil || fields == nil {
				return block
			}
			fields["timestamp"] = hexutil.Uint64(time.Now().Add(-time.Hour).Unix())
			block, _ = json.Marshal(fields)
			return block
		},
	}})
	r := startRelayer(t, "DATABASE_URL="+testpostgres.New(t).URL(), "RELAYER_RPC_URLS="+node.URL())
	ready := func() bool {
		code, reason := r.reason()
		return code == http.StatusOK && reason == ""
	}
	require.Eventually(t, ready, 2*time.Minute, 20*time.Millisecond, "%s", r.out)
	_, body := get(r.url + "/api/v1/ready")
	require.Contains(t, fmt.Sprint(body["components"]), "is 1h0m")

	call := func(method, path, body string) (answer struct{ Data struct{ ID, Status string } }) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.url+"/api/v1/relayers/pool/transactions"+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+startKey)
		req.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		require.Equal(t, 2, response.StatusCode/100, "%s", r.out)
		require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
		return answer
	}
	tx := call(http.MethodPost, "", `{"to":"`+lower(chain.Accounts[0].Address)+`","value":1}`).Data
	reaches := func(status string) {
		t.Helper()
		require.Eventually(t, func() bool { return call(http.MethodGet, "/"+tx.ID, "").Data.Status == status }, 2*time.Minute, 20*time.Millisecond, "%s", r.out)
	}
	reaches("submitted")
	chain.Commit()
	reaches("mined")
	require.True(t, ready(), "%s", r.out)
	r.stop(t)
}
