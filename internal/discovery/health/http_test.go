package health

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script serves connections, the n-th with the n-th function, and counts them.
func script(t *testing.T, serve ...func(net.Conn)) (url string, opened func() int) {
	var mu sync.Mutex
	n := 0
	addr := serveRaw(t, func(conn net.Conn) {
		mu.Lock()
		f := serve[min(n, len(serve)-1)]
		n++
		mu.Unlock()
		f(conn)
	})
	return "http://" + addr, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// answers reads a request and writes a response, repeatedly.
func answers(all ...string) func(net.Conn) {
	return func(conn net.Conn) {
		for _, answer := range all {
			if _, err := conn.Read(make([]byte, 1<<10)); err != nil {
				return
			}
			_, _ = io.WriteString(conn, answer)
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestHTTPCheck_RawResponses_GiveVerdicts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string
		reason string
	}{
		"up to the end":       {answer: "HTTP/1.0 200 OK\r\n\r\nok"},
		"in chunks":           {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"},
		"chunks cut short":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no", "connection closed before the answer was complete"},
		"no body":             {"HTTP/1.1 204 No Content\r\n\r\n", "status 204"},
		"first an interim":    {answer: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok},
		"ten interim":         {answer: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10) + ok},
		"nothing but interim": {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1000), "header of the answer exceeded 16 KiB"},
		"below any kind":      {"HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n", "status 99"},
		"all zeros":           {"HTTP/1.1 000 What\r\nContent-Length: 0\r\n\r\n", "status 0"},
		"another protocol":    {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "status 101"},
		"it gave up waiting":  {"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n", "status 408"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, opened := script(t, answers(test.answer))
			err := probeOf(t, patient, url)()
			if test.reason == "" {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				require.Equal(t, test.reason, reason(err))
			}
			require.Equal(t, 1, opened(), "nothing is tried again")
		})
	}
}

// Stale bytes on a kept-alive connection must not count as a response.
func TestHTTPKeptConnection_Stale_IsReplaced(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]func(net.Conn){
		"closed":                     answers(ok),
		"closed when asked":          answers(ok, ""),
		"closed with a word":         answers(ok, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"),
		"what was no answer":         answers(ok, "more of the one before\r\n\r\n"),
		"more than the length said":  answers(ok+"?", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
		"an answer after the answer": answers(ok + "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, opened := script(t, stale, answers(ok))
			check := probeOf(t, patient, url)
			require.NoError(t, check())
			require.NoError(t, check())
			require.Equal(t, 2, opened())
		})
	}
}

// A response that arrived before the request must not count, even if no goroutine had a chance to read it yet.
func TestHTTPKeptConnection_IgnoresResponseBeforeTheRequest(t *testing.T) {
	t.Parallel()
	for range 20 {
		send, sent := make(chan struct{}), make(chan struct{})
		url, opened := script(t, func(conn net.Conn) {
			answers(ok)(conn)
			<-send
			_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			close(sent)
			_, _ = conn.Read(make([]byte, 1)) // until the check closes it
		}, answers(ok))
		check := probeOf(t, patient, url)
		require.NoError(t, check())
		close(send)
		<-sent
		require.NoError(t, check())
		require.Equal(t, 2, opened())
	}
}

// A dead service must be detected on a kept connection too, after at most one more request.
func TestHTTPKeptConnection_DeadService_IsDetected(t *testing.T) {
	t.Parallel()
	url, opened := script(t, answers(ok, ""), answers(""))
	check := probeOf(t, patient, url)
	require.NoError(t, check())
	err := check()
	require.Error(t, err)
	require.Equal(t, "connection closed before the answer was complete", reason(err))
	require.Equal(t, 2, opened())
}

func TestHTTPCheck_ResponseByteByByte_TimesOut(t *testing.T) {
	t.Parallel()
	url, _ := script(t, func(conn net.Conn) {
		for _, c := range "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1000) {
			if _, err := conn.Write([]byte{byte(c)}); err != nil {
				return
			}
			<-time.After(5 * time.Millisecond)
		}
	})
	requireNoAnswer(t, func(cfg Config) error { return probeOf(t, cfg, url)() })
}

func TestHTTPKeptConnection_ManyServices_LimitsIdleConnections(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	open, opened := 0, 0
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	gone := make(chan struct{}, 100)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		switch s {
		case http.StateNew:
			open++
			opened++
		case http.StateClosed:
			open--
			gone <- struct{}{}
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	cfg := patient
	cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}
	c, err := New(cfg)
	require.NoError(t, err)
	c.prober.connPool.limit = 2
	check := func(p probe) { require.NoError(t, p.check(t.Context(), time.Now().Add(9*time.Second))) }
	var probes []probe
	// Targets that share an origin need only one connection.
	for _, url := range []string{"http://a", "http://b", "http://c", "http://a:80/other"} {
		probes = append(probes, c.prober.probe(Target{URL: url}))
	}
	for range 3 {
		for _, p := range probes {
			check(p)
		}
	}
	for range 3 {
		<-gone
	}
	mu.Lock()
	require.Equal(t, 2, open)
	require.Equal(t, 5, opened, "an origin with a connection keeps it")
	mu.Unlock()

	// The slot of a removed target must become free.
	probes[1].close()
	<-gone
	check(probes[2])
	check(probes[2])
	mu.Lock()
	require.Equal(t, 2, open)
	require.Equal(t, 6, opened)
	mu.Unlock()
	c.prober.close()
	<-gone
	<-gone
}

// A stopped checker must not wait for a hanging service.
func TestHTTPCheck_CheckerStops_IsCanceled(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	srv := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	c, err := New(Config{Interval: time.Minute, Timeout: 50 * time.Second})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	c.Set(Target{ID: "a", URL: srv.URL})
	<-asked
	began := time.Now()
	c.Abandon()
	stop()
	require.NoError(t, <-done)
	require.Less(t, time.Since(began), 20*time.Second)
	require.Empty(t, c.Take(nil))
}

func TestHTTPCheck_KeptConnection_AllocatesLittle(t *testing.T) {
	// Not parallel, because allocations of other tests would count.
	url, _ := script(t, func(conn net.Conn) {
		for buf := make([]byte, 1<<10); ; {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			_, _ = io.WriteString(conn, ok)
		}
	})
	check := probeOf(t, patient, url)
	require.Less(t, testing.AllocsPerRun(100, func() { require.NoError(t, check()) }), 30.0)
}

// The reason in a failing service's JSON body must be quoted: bounded, printable, and without the secret of the check.
func TestHTTPCheck_QuotesReasonOfFailingBody(t *testing.T) {
	t.Parallel()
	failing := func(code int, body string) string {
		return fmt.Sprintf("HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s", code, len(body), body)
	}
	long := strings.Repeat("é", maxReason)
	for name, test := range map[string]struct {
		body, reason string
	}{
		"ours":           {`{"status":"unavailable","reason":"database: it does not answer","components":[]}`, "status 503: database: it does not answer"},
		"pretty":         {" \n{\n \"reason\": \"no key\" }\n", "status 503: no key"},
		"no body":        {"", "status 503"},
		"text":           {"database is away", "status 503"},
		"no reason":      {`{"status":"unavailable"}`, "status 503"},
		"empty reason":   {`{"reason":" \n "}`, "status 503"},
		"another type":   {`{"reason":{"code":7}}`, "status 503"},
		"a list":         {`["reason"]`, "status 503"},
		"cut":            {`{"reason":"data`, "status 503"},
		"nested":         {`{"a":{"reason":"inner"},"b":[{"reason":1}],"reason":"outer"}`, "status 503: outer"},
		"not printable":  {`{"reason":"a\u001b[31mb\nc\u202ed\u0000\tok"}`, "status 503: a?[31mb c?d? ok"},
		"invalid UTF-8":  {"{\"reason\":\"a\xffb\"}", "status 503: a\uFFFDb"},
		"too long":       {`{"reason":"` + long + `"}`, "status 503: " + strings.Repeat("é", (maxReason-len("status 503: "))/2) + "…"},
		"a large body":   {`{"reason":"a","rest":"` + strings.Repeat("x", maxQuoted) + `"}`, "status 503: a"},
		"too far behind": {`{"rest":"` + strings.Repeat("x", maxQuoted) + `","reason":"a"}`, "status 503"},
		"the secret":     {`{"reason":"Bearer hunter2 is wrong"}`, "status 503"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, opened := script(t, answers(failing(503, test.body), ok))
			cfg := patient
			cfg.Auth = Auth{Header: "Authorization", Value: "Bearer hunter2", Hosts: []string{"127.0.0.1"}}
			check := probeOf(t, cfg, url)
			err := check()
			require.Error(t, err)
			require.Equal(t, test.reason, reason(err))
			require.True(t, definite(err), "the response is the service's own")
			require.NoError(t, check())
			require.Equal(t, 1, opened(), "the connection is kept: the body was read to its end")
		})
	}
}

// An endless body must not extend a check beyond its timeout.
func TestHTTPCheck_StopsReadingReasonAtItsDeadline(t *testing.T) {
	t.Parallel()
	url, _ := script(t, func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 1<<10)); err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\n{\"reason\":\"a\"")
		_, _ = conn.Read(make([]byte, 1)) // until the check closes it
	})
	requireNoAnswer(t, func(cfg Config) error { return probeOf(t, cfg, url)() })
}
