package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Invalid input from the network: it is rejected with a reason, and other clients are not affected.

// undisturbed registers one service after the other, until the returned function is called. That function fails the
// test if a registration failed, or took longer than a disturbed leader would need.
func (c *cluster) undisturbed() (stop func()) {
	c.t.Helper()
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: strings.Split(c.addresses(), ",")})
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(c.t.Context())
	var done sync.WaitGroup
	var failed error
	var worst time.Duration
	count := 0
	done.Go(func() {
		writer := &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "beside"}, Incarnation: 1}
		for ctx.Err() == nil && failed == nil {
			begun := time.Now()
			writer.Seq++
			req := &rollcallv1.RegisterServicesRequest{Writer: writer, Services: []*rollcallv1.Service{service("undisturbed", fmt.Sprintf("http://127.0.0.1:1/%d", count))}}
			req.Services[0].Kind = "other"
			if _, err := client.Register(ctx, req); err != nil && ctx.Err() == nil {
				failed = err
			}
			worst = max(worst, time.Since(begun))
			count++
		}
	})
	return func() {
		c.t.Helper()
		cancel()
		done.Wait()
		closeBody(client)
		require.NoError(c.t, failed, "a registration beside")
		c.t.Logf("%d registrations beside, the slowest took %v", count, worst.Round(time.Millisecond))
		require.Greater(c.t, count, 1)
		require.Less(c.t, worst, 5*time.Second)
	}
}

func TestRequests_Invalid_AreRejectedWithReason(t *testing.T) {
	t.Parallel()
	c := startCluster(t, options{env: steady})
	relayers, ids := fleet(t, 2)
	c.register(relayers...)
	c.awaitActive(patience, ids...)
	leader, _ := c.leader()
	stop := c.undisturbed()

	many := func(n int, f func(i int) *rollcallv1.Service) []*rollcallv1.Service {
		all := make([]*rollcallv1.Service, n)
		for i := range all {
			all[i] = f(i)
		}
		return all
	}
	named := func(id, url string) []*rollcallv1.Service { return []*rollcallv1.Service{service(id, url)} }
	fat := func(i int) *rollcallv1.Service {
		s := service(fmt.Sprintf("fat-%d", i), "http://127.0.0.1:1")
		s.WorkerRef.Labels = make(map[string]string)
		for l := range 48 {
			s.WorkerRef.Labels[fmt.Sprint("l", l)] = strings.Repeat("x", 256)
		}
		return s
	}
	for name, tc := range map[string]struct {
		services []*rollcallv1.Service
		code     codes.Code
		says     []string
	}{
		"too many":      {many(10_001, func(i int) *rollcallv1.Service { return service(fmt.Sprintf("n-%d", i), "http://127.0.0.1:1") }), codes.ResourceExhausted, []string{"10001", "split"}},
		"too large":     {many(500, fat), codes.ResourceExhausted, []string{"4194304", "split"}},
		"ten MB":        {many(850, fat), codes.ResourceExhausted, []string{"larger than max"}},
		"named twice":   {append(named("twice", "http://127.0.0.1:1"), named("twice", "http://127.0.0.1:2")...), codes.InvalidArgument, []string{"services[1].id", "services[0]"}},
		"unknown URL":   {named("ftp", "ftp://127.0.0.1/"), codes.InvalidArgument, []string{"services[0].worker_ref.url", "ftp"}},
		"no URL":        {named("none", ""), codes.InvalidArgument, []string{"services[0].worker_ref.url"}},
		"empty id":      {named("", "http://127.0.0.1:1"), codes.InvalidArgument, []string{"services[0].id"}},
		"no label":      {named("Not A Label", "http://127.0.0.1:1"), codes.InvalidArgument, []string{"services[0].id"}},
		"no worker":     {[]*rollcallv1.Service{{Id: "x", Kind: "relayer"}}, codes.InvalidArgument, []string{"services[0].worker_ref.url"}},
		"nothing":       {nil, codes.InvalidArgument, []string{"services", "empty"}},
		"one bad, late": {append(many(99, func(i int) *rollcallv1.Service { return service(fmt.Sprintf("n-%d", i), "http://127.0.0.1:1") }), service("-", "gopher://x")), codes.InvalidArgument, []string{"services[99].id", "services[99].worker_ref.url"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := leader.discovery().RegisterServices(ctx, &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: tc.services})
		cancel()
		require.Equal(t, tc.code, status.Code(err), "%s: %v", name, err)
		for _, part := range tc.says {
			require.Contains(t, status.Convert(err).Message(), part, name)
		}
	}
	for name, req := range map[string]*rollcallv1.RegisterServicesRequest{
		"no writer":                {Services: named("x", "http://127.0.0.1:1")},
		"a gateway without number": {Writer: &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "g"}}, Services: named("x", "http://127.0.0.1:1")},
		"static":                   {Writer: &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_STATIC}}, Services: named("x", "http://127.0.0.1:1")},
		"an empty full set":        {Writer: operator(), FullSet: true},
	} {
		_, err := leader.discovery().RegisterServices(t.Context(), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
	}
	for name, ids := range map[string][]string{"nothing": nil, "twice": {"a", "a"}, "empty": {""}} {
		_, err := leader.discovery().DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: ids})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
	}
	stop()
	require.ElementsMatch(t, append(ids, "undisturbed"), c.directory(), "nothing was changed")
	require.Equal(t, ids, c.active())
}

func TestHTTP_CoordinatorInvalidRequests_AreCutOff(t *testing.T) {
	t.Parallel()
	c := startCluster(t, options{env: steady})
	leader, epoch := c.leader()
	stop := c.undisturbed()

	for _, path := range []string{"/status", "/metrics", "/", "/nothing"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+leader.http+path, bytes.NewReader(make([]byte, 10<<20)))
		require.NoError(t, err)
		resp, err := new(http.Client).Do(req)
		if err != nil { // the connection was closed during the request
			require.ErrorContains(t, err, "reset by peer")
			continue
		}
		closeBody(resp.Body)
		require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, path)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+leader.http+"/status", nil)
	require.NoError(t, err)
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	resp, err := new(http.Client).Do(req)
	require.NoError(t, err)
	closeBody(resp.Body)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)

	all := slowClients(t, leader.http, "GET /status HTTP/1.1\r\nHost: x\r\nX-A: ")
	for begun := time.Now(); !asked(all); {
		require.Less(t, time.Since(begun), patience, "they are cut off")
		_, code := leader.status(t)
		require.Equal(t, http.StatusOK, code)
	}
	stop()
	_, now := c.leader()
	require.Equal(t, epoch, now, "the leader has not changed")
}

// slowClients starts a request on hundreds of connections and sends a byte now and then. It returns a channel that is
// closed when all connections are closed.
func slowClients(t *testing.T, address, begin string) (gone <-chan struct{}) {
	t.Helper()
	var cut sync.WaitGroup
	for range 300 {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = io.WriteString(conn, begin)
		require.NoError(t, err)
		cut.Go(func() {
			defer closeBody(conn)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = io.Copy(io.Discard, conn)
			}()
			for tick := time.NewTicker(200 * time.Millisecond); ; {
				select {
				case <-gone:
					tick.Stop()
					return
				case <-tick.C:
					_, _ = io.WriteString(conn, "a") // fails once the connection is closed
				}
			}
		})
	}
	all := make(chan struct{})
	go func() { cut.Wait(); close(all) }()
	return all
}

// A gateway, too, rejects requests that are too long or too slow, and still serves other clients.
func TestHTTP_GatewayInvalidRequests_AreCutOff(t *testing.T) {
	t.Parallel()
	relayers, ids := fleet(t, 2)
	c := startCluster(t, options{})
	a := c.defineAgent("edge-1")
	a.write("a.json", definition(ids[0], relayers[0].url()))
	a.start()
	c.awaitActive(patience, ids[0])

	head := slowClients(t, a.http, "POST /v1/services HTTP/1.1\r\nHost: localhost\r\nX-A: ")
	body := slowClients(t, a.http, "POST /v1/services HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n[")
	code, answer := a.call(http.MethodPost, "/v1/services", "["+strings.Repeat(" ", 10<<20)+"]")
	if code != 0 { // 0: the connection was closed during the request
		require.Equal(t, http.StatusRequestEntityTooLarge, code, answer)
	}
	a.advertise(ids[1], relayers[1].url())
	c.awaitActive(patience, ids...)
	eventually(t, patience, func() bool {
		code, _ := a.call(http.MethodGet, "/healthz", "")
		require.Equal(t, http.StatusOK, code)
		return asked(head) && asked(body)
	}, "they are cut off")
	require.Equal(t, ids, c.directory())
}

func TestClusterPort_SilenceAndGarbage_DoNotDisturb(t *testing.T) {
	t.Parallel()
	c := startCluster(t, options{env: steady})
	c.leader()
	stop := c.undisturbed()
	var cut sync.WaitGroup
	for _, n := range c.nodes {
		for i := range 300 {
			conn, err := net.Dial("tcp", n.address)
			require.NoError(t, err)
			switch i % 4 {
			case 1:
				_, err = io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
			case 2:
				_, err = conn.Write(bytes.Repeat([]byte{0x16, 0x03, 0x01, 0xff}, 64))
			case 3: // starts like gRPC, and sends nothing more
				_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			}
			require.NoError(t, err)
			cut.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				closeBody(conn)
			})
		}
	}
	all := make(chan struct{})
	go func() { cut.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(patience):
		require.FailNow(t, "silent connections stay open")
	}
	stop()
}
