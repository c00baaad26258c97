package status

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// The report must have the contract's fields, by name, order and form; other fields are extensions.
func TestReport_AllFields_HaveNameOrderAndForm(t *testing.T) {
	t.Parallel()
	a := answer(relayer(0, up, true), relayer(1, down, false), relayer(2, rollcallv1.Verdict_VERDICT_UNKNOWN, true),
		&rollcallv1.ServiceStatus{Id: "signer-1", Kind: "signer", Verdict: up, Active: true})
	a.Services[1].Failures, a.Services[1].Reason = 4, "status 500: \"no\n"
	a.Services[2].LastCheck = nil
	a.Stalls = []*rollcallv1.Stall{{Kind: "signer", Needed: 2, Available: 1}}
	a.Notes = []string{"coordinator-3 was started with RELAYER_COUNT=5, the leader with 3"}
	a.Mirror.Held = 1
	r := newReport(Config{Node: "coordinator-1", Version: "v1.2.3", Interval: time.Second}, a, 0, 0, nil)
	r.Timestamp = "2026-11-20T09:00:01.123Z"
	require.Equal(t, `{"service":"relayer-discovery","status":"degraded","timestamp":"2026-11-20T09:00:01.123Z",`+
		`"activeRelayers":[`+
		`{"id":"oz-relayer-0","status":"healthy","lastCheckTimestamp":"2026-11-20T09:00:00.123Z","url":"http://oz-relayer-0:3000"},`+
		`{"id":"oz-relayer-2","status":"unknown","lastCheckTimestamp":null,"url":"http://oz-relayer-2:3000"}],`+
		`"totalConfigured":3,"totalActive":2,"healthCheckInterval":10000,`+
		`"node":"coordinator-1","version":"v1.2.3","cluster":"c1","epoch":7,"leader":"coordinator-2","ageMs":0,"director":"running",`+
		`"stalls":[{"kind":"signer","needed":2,"available":1}],`+
		`"mirror":{"connected":true,"seq":9,"lastWrite":"2026-11-20T09:00:00.123Z","error":"","heldRemovals":1},`+
		`"inactiveRelayers":[`+
		`{"id":"oz-relayer-1","status":"unhealthy","lastCheckTimestamp":"2026-11-20T09:00:00.123Z","url":"http://oz-relayer-1:3000","failures":4,"reason":"status 500: \"no\n"}],`+
		`"otherKinds":[{"kind":"signer","totalConfigured":1,"totalActive":1}],`+
		`"notes":["coordinator-3 was started with RELAYER_COUNT=5, the leader with 3"]}`+"\n",
		string(r.page().body))

	// Lists without elements must be lists, and texts must stay as they are.
	r = newReport(Config{Version: "<v1>&"}, &rollcallv1.GetStatusResponse{Mirror: &rollcallv1.MirrorStatus{Connected: true}}, 0, 1500*time.Millisecond, nil)
	r.Timestamp = ""
	require.Equal(t, `{"service":"relayer-discovery","status":"healthy","timestamp":"","activeRelayers":[],`+
		`"totalConfigured":0,"totalActive":0,"healthCheckInterval":0,`+
		`"node":"","version":"<v1>&","cluster":"","epoch":0,"leader":"","ageMs":1500,"director":"unknown","stalls":[],`+
		`"mirror":{"connected":true,"seq":0,"lastWrite":null,"error":"","heldRemovals":0},`+
		`"inactiveRelayers":[],"otherKinds":[],"notes":["no relayers are configured"]}`+"\n", string(r.page().body))
}

// says returns a leader with one answer.
func says(a *rollcallv1.GetStatusResponse) func(context.Context) (*rollcallv1.GetStatusResponse, error) {
	return func(context.Context) (*rollcallv1.GetStatusResponse, error) { return a, nil }
}

func TestStatus_FleetAndMirror_DecideTheVerdict(t *testing.T) {
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
		"not checked yet":         {answer: fresh, want: "degraded", code: 200, note: "redis is not kept up to date: connection refused"},
		"not listed, nor checked": {answer: unlisted, want: "unhealthy", code: 503},
		"none active":             {answer: answer(relayer(0, down, false)), want: "unhealthy", code: 503},
		"none and redis away":     {answer: gone, want: "unhealthy", code: 503},
		"none configured":         {answer: answer(), want: "healthy", code: 200, note: "no relayers are configured"},
		"other kinds only":        {answer: answer(&rollcallv1.ServiceStatus{Kind: "signer"}), want: "healthy", code: 200, note: "no relayers are configured"},
		"no leader":               {leaderless: errors.New("no quorum"), want: "unhealthy", code: 503, note: "no leader answers: no quorum"},
		"the leader has no work":  {answer: &rollcallv1.GetStatusResponse{}, want: "degraded", code: 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, Config{}, Cluster{Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) {
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

// Without a leader the node's own replica must provide the number of relayers.
func TestStatus_NoLeader_CountsFromTheOwnReplica(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{Interval: 4 * time.Second}, Cluster{
		Status: func(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
			<-ctx.Done() // a leader that does not respond
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

// bare returns a server without a socket, in a bubble.
func bare(t *testing.T, led bool, ask func(context.Context) (*rollcallv1.GetStatusResponse, error)) *Server {
	s := newServer(Config{Logger: slog.New(slog.DiscardHandler)})
	s.Start(Cluster{Directory: fsm.New(), Status: ask, Led: func() bool { return led }})
	source := s.started.Load().source
	t.Cleanup(func() {
		source.close()
		source.running.Wait()
	})
	return s
}

// page returns the response of /status, and its duration.
func (s *Server) page() (code int, body string, took time.Duration) {
	began := time.Now()
	w := httptest.NewRecorder()
	s.status(w, httptest.NewRequest("GET", "/status", nil))
	return w.Code, w.Body.String(), time.Since(began)
}

func TestStatus_ConcurrentReaders_ShareOneRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		release := make(chan struct{})
		s := bare(t, true, func(context.Context) (*rollcallv1.GetStatusResponse, error) {
			asked.Add(1)
			<-release
			return answer(relayer(0, up, true)), nil
		})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				code, body, _ := s.page()
				assert.Equal(t, 200, code)
				assert.Contains(t, body, `"totalActive":1`)
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		require.EqualValues(t, 1, asked.Load())
		code, _, _ := s.page()
		require.Equal(t, 200, code)
		require.EqualValues(t, 2, asked.Load(), "the stored answer is requested again")
	})
}

// A slow or silent leader must not cause a refusal while it is the known leader: its last answer must be returned with
// its age.
func TestStatus_LeaderSlow_ReturnsTheLastAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Int64
		s := bare(t, true, func(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
			select {
			case <-time.After(time.Duration(takes.Load())):
				return answer(relayer(0, up, true)), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		takes.Store(int64(600 * time.Millisecond))
		code, body, took := s.page()
		require.Equal(t, 503, code, "there is no answer yet")
		require.Contains(t, body, "no leader answers: nothing came within 80ms")
		require.Equal(t, budget, took, "no more than ever")
		takes.Store(int64(200 * time.Millisecond))
		<-time.After(600 * time.Millisecond)
		code, body, took = s.page()
		require.Equal(t, 200, code)
		require.Contains(t, body, `"ageMs":760,`, "the abandoned query was answered")
		require.Equal(t, budget, took)
		<-time.After(200 * time.Millisecond)
		code, body, took = s.page()
		require.Equal(t, 200, code)
		require.Contains(t, body, `"status":"healthy"`)
		require.Contains(t, body, `"ageMs":290,`)
		require.Equal(t, patience, took, "that is recent enough")
		for range 20 { // a continuous reader
			<-time.After(100 * time.Millisecond)
			code, _, took = s.page()
			require.Equal(t, 200, code)
			require.Equal(t, patience, took)
		}

		takes.Store(int64(time.Hour))
		<-time.After(time.Second)
		code, body, took = s.page()
		require.Equal(t, 200, code)
		require.Contains(t, body, `"status":"healthy"`)
		require.Equal(t, budget, took, "worth waiting for a newer one")
		<-time.After(10 * time.Second)
		code, body, _ = s.page()
		require.Equal(t, 200, code)
		require.Contains(t, body, `"status":"degraded"`)
		require.Regexp(t, `"ageMs":1\d{4},`, body)
		require.Contains(t, body, "the leader does not answer: this is its report of 11s ago")

		takes.Store(0)
		<-time.After(questionLimit)
		code, body, took = s.page()
		require.Equal(t, 200, code)
		require.Contains(t, body, `"ageMs":0,`)
		require.Zero(t, took)
	})
}

// A slow reader must get one consistent answer, even if new answers arrive meanwhile.
func TestStatus_SlowReader_GetsOneConsistentAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked int
		s := bare(t, true, func(context.Context) (*rollcallv1.GetStatusResponse, error) {
			asked++
			if asked == 3 {
				return nil, errors.New("garbled")
			}
			return answer(relayer(asked, up, true), relayer(10+asked, down, false)), nil
		})
		slow, err := s.started.Load().source.latest()
		require.NoError(t, err)
		before := string(slow.body)
		require.Contains(t, before, `"oz-relayer-1"`)
		for range 5 {
			_, body, _ := s.page()
			require.NotContains(t, body, `"oz-relayer-1"`)
			require.Equal(t, before, string(slow.body))
		}
		_, body, _ := s.page()
		require.Contains(t, body, `"oz-relayer-7"`)
		require.Contains(t, body, `"oz-relayer-17"`)
		require.NotContains(t, body, `"oz-relayer-6"`)
	})
}

// Without a leader, no leader's earlier answer may be used.
func TestStatus_LeaderLost_DropsTheLastAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		s := bare(t, false, func(context.Context) (*rollcallv1.GetStatusResponse, error) {
			if gone.Load() {
				return nil, errors.New("no leader")
			}
			return answer(relayer(0, up, true)), nil
		})
		code, _, _ := s.page()
		require.Equal(t, 200, code)
		gone.Store(true)
		code, body, took := s.page()
		require.Equal(t, 503, code)
		require.Contains(t, body, "no leader answers: no leader")
		require.Zero(t, took)
	})
}

func TestServer_HealthReadinessAndMetrics_AreServed(t *testing.T) {
	t.Parallel()
	var notReady atomic.Bool
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "rollcall_things_total 3") })
	s := serve(t, Config{Metrics: metrics}, Cluster{Ready: func() error {
		if notReady.Load() {
			return errors.New("catching up")
		}
		return nil
	}})

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

// A coordinator whose node is not open yet answers, and is neither alive nor ready for others.
func TestServer_BeforeStart_ReportsTheStage(t *testing.T) {
	t.Parallel()
	var starting atomic.Value
	starting.Store("starting")
	s, err := Open(t.Context(), Config{
		Listen: "127.0.0.1:0", Node: "node-1", Starting: func() string { return starting.Load().(string) },
		Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	reports := func(want string) {
		t.Helper()
		for _, path := range []string{"/healthz", "/readyz"} {
			code, body := get(t, s, path)
			require.Equal(t, 503, code, path)
			require.Equal(t, "not ready: "+want+"\n", string(body), path)
		}
		code, body := get(t, s, "/status")
		require.Equal(t, 503, code)
		var got struct {
			Service, Status, Node string
			Notes                 []string
		}
		require.NoError(t, json.Unmarshal(body, &got))
		require.Equal(t, "relayer-discovery unhealthy node-1", got.Service+" "+got.Status+" "+got.Node)
		require.Equal(t, []string{want}, got.Notes)
	}
	reports("the coordinator is starting")
	starting.Store("starting: disk: locked")
	reports("the coordinator is starting: disk: locked")
	code, _ := get(t, s, "/metrics")
	require.Equal(t, 200, code)
	s.Start(Cluster{
		Directory: fsm.New(), Status: says(answer(relayer(0, up, true))), Led: func() bool { return true }, Ready: func() error { return nil },
	})
	s.started.Load().source.budget = time.Minute
	for _, path := range []string{"/healthz", "/readyz", "/status"} {
		code, _ := get(t, s, path)
		require.Equal(t, 200, code, path)
	}
	cancel()
	require.NoError(t, <-stopped)
	require.NoError(t, s.Close())
}

// A coordinator that cannot start closes a server that was never started.
func TestClose_BeforeStart_ClosesThePort(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	again, err := Open(t.Context(), Config{Listen: s.Addr().String()})
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestServer_BadRequests_AreRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{}, Cluster{})
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

func TestServer_SlowHeaders_ClosesTheConnection(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{}, Cluster{})
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

func TestShutdown_RequestRunning_IsFinished(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	s, stopped := start(ctx, t, Config{}, Cluster{Status: func(context.Context) (*rollcallv1.GetStatusResponse, error) {
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

func TestOpen_AddressInUse_Fails(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{}, Cluster{})
	_, err := Open(t.Context(), Config{Listen: s.Addr().String()})
	require.ErrorContains(t, err, "listen for HTTP at 127.0.0.1:")
}

// A fleet of ten thousand must be written completely, as valid JSON.
func TestStatus_LargeFleet_IsWrittenCompletely(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{}, Cluster{Status: says(many(10_000))})
	code, body := get(t, s, "/status")
	require.Equal(t, http.StatusOK, code)
	var got struct {
		ActiveRelayers []struct{ ID string }
		TotalActive    int
	}
	require.NoError(t, json.Unmarshal(body, &got))
	require.Len(t, got.ActiveRelayers, 10_000)
	require.Equal(t, 10_000, got.TotalActive)
}

// many returns a fleet of n relayers.
func many(n int) *rollcallv1.GetStatusResponse {
	services := make([]*rollcallv1.ServiceStatus, n)
	for i := range services {
		services[i] = relayer(i, up, true)
	}
	return answer(services...)
}

func serve(t *testing.T, cfg Config, node Cluster) *Server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, stopped := start(ctx, t, cfg, node)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-stopped)
		require.NoError(t, s.Close())
	})
	return s
}

func start(ctx context.Context, t *testing.T, cfg Config, node Cluster) (*Server, <-chan error) {
	t.Helper()
	cfg.Node, cfg.Listen, node.Directory = "node-1", "127.0.0.1:0", fsm.New()
	if node.Status == nil {
		node.Status = says(answer())
	}
	if node.Led == nil {
		node.Led = func() bool { return true }
	}
	s, err := Open(ctx, cfg)
	require.NoError(t, err)
	s.Start(node)
	s.started.Load().source.budget = time.Minute // a busy machine may need longer than the product waits
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
