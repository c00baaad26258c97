package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// probeOf returns a function that checks a URL with the timeout of cfg.
func probeOf(t *testing.T, cfg Config, rawURL string) func() error {
	t.Helper()
	c, err := New(cfg)
	require.NoError(t, err)
	p := c.prober.probe(Target{ID: "a", URL: rawURL})
	t.Cleanup(func() {
		p.close()
		c.prober.close()
	})
	return func() error { return p.check(t.Context(), time.Now().Add(c.cfg.Timeout)) }
}

func serveHTTP(t *testing.T, h http.HandlerFunc) *httptest.Server {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

// patient gives a loaded machine time to respond; a hanging server in a test hangs longer.
var patient = Config{Timeout: 9 * time.Second, ConnectTimeout: 9 * time.Second}

// requireNoAnswer requires that the timeout ends a check of a server that accepts the connection. A machine that is late itself
// may connect too late, and gets another check.
func requireNoAnswer(t *testing.T, check func(Config) error) {
	t.Helper()
	cfg := Config{Timeout: 300 * time.Millisecond, ConnectTimeout: 300 * time.Millisecond}
	var err error
	for range 10 {
		err = check(cfg)
		require.Error(t, err)
		if !errors.Is(err, errLate) && !strings.HasPrefix(err.Error(), "connect: ") {
			break
		}
	}
	require.Equal(t, "no answer within 300ms", reason(err))
	require.False(t, definite(err))
}

func TestHTTPCheck_StatusCodes_DecideTheVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		codes  Codes
		reason string
	}{
		{status: 200},
		{status: 204, reason: "status 204"},
		{status: 204, codes: Codes{204}},
		{status: 401, codes: Codes{200, 401}},
		{status: 200, codes: Codes{401}, reason: "status 200"},
		{status: 503, reason: "status 503"},
		{status: 404, reason: "status 404"},
		{status: 302, reason: "status 302"},
		{status: 999, reason: "status 999"},
	} {
		srv := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				t.Error("a redirect was followed")
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(test.status)
		})
		cfg := patient
		cfg.Codes = test.codes
		err := probeOf(t, cfg, srv.URL)()
		if test.reason == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, test.reason)
		require.True(t, definite(err))
	}
}

func TestHTTPCheck_BaseAndPath_AreJoined(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ base, path, want string }{
		{"", "", "/health"},
		{"/", "", "/health"},
		{"/relayer-1", "", "/relayer-1/health"},
		{"/relayer-1/", "/api/v1/health", "/relayer-1/api/v1/health"},
		{"?key=1", "", "/health?key=1"},
		{"", "/health?deep=1", "/health?deep=1"},
	} {
		got := make(chan *http.Request, 1)
		srv := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { got <- r })
		cfg := patient
		cfg.Path = test.path
		require.NoError(t, probeOf(t, cfg, srv.URL+test.base)())
		r := <-got
		require.Equal(t, test.want, r.URL.String())
		require.Equal(t, http.MethodGet, r.Method)
		require.Equal(t, strings.TrimPrefix(srv.URL, "http://"), r.Host)
		require.Equal(t, "rollcall-health", r.UserAgent())
		require.Empty(t, r.Header.Get("Authorization"))
	}
}

func TestHTTPCheck_HostNotAllowed_GetsNoAuthHeader(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	srv := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("X-Key") })
	cfg := patient
	cfg.Auth = Auth{Header: "X-Key", Value: "s3cret", Hosts: []string{"127.0.0.1"}}
	require.NoError(t, probeOf(t, cfg, srv.URL)())
	require.Equal(t, "s3cret", <-got)
	require.NoError(t, probeOf(t, cfg, strings.Replace(srv.URL, "127.0.0.1", "localhost", 1))())
	require.Empty(t, <-got)
}

func TestHTTPCheck_LargeBody_KeepsTheConnection(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	check := probeOf(t, patient, srv.URL)
	for range 5 {
		require.NoError(t, check())
	}
	require.EqualValues(t, 1, opened.Load())
	// The service closes the connection between two checks, as with an idle timeout, which is not a failure.
	srv.CloseClientConnections()
	require.NoError(t, check())
	require.EqualValues(t, 2, opened.Load())
}

// A misbehaving server must fail a check in time, without using much memory.
func TestHTTPCheck_ServerMisbehaves_FailsInTime(t *testing.T) {
	t.Parallel()
	hang := func(r *http.Request) { <-r.Context().Done() }
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		reason  string // empty: the timeout ends the check
	}{
		"silent": {
			func(_ http.ResponseWriter, r *http.Request) { hang(r) }, "",
		},
		"body that never ends": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "o")
			_ = http.NewResponseController(w).Flush()
			hang(r)
		}, ""},
		"body cut short": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "o")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "connection closed before the answer was complete"},
		"no answer": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"connection closed before the answer was complete",
		},
		"endless header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}, "exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serveHTTP(t, test.handler).URL
			if test.reason == "" {
				requireNoAnswer(t, func(cfg Config) error { return probeOf(t, cfg, url)() })
				return
			}
			err := probeOf(t, patient, url)()
			require.Error(t, err)
			require.Contains(t, reason(err), test.reason)
			require.False(t, definite(err))
		})
	}
}

func TestHTTPCheck_EndlessBody_IsCutOff(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	srv := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(closed)
		for chunk := make([]byte, 64<<10); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	// The status alone decides.
	require.NoError(t, probeOf(t, patient, srv.URL)())
	<-closed
}

func TestHTTPCheck_ResponseIsNotHTTP_Fails(t *testing.T) {
	t.Parallel()
	addr := serveRaw(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1<<10))
		_, _ = io.WriteString(conn, strings.Repeat("\xff SSH-2.0", 100)+"\r\n\r\n")
	})
	err := probeOf(t, patient, "http://"+addr)()
	require.Error(t, err)
	require.LessOrEqual(t, len(reason(err)), maxReason+len("…"))
}

func serveRaw(t *testing.T, serve func(net.Conn)) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			done.Go(func() {
				serve(conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		done.Wait()
	})
	return ln.Addr().String()
}

// refused returns an address without a listener.
func refused(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return ln.Addr().String()
}

func TestProbe_ConnectionRefused_IsDefinite(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https", "tcp", "grpc", "grpcs"} {
		err := probeOf(t, patient, scheme+"://"+refused(t))()
		require.ErrorIs(t, err, syscall.ECONNREFUSED, scheme)
		require.True(t, definite(err), scheme)
		require.Contains(t, reason(err), "connection refused", scheme)
	}
}

func TestProbe_ConnectTimesOut_NamesTheStep(t *testing.T) {
	t.Parallel()
	unresolved := &net.DNSError{Err: "i/o timeout", Name: "oz-relayer-1", IsTimeout: true}
	cfg := patient
	cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: unresolved}
	}
	require.EqualError(t, probeOf(t, cfg, "http://oz-relayer-1")(), "name lookup: no answer within 9s")
	for _, scheme := range []string{"http", "tcp", "grpc"} {
		cfg.ConnectTimeout = 20 * time.Millisecond
		cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		}
		err := probeOf(t, cfg, scheme+"://10.0.0.1:1")()
		require.Error(t, err)
		if !errors.Is(err, errLate) { // on a machine that is late itself
			require.EqualError(t, err, "connect: no answer within 20ms", scheme)
		}
	}
}

func TestProbe_LocalFault_IsVoid(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.EADDRNOTAVAIL: true, syscall.ENOBUFS: true, syscall.ENOMEM: true,
		syscall.ECONNREFUSED: false, syscall.EHOSTUNREACH: false, syscall.ENETUNREACH: false, syscall.ECONNRESET: false,
	} {
		for _, scheme := range []string{"http", "https", "tcp", "grpc", "grpcs"} {
			cfg := patient
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errno}
			}
			err := probeOf(t, cfg, scheme+"://10.0.0.1:1")()
			require.ErrorIs(t, err, errno, scheme)
			require.Equal(t, want, local(err), "%v %v", scheme, errno)
		}
	}
}

func TestHTTPSCheck_UnknownCertificate_Fails(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	require.ErrorContains(t, probeOf(t, patient, srv.URL)(), "certificate")
	cfg := patient
	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.TLS.RootCAs.AddCert(srv.Certificate())
	check := probeOf(t, cfg, srv.URL)
	require.NoError(t, check())
	require.NoError(t, check())
}

func TestTCPCheck_ConnectionAccepted_Succeeds(t *testing.T) {
	t.Parallel()
	accepted := make(chan struct{}, 1)
	addr := serveRaw(t, func(net.Conn) { accepted <- struct{}{} })
	require.NoError(t, probeOf(t, patient, "tcp://"+addr)())
	<-accepted
}

func TestProbe_UnsupportedURL_Fails(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, probeOf(t, Config{}, "ftp://a:1")(), `scheme "ftp"`)
	require.ErrorContains(t, probeOf(t, Config{}, "http://[")(), "does not parse")
	require.ErrorContains(t, probeOf(t, Config{}, "")(), "scheme")
}

// serveGRPC starts a server on the address, with the health service unless it is nil.
func serveGRPC(t *testing.T, addr string, health healthpb.HealthServer, opts ...grpc.ServerOption) (*grpc.Server, string) {
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	srv := grpc.NewServer(opts...)
	if health != nil {
		healthpb.RegisterHealthServer(srv, health)
	}
	var done sync.WaitGroup
	done.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() {
		srv.Stop()
		done.Wait()
	})
	return srv, ln.Addr().String()
}

func TestGRPCCheck_ServingStatus_DecidesTheVerdict(t *testing.T) {
	t.Parallel()
	health := grpchealth.NewServer()
	port, err := testproc.FreePort()
	require.NoError(t, err)
	srv, addr := serveGRPC(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), health)
	whole := probeOf(t, patient, "grpc://"+addr)
	part := probeOf(t, patient, "grpc://"+addr+"/relay.v1.Relay")

	require.NoError(t, whole())
	require.ErrorContains(t, part(), "NotFound")
	health.SetServingStatus("relay.v1.Relay", healthpb.HealthCheckResponse_SERVING)
	require.NoError(t, part())
	health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	err = whole()
	require.EqualError(t, err, "health service reports NOT_SERVING")
	require.True(t, definite(err))
	require.NoError(t, part())
	health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	require.NoError(t, whole())

	// The service dies, and must be healthy at the first check after its return.
	srv.Stop()
	require.Error(t, whole()) // the end of the connection, if it is not detected yet
	for range 3 {
		require.ErrorIs(t, whole(), syscall.ECONNREFUSED)
	}
	serveGRPC(t, addr, grpchealth.NewServer())
	require.NoError(t, whole())
	require.NoError(t, whole())
}

func TestGRPCCheck_NoHealthService_Fails(t *testing.T) {
	t.Parallel()
	_, addr := serveGRPC(t, "127.0.0.1:0", nil)
	require.ErrorContains(t, probeOf(t, patient, "grpc://"+addr)(), "Unimplemented")
}

func TestGRPCCheck_ServerSilent_TimesOut(t *testing.T) {
	t.Parallel()
	addr := serveRaw(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	requireNoAnswer(t, func(cfg Config) error { return probeOf(t, cfg, "grpc://"+addr)() })
}

func TestGRPCSCheck_AuthHeader_IsSent(t *testing.T) {
	t.Parallel()
	template := httptest.NewTLSServer(nil) // for its certificate
	template.Close()
	auth := make(chan []string, 1)
	intercept := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		auth <- metadata.ValueFromIncomingContext(ctx, "x-key")
		return handle(ctx, req)
	}
	_, addr := serveGRPC(t, "127.0.0.1:0", grpchealth.NewServer(), grpc.UnaryInterceptor(intercept),
		grpc.Creds(credentials.NewServerTLSFromCert(&template.TLS.Certificates[0])))
	cfg := patient
	require.ErrorContains(t, probeOf(t, cfg, "grpcs://"+addr)(), "certificate")

	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.TLS.RootCAs.AddCert(template.Certificate())
	require.NoError(t, probeOf(t, cfg, "grpcs://"+addr)())
	require.Empty(t, <-auth)
	cfg.Auth = Auth{Header: "X-Key", Value: "s3cret", Hosts: []string{addr}}
	require.NoError(t, probeOf(t, cfg, "grpcs://"+addr)())
	require.Equal(t, []string{"s3cret"}, <-auth)
}

// statusServer is a health service whose checks fail with a status.
type statusServer struct {
	healthpb.UnimplementedHealthServer
	status *status.Status
}

func (s statusServer) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return nil, s.status.Err()
}

func TestGRPCCheck_StatusMessage_IsPrintableWithoutSecret(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code          codes.Code
		message, want string
	}{
		"plain":                   {codes.Unauthenticated, "no such key", "health service answers Unauthenticated: no such key"},
		"the secret":              {codes.Unauthenticated, "Bearer hunter2 is wrong", "health service answers Unauthenticated"},
		"not printable":           {codes.Internal, "a\x1b[31mb\nc", "health service answers Internal: a?[31mb c"},
		"unavailable":             {codes.Unavailable, "starting\x1b[2J", "starting?[2J"},
		"unavailable, the secret": {codes.Unavailable, "not for hunter2", "health service answers Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, addr := serveGRPC(t, "127.0.0.1:0", statusServer{status: status.New(test.code, test.message)})
			cfg := patient
			cfg.Auth = Auth{Header: "Authorization", Value: "Bearer hunter2", Hosts: []string{"127.0.0.1"}}
			err := probeOf(t, cfg, "grpc://"+addr)()
			require.EqualError(t, err, test.want)
			require.Equal(t, test.code != codes.Unavailable, definite(err))
		})
	}
}

func TestRepeatsSecret_AnyCredential_IsFound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		value, text string
		want        bool
	}{
		{"Bearer hunter2", "hunter2", true},
		{"Bearer hunter2", "Bearer token expected", false},
		{"hunter2", "key hunter2 is unknown", true},
		{"x1", "x1", true},
		{"hunter2 x", "hunter2 x is wrong", true},
		{"ApiKey key=hunter2, id=relayer", "unknown key: hunter2", true},
		{`Digest username="u", response="hunter2", qop=auth`, "hunter2 is wrong", true},
		{"Token hunter2 v1", "hunter2", true},
		{"Basic aHVudGVyMg==", "bad credentials aHVudGVyMg", true},
		{"ApiKey key=hunter2, id=relayer", "no key", false},
		{"", "anything", false},
	} {
		p := newProber(Config{Path: "/", Auth: Auth{Header: "Authorization", Value: test.value}})
		require.Equal(t, test.want, p.repeatsSecret(test.text), "%q %q", test.value, test.text)
	}
}

func TestHTTPCheck_MalformedHeader_DoesNotQuoteTheSecret(t *testing.T) {
	t.Parallel()
	url, _ := script(t, answers("HTTP/1.1 503 No\r\nBearer hunter2\r\n\r\n"))
	cfg := patient
	cfg.Auth = Auth{Header: "Authorization", Value: "Bearer hunter2", Hosts: []string{"127.0.0.1"}}
	require.EqualError(t, probeOf(t, cfg, url)(), "malformed header of the answer")
}

func TestReason_UnprintableText_IsReplaced(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a?[31mb c", reason(errors.New("a\x1b[31mb\nc")))
}

func TestReason_LongInvalidText_IsShortened(t *testing.T) {
	t.Parallel()
	got := reason(errors.New(strings.Repeat("é\xff", 200)))
	require.LessOrEqual(t, len(got), maxReason+len("…"))
	require.True(t, strings.HasSuffix(got, "…"))
	_, err := url.Parse("http://x/" + got)
	require.NoError(t, err)
	require.Equal(t, strings.ToValidUTF8(got, ""), got)
}

func TestProbe_URLWithoutHost_Fails(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(serveRaw(t, answers(ok)))
	require.NoError(t, err)
	for _, scheme := range schemes {
		for _, rest := range []string{"//:" + port, "///health", ""} {
			err := probeOf(t, patient, scheme+":"+rest)()
			require.EqualError(t, err, "URL names no host", scheme+":"+rest)
			require.True(t, definite(err))
		}
	}
}
