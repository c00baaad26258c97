package foreman

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// serve runs a server with a running foreman, and returns its base URL.
func serve(t *testing.T, cfg ServerConfig, parts Parts) (*working, string) {
	t.Helper()
	f := start(t, Config{StartupWait: -1})
	parts.Foreman = f.Foreman
	cfg.Listen = "127.0.0.1:0"
	s, err := Open(cfg)
	require.NoError(t, err)
	s.Start(parts)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return f, "http://" + s.Addr().String()
}

type answer struct {
	code   int
	header http.Header
	body   map[string]any
	text   string
}

func request(t *testing.T, method, url, contentType, body string, change ...func(*http.Request)) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Close = true
	for _, c := range change {
		c(req)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	a := answer{code: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.Unmarshal(text, &a.body)
	return a
}

func TestServer_PostServices_AdvertisesThem(t *testing.T) {
	t.Parallel()
	f, url := serve(t, ServerConfig{}, Parts{})
	one := `{"id":"a","kind":"relayer","worker_ref":{"url":"http://a:1"}}`
	a := request(t, "POST", url+"/v1/services", "application/json", one)
	require.Equal(t, http.StatusAccepted, a.code)
	require.JSONEq(t, `{"services":[{"id":"a","kind":"relayer","worker_ref":{"url":"http://a:1"},"state":"offered","checks":0}]}`, a.text)
	require.Equal(t, http.StatusAccepted, request(t, "POST", url+"/v1/services", "application/yaml; charset=utf-8", define("b", "c")).code)
	require.Equal(t, http.StatusAccepted, request(t, "POST", url+"/v1/services", "application/json", "["+one+"]").code, "again, as it was")
	f.becomes("a,b,c")

	a = request(t, "GET", url+"/v1/services", "", "")
	require.Equal(t, http.StatusOK, a.code)
	require.Len(t, a.body["services"], 3)
	require.Equal(t, true, a.body["complete"])
	require.Equal(t, http.StatusOK, request(t, "GET", url+"/v1/services/b", "", "").code)
	require.Equal(t, http.StatusNotFound, request(t, "GET", url+"/v1/services/d", "", "").code)

	a = request(t, "DELETE", url+"/v1/services/a", "", "")
	require.Equal(t, http.StatusOK, a.code)
	require.JSONEq(t, `{"removed":1}`, a.text)
	require.JSONEq(t, `{"removed":0}`, request(t, "DELETE", url+"/v1/services/a", "", "").text)
	require.JSONEq(t, `{"removed":2}`, request(t, "DELETE", url+"/v1/services?id=b&id=c&id=d", "", "").text)
	f.becomes(" ?")
}

func TestServer_InvalidRequests_AreRefused(t *testing.T) {
	t.Parallel()
	f, url := serve(t, ServerConfig{Hosts: []string{"gateway.internal"}}, Parts{})
	require.NoError(t, f.Advertise(some("kept")))
	const asJSON = "application/json"
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	header := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	for name, c := range map[string]struct {
		method, path, contentType, body string
		change                          func(*http.Request)
		code                            int
		what                            string
	}{
		"no content type":      {"POST", "/v1/services", "", "{}", nil, 415, `content type ""`},
		"a form":               {"POST", "/v1/services", "text/plain", "{}", nil, 415, `content type "text/plain"`},
		"malformed":            {"POST", "/v1/services", asJSON, "{", nil, 400, "malformed JSON"},
		"nothing":              {"POST", "/v1/services", asJSON, "", nil, 400, "empty document"},
		"no services":          {"POST", "/v1/services", asJSON, "[]", nil, 400, "no service in the document"},
		"invalid":              {"POST", "/v1/services", asJSON, `{"id":"A"}`, nil, 400, "invalid services"},
		"10 MB":                {"POST", "/v1/services", asJSON, strings.Repeat(" ", 10<<20), nil, 413, "body too large"},
		"2 MB of YAML":         {"POST", "/v1/services", "application/yaml", strings.Repeat(" ", 2<<20), nil, 413, "body too large"},
		"2 MB of JSON":         {"POST", "/v1/services", asJSON, strings.Repeat(" ", 2<<20), nil, 400, "empty document"},
		"too many":             {"POST", "/v1/services", asJSON, numbered(10_000), nil, 409, "more than 10000 services on this host"},
		"delete of nothing":    {"DELETE", "/v1/services", "", "", nil, 400, "no id"},
		"delete of a bad id":   {"DELETE", "/v1/services?id=kept&id=A", "", "", nil, 400, `id "A" is not a DNS label`},
		"method":               {"PUT", "/v1/services", asJSON, "{}", nil, 405, `method "PUT"`},
		"method on one":        {"POST", "/v1/services/kept", asJSON, "{}", nil, 405, `method "POST"`},
		"path":                 {"GET", "/v2/services", "", "", nil, 404, "no such page"},
		"rebound name":         {"POST", "/v1/services", asJSON, "{}", host("evil.example:7401"), 403, `unknown host "evil.example:7401"`},
		"rebound name, a read": {"GET", "/v1/services", "", "", host("evil.example"), 403, "unknown host"},
		"from a web page":      {"POST", "/v1/services", asJSON, "{}", header("Sec-Fetch-Site", "cross-site"), 403, "cross-origin"},
		"from another origin":  {"DELETE", "/v1/services/kept", "", "", header("Origin", "https://evil.example"), 403, "cross-origin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change := c.change
			if change == nil {
				change = host("localhost:1")
			}
			a := request(t, c.method, url+c.path, c.contentType, c.body, change)
			require.Equal(t, c.code, a.code, a.text)
			e, ok := a.body["error"].(map[string]any)
			require.True(t, ok, a.text)
			require.Contains(t, e["what"], c.what)
			require.NotEmpty(t, e["how"])
			require.NotNil(t, e["where"])
			require.Equal(t, "application/json", a.header.Get("Content-Type"))
			require.Equal(t, "kept", describe(f.set()))
		})
	}
	for _, h := range []string{"LOCALHOST", "127.0.0.1:7401", "[::1]:7401", "127.8.8.8", "Gateway.internal:80"} {
		require.Equal(t, http.StatusOK, request(t, "GET", url+"/v1/services", "", "", host(h)).code, h)
	}
}

func numbered(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"id":"s-%d","kind":"relayer","worker_ref":{"url":"http://s:1"}}`, i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func TestServer_DeleteServiceOfFile_IsConflict(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, folder, "a.yaml", define("a"))
	f := start(t, Config{Folder: folder, StartupWait: -1})
	f.becomes("a")
	s, err := Open(ServerConfig{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	s.Start(Parts{Foreman: f.Foreman})
	defer s.Close()
	w := recorder{header: http.Header{}}
	r, err := http.NewRequestWithContext(t.Context(), "DELETE", "http://localhost/v1/services/a", nil)
	require.NoError(t, err)
	s.http.Handler.ServeHTTP(&w, r)
	require.Equal(t, http.StatusConflict, w.code)
	require.Contains(t, w.String(), `"where":"a.yaml"`)
}

type recorder struct {
	bytes.Buffer
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header  { return r.header }
func (r *recorder) WriteHeader(code int) { r.code = code }

func TestServer_GetServices_IncludesGatewayStatus(t *testing.T) {
	t.Parallel()
	g := gateway.Status{
		ID: "edge-1", Leader: gateway.Leader{Node: "n1", Epoch: 3}, Registered: 1, LastWrite: time.Unix(0, 0),
		Refused: []gateway.Refusal{{ID: "b", Reason: "owned by gateway/edge-2"}}, Err: errors.New("oh\nno"),
	}
	f, url := serve(t, ServerConfig{}, Parts{Gateway: func() gateway.Status { return g }})
	require.NoError(t, f.Advertise(some("a", "b")))
	a := request(t, "GET", url+"/v1/services", "", "")
	require.Equal(t, map[string]any{
		"id": "edge-1", "leader": "n1", "epoch": 3.0, "synced": false, "registered": 1.0, "last_write": "1970-01-01T00:00:00Z", "error": "oh; no",
	}, a.body["gateway"])
	require.Equal(t, "owned by gateway/edge-2", request(t, "GET", url+"/v1/services/b", "", "").body["refused"])
	require.Nil(t, request(t, "GET", url+"/v1/services/a", "", "").body["refused"])
}

func TestServer_ProbesAndMetrics_AcceptAnyHost(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	var notReady error
	_, url := serve(t, ServerConfig{Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}, Parts{Ready: func() error { return notReady }})
	named := func(r *http.Request) { r.Host = "gateway-1.monitoring" } // a probe may use any host name
	require.Equal(t, http.StatusOK, request(t, "GET", url+"/healthz", "", "", named).code)
	require.Equal(t, http.StatusOK, request(t, "GET", url+"/readyz", "", "", named).code)
	require.Equal(t, http.StatusOK, request(t, "GET", url+"/metrics", "", "", named).code)
	notReady = errors.New("no leader")
	a := request(t, "GET", url+"/readyz", "", "", named)
	require.Equal(t, http.StatusServiceUnavailable, a.code)
	require.Contains(t, a.text, "not ready: no leader")
}

func TestServer_SlowClients_DoNotBlockOthers(t *testing.T) {
	t.Parallel()
	_, url := serve(t, ServerConfig{}, Parts{})
	address := strings.TrimPrefix(url, "http://")
	var slow []net.Conn
	for range 50 {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte("POST /v1/services HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
		require.NoError(t, err)
		slow = append(slow, conn)
	}
	require.Equal(t, http.StatusOK, request(t, "GET", url+"/v1/services", "", "").code)
	for _, conn := range slow { // and they are closed
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadAll(conn)
		require.NoError(t, err)
	}
}

// A local process that leaks connections must not use up the gateway's file descriptors.
func TestServer_TooManyConnections_ReplaceTheOldestIdleOne(t *testing.T) {
	t.Parallel()
	f := start(t, Config{StartupWait: -1})
	s, err := Open(ServerConfig{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	s.Start(Parts{Foreman: f.Foreman})
	s.http.ReadHeaderTimeout, s.http.ReadTimeout = time.Hour, time.Hour // so that only the limit closes connections
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	var conns []net.Conn
	for range maxConnections + 1 {
		conn, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		conns = append(conns, conn)
	}
	require.NoError(t, conns[0].SetReadDeadline(time.Now().Add(2*time.Minute)))
	_, err = conns[0].Read(make([]byte, 1))
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Error(t, err)
	require.Equal(t, http.StatusOK, request(t, "GET", "http://"+s.Addr().String()+"/v1/services", "", "").code)
}

// The tree of a body takes many times its memory.
func TestServer_ManyBodies_AreDecodedOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Config{})
		require.NoError(t, err)
		s := &Server{log: slog.New(slog.DiscardHandler), decoding: make(chan struct{}, 1)}
		s.Start(Parts{Foreman: f})
		handler := s.routes()
		s.decoding <- struct{}{} // as if a body were decoded
		w := &recorder{header: http.Header{}}
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://localhost/v1/services", strings.NewReader(define("a")))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/yaml")
		served := make(chan struct{})
		go func() {
			defer close(served)
			handler.ServeHTTP(w, r)
		}()
		synctest.Wait()
		require.Zero(t, w.code, "it waits")
		<-s.decoding
		<-served
		require.Equal(t, http.StatusAccepted, w.code)
		require.Empty(t, s.decoding)
	})
}

func TestServer_SlowBody_TimesOut(t *testing.T) {
	t.Parallel()
	f := start(t, Config{StartupWait: -1})
	s, err := Open(ServerConfig{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	s.Start(Parts{Foreman: f.Foreman})
	s.http.ReadTimeout /= 50
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("POST /v1/services HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Contains(t, string(text), "body cannot be read")
	cancel()
	require.NoError(t, <-done)
}

func TestServer_HugeHeaders_AreRefused(t *testing.T) {
	t.Parallel()
	_, url := serve(t, ServerConfig{}, Parts{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	go func() {
		_, _ = conn.Write([]byte("GET /v1/services HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"))
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
}

func TestOpen_RemoteAddress_NeedsAllowRemote(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "gateway:0"} {
		_, err := Open(ServerConfig{Listen: listen})
		require.ErrorContains(t, err, "not a loopback address", listen)
	}
	_, err := Open(ServerConfig{Listen: "7401"})
	require.ErrorContains(t, err, "is not host:port")
	for _, cfg := range []ServerConfig{{Listen: "localhost:0"}, {Listen: "0.0.0.0:0", AllowRemote: true}} {
		s, err := Open(cfg)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
	}
}

// A gateway whose state is not loaded yet answers, and stores nothing.
func TestServer_BeforeStart_ReportsTheStage(t *testing.T) {
	t.Parallel()
	var starting atomic.Value
	starting.Store("starting")
	s, err := Open(ServerConfig{
		Listen: "127.0.0.1:0", Metrics: promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}),
		Starting: func() string { return starting.Load().(string) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	url := "http://" + s.Addr().String()
	reports := func(want string) {
		t.Helper()
		for method, path := range map[string]string{"GET": "/healthz", "HEAD": "/readyz", "POST": "/v1/services", "DELETE": "/v1/services/a"} {
			a := request(t, method, url+path, "application/json", "{}")
			require.Equal(t, http.StatusServiceUnavailable, a.code, path)
			if method != "HEAD" {
				require.Contains(t, a.text, `"what":"`+want+`"`, path)
			}
		}
	}
	reports("the gateway is starting")
	starting.Store("starting: state folder: locked")
	reports("the gateway is starting: state folder: locked")
	require.Equal(t, http.StatusOK, request(t, "GET", url+"/metrics", "", "").code)
	f := start(t, Config{StartupWait: -1})
	s.Start(Parts{Foreman: f.Foreman})
	for _, path := range []string{"/healthz", "/readyz", "/v1/services"} {
		require.Equal(t, http.StatusOK, request(t, "GET", url+path, "", "").code, path)
	}
	require.Empty(t, f.set().Services)
	cancel()
	require.NoError(t, <-stopped)
}

func TestServer_EveryScheme_IsAccepted(t *testing.T) {
	t.Parallel()
	f, url := serve(t, ServerConfig{}, Parts{})
	for _, scheme := range rollcallv1.Schemes {
		body := fmt.Sprintf(`{"id":"s-%s","kind":"k","worker_ref":{"url":"%s://h:1","node":"n","labels":{"a":"b"}}}`, scheme, scheme)
		require.Equal(t, http.StatusAccepted, request(t, "POST", url+"/v1/services", "application/json", body).code)
	}
	require.Len(t, f.set().Services, len(rollcallv1.Schemes))
}
