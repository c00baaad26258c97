package status

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	up   = rollcallv1.Verdict_VERDICT_UP
	down = rollcallv1.Verdict_VERDICT_DOWN
)

var checked = time.Date(2026, 11, 20, 10, 0, 0, 123_456_789, time.FixedZone("", 3600))

func relayer(n int, v rollcallv1.Verdict, active bool) *rollcallv1.ServiceStatus {
	return &rollcallv1.ServiceStatus{
		Id: fmt.Sprintf("oz-relayer-%d", n), Kind: "relayer", Url: fmt.Sprintf("http://oz-relayer-%d:3000", n),
		Verdict: v, Active: active, LastCheck: timestamppb.New(checked),
	}
}

func answer(services ...*rollcallv1.ServiceStatus) *rollcallv1.GetStatusResponse {
	return &rollcallv1.GetStatusResponse{
		Cluster: "c1", Epoch: 7, Leader: "coordinator-2",
		Director: rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING,
		Mirror:   &rollcallv1.MirrorStatus{Connected: true, Seq: 9, LastWrite: timestamppb.New(checked)},
		Interval: durationpb.New(10 * time.Second),
		Services: services,
	}
}

// The contract's fields, by name, order and form; what stands beside them is ours.
func TestReport(t *testing.T) {
	t.Parallel()
	a := answer(relayer(0, up, true), relayer(1, down, false), relayer(2, rollcallv1.Verdict_VERDICT_UNKNOWN, true),
		&rollcallv1.ServiceStatus{Id: "signer-1", Kind: "signer", Verdict: up, Active: true})
	a.Services[1].Failures, a.Services[1].Reason = 4, "status 500: \"no\n"
	a.Services[2].LastCheck = nil
	a.Stalls = []*rollcallv1.Stall{{Kind: "signer", Needed: 2, Available: 1}}
	a.Notes = []string{"coordinator-3 was started with RELAYER_COUNT=5, the leader with 3"}
	a.Mirror.Held = 1
	r := report{node: "coordinator-1", version: "v1.2.3", at: checked.Add(time.Second), interval: time.Second}
	r.fill(a)
	require.Equal(t, `{"service":"relayer-discovery","status":"degraded","timestamp":"2026-11-20T09:00:01.123Z",`+
		`"activeRelayers":[`+
		`{"id":"oz-relayer-0","status":"healthy","lastCheckTimestamp":"2026-11-20T09:00:00.123Z","url":"http://oz-relayer-0:3000"},`+
		`{"id":"oz-relayer-2","status":"unknown","lastCheckTimestamp":null,"url":"http://oz-relayer-2:3000"}],`+
		`"totalConfigured":3,"totalActive":2,"healthCheckInterval":10000,`+
		`"node":"coordinator-1","version":"v1.2.3","cluster":"c1","epoch":7,"leader":"coordinator-2","director":"running",`+
		`"stalls":[{"kind":"signer","needed":2,"available":1}],`+
		`"mirror":{"connected":true,"seq":9,"lastWrite":"2026-11-20T09:00:00.123Z","error":"","heldRemovals":1},`+
		`"inactiveRelayers":[`+
		`{"id":"oz-relayer-1","status":"unhealthy","lastCheckTimestamp":"2026-11-20T09:00:00.123Z","url":"http://oz-relayer-1:3000","failures":4,"reason":"status 500: \"no\n"}],`+
		`"otherKinds":[{"kind":"signer","totalConfigured":1,"totalActive":1}],`+
		`"notes":["coordinator-3 was started with RELAYER_COUNT=5, the leader with 3"]}`+"\n",
		string(r.append(nil)))
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	away := answer(relayer(0, up, true))
	away.Mirror.Connected = false
	gone := answer(relayer(0, up, false))
	gone.Mirror = nil
	fresh := answer(relayer(0, down, false), relayer(1, rollcallv1.Verdict_VERDICT_UNKNOWN, false))
	fresh.Mirror = &rollcallv1.MirrorStatus{Error: "connection refused"}
	unlisted := answer(relayer(1, rollcallv1.Verdict_VERDICT_UNKNOWN, false))
	for name, c := range map[string]struct {
		answer     *rollcallv1.GetStatusResponse
		leaderless error
		want       string
		code       int
		note       string
	}{
		"all active":              {answer: answer(relayer(0, up, true)), want: "healthy", code: 200},
		"some active":             {answer: answer(relayer(0, up, true), relayer(1, down, false)), want: "degraded", code: 200},
		"redis away":              {answer: away, want: "degraded", code: 200, note: "redis is not kept up to date: not reached yet"},
		"nobody looked yet":       {answer: fresh, want: "degraded", code: 200, note: "redis is not kept up to date: connection refused"},
		"not listed, nor checked": {answer: unlisted, want: "unhealthy", code: 503},
		"none active":             {answer: answer(relayer(0, down, false)), want: "unhealthy", code: 503},
		"none and redis away":     {answer: gone, want: "unhealthy", code: 503},
		"none configured":         {answer: answer(), want: "healthy", code: 200, note: "no relayers are configured"},
		"other kinds only":        {answer: answer(&rollcallv1.ServiceStatus{Kind: "signer"}), want: "healthy", code: 200, note: "no relayers are configured"},
		"nobody leads":            {leaderless: errors.New("no quorum"), want: "unhealthy", code: 503, note: "no leader answers: no quorum"},
		"the leader has no work":  {answer: &rollcallv1.GetStatusResponse{}, want: "degraded", code: 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, Config{Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) {
				return c.answer, c.leaderless
			}})
			code, body := get(t, s, "/status")
			require.Equal(t, c.code, code)
			var got struct {
				Service, Status string
				Notes           []string
			}
			require.NoError(t, json.Unmarshal(body, &got))
			require.Equal(t, "relayer-discovery", got.Service)
			require.Equal(t, c.want, got.Status)
			if c.note != "" {
				require.Contains(t, got.Notes, c.note)
			}
		})
	}
}

// Without a leader the node's own copy says how many relayers there should be.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{
		Interval: 4 * time.Second,
		Status: func(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
			<-ctx.Done() // a leader that does not answer
			return nil, ctx.Err()
		},
	})
	code, body := get(t, s, "/status")
	require.Equal(t, http.StatusServiceUnavailable, code)
	var got map[string]any
	require.NoError(t, json.Unmarshal(body, &got))
	require.Equal(t, []any{}, got["activeRelayers"])
	require.EqualValues(t, 0, got["totalConfigured"])
	require.EqualValues(t, 4000, got["healthCheckInterval"])
	require.Equal(t, "node-1", got["node"])
}

func TestConcurrentReadersShareARendering(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, release := 0, make(chan struct{})
		s := &Server{cfg: Config{Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) {
			asked++
			<-release
			return answer(relayer(0, up, true)), nil
		}}}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				w := httptest.NewRecorder()
				s.status(w, httptest.NewRequest("GET", "/status", nil))
				assert.Equal(t, 200, w.Code)
				assert.Contains(t, w.Body.String(), `"totalActive":1`)
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		require.Equal(t, 1, asked)
		w := httptest.NewRecorder()
		s.status(w, httptest.NewRequest("GET", "/status", nil))
		require.Equal(t, 2, asked, "what was rendered is not kept")
	})
}

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	var notReady atomic.Bool
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "rollcall_things_total", Help: "x"})
	reg.MustRegister(c)
	c.Add(3)
	s := serve(t, Config{Ready: func() error {
		if notReady.Load() {
			return errors.New("catching up")
		}
		return nil
	}, Gatherer: reg})

	code, body := get(t, s, "/readyz")
	require.Equal(t, 200, code)
	require.Equal(t, "ok\n", string(body))
	notReady.Store(true)
	code, body = get(t, s, "/readyz")
	require.Equal(t, 503, code)
	require.Equal(t, "not ready: catching up\n", string(body))
	code, _ = get(t, s, "/healthz")
	require.Equal(t, 200, code, "alive although not ready")
	code, body = get(t, s, "/metrics")
	require.Equal(t, 200, code)
	require.Contains(t, string(body), "rollcall_things_total 3")
	code, body = get(t, s, "/")
	require.Equal(t, 200, code)
	require.Contains(t, string(body), "node-1: /status")
	code, _ = get(t, s, "/nothing")
	require.Equal(t, 404, code)
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	for name, c := range map[string]struct{ request, want string }{
		"method":       {"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "405 Method Not Allowed"},
		"body":         {"GET /status HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\nxxxx", "413 Request Entity Too Large"},
		"chunked body": {"GET /status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nxxxxx\r\n", "413 Request Entity Too Large"},
		"headers":      {"GET /status HTTP/1.1\r\nHost: x\r\nX-Y: " + strings.Repeat("y", 1<<20) + "\r\n\r\n", "431 Request Header Fields Too Large"},
		"nonsense":     {"\x16\x03\x01\r\n\r\n", "400 Bad Request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", s.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			go func() { _, _ = io.WriteString(conn, c.request) }()
			line, err := bufio.NewReader(conn).ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, c.want)
		})
	}
}

func TestSlowLoris(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	conn, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: ")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err, "the server hangs up, the client does not time out")
	code, _ := get(t, s, "/healthz")
	require.Equal(t, 200, code)
}

func TestShutdownFinishesWhatIsRunning(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	s, stopped := start(ctx, t, Config{Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) {
		close(entered)
		<-release
		return answer(), nil
	}})
	result := make(chan int, 1)
	go func() {
		code, _ := get(t, s, "/status")
		result <- code
	}()
	<-entered
	cancel()
	close(release)
	require.Equal(t, 200, <-result)
	require.NoError(t, <-stopped)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	_, err := Open(t.Context(), Config{Listen: s.Addr().String()})
	require.ErrorContains(t, err, "listen for HTTP at 127.0.0.1:")
}

func BenchmarkReport(b *testing.B) {
	a := fleet(10_000)
	b.ReportAllocs()
	for b.Loop() {
		r := report{node: "coordinator-1", at: checked}
		r.fill(a)
		r.append(nil)
	}
}

// A fleet of ten thousand is written as valid JSON, whole.
func TestLargeFleet(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) { return fleet(10_000), nil }})
	code, body := get(t, s, "/status")
	require.Equal(t, 200, code)
	var got struct {
		ActiveRelayers []struct{ ID string }
		TotalActive    int
	}
	require.NoError(t, json.Unmarshal(body, &got))
	require.Len(t, got.ActiveRelayers, 10_000)
	require.Equal(t, 10_000, got.TotalActive)
}

func fleet(n int) *rollcallv1.GetStatusResponse {
	services := make([]*rollcallv1.ServiceStatus, n)
	for i := range services {
		services[i] = relayer(i, up, true)
	}
	return answer(services...)
}

func serve(t *testing.T, cfg Config) *Server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, stopped := start(ctx, t, cfg)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-stopped)
		require.NoError(t, s.Close())
	})
	return s
}

func start(ctx context.Context, t *testing.T, cfg Config) (*Server, <-chan error) {
	t.Helper()
	cfg.Node, cfg.Listen, cfg.Directory = "node-1", "127.0.0.1:0", fsm.New()
	if cfg.Status == nil {
		cfg.Status = func(context.Context) (*rollcallv1.GetStatusResponse, error) { return answer(), nil }
	}
	s, err := Open(ctx, cfg)
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	return s, stopped
}

func get(t *testing.T, s *Server, path string) (int, []byte) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + s.Addr().String() + path)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, body
}
