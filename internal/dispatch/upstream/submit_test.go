package upstream_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	acceptedBody = `{"success":true,"data":{"id":"tx-1","hash":null,"status":"pending","created_at":"2026-11-05T09:00:00.123456+00:00"},"error":null}`
	refusedBody  = `{"success":false,"data":null,"error":"the relayer's own words"}`
	page         = "<html><body>a proxy's page</body></html>"
	isJSON       = "Content-Type: application/json"
)

// result is what matters of an upstream.Result.
type result struct {
	outcome                      upstream.Outcome
	fault, stale, busy, keyReuse bool
	after                        time.Duration
	reason                       string // a part of it
}

func (want result) check(t *testing.T, got upstream.Result) {
	t.Helper()
	require.Equal(t, want.outcome, got.Outcome, "%+v", got)
	require.Equal(t, want.fault, got.Fault, "fault: %+v", got)
	require.Equal(t, want.stale, got.Stale, "stale: %+v", got)
	require.Equal(t, want.busy, got.Busy, "busy: %+v", got)
	require.Equal(t, want.keyReuse, got.KeyReused, "key reused: %+v", got)
	require.Equal(t, want.after, got.RetryAfter, "retry after: %+v", got)
	require.Contains(t, got.Reason, want.reason)
	require.Equal(t, got.Outcome == upstream.Accepted, got.Reason == "", "%+v", got)
	require.Less(t, len(got.Reason), 400)
	require.NotContains(t, got.Reason, apiKey)
	require.NotContains(t, got.Reason, "http://")
	require.Positive(t, got.Took)
}

func TestSubmit_Responses(t *testing.T) {
	t.Parallel()
	own := "the relayer's own words"
	scoped := func(s *upstream.Submission) { s.Scope = "scope-1" }
	unkeyed := func(s *upstream.Submission) { s.IdempotencyKey = "" }
	date := "Date: Thu, 05 Nov 2026 09:00:00 GMT"
	for name, c := range map[string]struct {
		respond func(net.Conn, *http.Request)
		change  func(*upstream.Submission)
		want    result
	}{
		"200":                        {respond: respond("200 OK", acceptedBody, isJSON), want: result{outcome: upstream.Accepted}},
		"200 without a content type": {respond: respond("200 OK", acceptedBody), want: result{outcome: upstream.Accepted}},
		"201 of older documents":     {respond: respond("201 Created", acceptedBody), want: result{outcome: upstream.Accepted}},
		"202":                        {respond: respond("202 Accepted", acceptedBody), want: result{outcome: upstream.Accepted}},
		"200 in the scope": {
			respond: respond("200 OK", acceptedBody, "Idempotency-Scope: scope-1"), change: scoped, want: result{outcome: upstream.Accepted},
		},
		"200 in another scope": {
			respond: respond("200 OK", acceptedBody, "Idempotency-Scope: scope-2"), change: scoped, want: result{outcome: upstream.Accepted, stale: true},
		},
		"200 without the scope": {
			respond: respond("200 OK", acceptedBody), change: scoped, want: result{outcome: upstream.Accepted, stale: true},
		},
		"200 in a scope that the caller does not know of": {
			respond: respond("200 OK", acceptedBody, "Idempotency-Scope: scope-1"), want: result{outcome: upstream.Accepted, stale: true},
		},
		"200 without success": {
			respond: respond("200 OK", refusedBody), want: result{outcome: upstream.Unknown, fault: true, reason: own},
		},
		"200 without an id": {
			respond: respond("200 OK", `{"success":true,"data":{"status":"pending"},"error":null}`),
			want:    result{outcome: upstream.Unknown, fault: true, reason: "without a transaction's id"},
		},
		"200 with an id that is no path": {
			respond: respond("200 OK", `{"success":true,"data":{"id":"..","status":"pending"},"error":null}`),
			want:    result{outcome: upstream.Unknown, fault: true, reason: "without a transaction's id"},
		},
		"200 with data of another kind": {
			respond: respond("200 OK", `{"success":true,"data":"tx-1","error":null}`), want: result{outcome: upstream.Unknown, fault: true},
		},
		"200 with a page": {
			respond: respond("200 OK", page), want: result{outcome: upstream.Unknown, fault: true, reason: "another body"},
		},
		"200 with other JSON": {
			respond: respond("200 OK", `{"id":"tx-1","status":"ok"}`), want: result{outcome: upstream.Unknown, fault: true, reason: "another body"},
		},
		"200 with nothing": {respond: respond("200 OK", ""), want: result{outcome: upstream.Unknown, fault: true}},
		"204":              {respond: respond("204 No Content", ""), want: result{outcome: upstream.Unknown, fault: true}},
		"206":              {respond: respond("206 Partial Content", acceptedBody), want: result{outcome: upstream.Unknown, fault: true}},

		"301": {respond: respond("301 Moved Permanently", "", "Location: /elsewhere"), want: result{outcome: upstream.NotDone, fault: true, reason: "redirects"}},
		"302": {respond: respond("302 Found", page, "Location: http://127.0.0.1:1/"), want: result{outcome: upstream.NotDone, fault: true, reason: "redirects"}},
		"307": {respond: respond("307 Temporary Redirect", "", "Location: /elsewhere"), want: result{outcome: upstream.NotDone, fault: true}},
		"308": {respond: respond("308 Permanent Redirect", "", "Location: /elsewhere"), want: result{outcome: upstream.NotDone, fault: true}},
		"300": {respond: respond("300 Multiple Choices", ""), want: result{outcome: upstream.NotDone, fault: true}},

		"400":               {respond: respond("400 Bad Request", refusedBody), want: result{outcome: upstream.Rejected, reason: own}},
		"400 of a proxy":    {respond: respond("400 Bad Request", page), want: result{outcome: upstream.NotDone, fault: true}},
		"400 without words": {respond: respond("400 Bad Request", `{"success":false,"data":null,"error":null}`), want: result{outcome: upstream.NotDone, fault: true}},
		"401": {
			respond: respond("401 Unauthorized", `{"success":false,"code":401,"error":"Unauthorized","message":"Unauthorized"}`),
			want:    result{outcome: upstream.NotDone, fault: true, stale: true, reason: "Unauthorized"},
		},
		"403":            {respond: respond("403 Forbidden", refusedBody), want: result{outcome: upstream.NotDone, fault: true, stale: true, reason: own}},
		"403 of a proxy": {respond: respond("403 Forbidden", page), want: result{outcome: upstream.NotDone, fault: true, stale: true}},
		"404":            {respond: respond("404 Not Found", refusedBody), want: result{outcome: upstream.NotDone, fault: true, stale: true, reason: own}},
		"404 of a proxy": {respond: respond("404 Not Found", page), want: result{outcome: upstream.NotDone, fault: true, stale: true}},
		"405":            {respond: respond("405 Method Not Allowed", page), want: result{outcome: upstream.NotDone, fault: true}},
		"407":            {respond: respond("407 Proxy Authentication Required", page), want: result{outcome: upstream.NotDone, fault: true}},
		"408":            {respond: respond("408 Request Timeout", page), want: result{outcome: upstream.Unknown, fault: true}},
		"409":            {respond: respond("409 Conflict", refusedBody), want: result{outcome: upstream.Unknown, fault: true, reason: own}},
		"410":            {respond: respond("410 Gone", refusedBody), want: result{outcome: upstream.Unknown, reason: own}},
		"410 of a proxy": {respond: respond("410 Gone", page), want: result{outcome: upstream.Unknown, fault: true}},
		"412": {
			respond: respond("412 Precondition Failed", refusedBody, "Idempotency-Scope: scope-2"), change: scoped,
			want: result{outcome: upstream.NotDone, stale: true, reason: own},
		},
		"412 that was not asked for": {respond: respond("412 Precondition Failed", page), want: result{outcome: upstream.NotDone, fault: true, stale: true}},
		"413":                        {respond: respond("413 Content Too Large", refusedBody), want: result{outcome: upstream.Rejected, reason: own}},
		"413 of a proxy":             {respond: respond("413 Content Too Large", page), want: result{outcome: upstream.NotDone}},
		"415":                        {respond: respond("415 Unsupported Media Type", refusedBody), want: result{outcome: upstream.NotDone, fault: true, reason: own}},
		"418":                        {respond: respond("418 I'm a teapot", page), want: result{outcome: upstream.NotDone, fault: true}},
		"422": {
			respond: respond("422 Unprocessable Entity", refusedBody), want: result{outcome: upstream.Unknown, keyReuse: true, reason: own},
		},
		"422 of a proxy": {respond: respond("422 Unprocessable Entity", page), want: result{outcome: upstream.Unknown, fault: true}},
		"422 without a key": {
			respond: respond("422 Unprocessable Entity", refusedBody), change: unkeyed, want: result{outcome: upstream.Rejected, reason: own},
		},
		"422 of a proxy without a key": {respond: respond("422 Unprocessable Entity", page), change: unkeyed, want: result{outcome: upstream.NotDone, fault: true}},
		"425":                          {respond: respond("425 Too Early", page), want: result{outcome: upstream.NotDone, busy: true}},
		"429":                          {respond: respond("429 Too Many Requests", page), want: result{outcome: upstream.NotDone, busy: true}},
		"429 with seconds": {
			respond: respond("429 Too Many Requests", page, "Retry-After: 7"), want: result{outcome: upstream.NotDone, busy: true, after: 7 * time.Second},
		},
		"429 with a date": {
			respond: respond("429 Too Many Requests", page, date, "Retry-After: Thu, 05 Nov 2026 09:00:09 GMT"),
			want:    result{outcome: upstream.NotDone, busy: true, after: 9 * time.Second},
		},
		"429 with a past date": {
			respond: respond("429 Too Many Requests", page, date, "Retry-After: Thu, 05 Nov 2026 08:00:09 GMT"), want: result{outcome: upstream.NotDone, busy: true},
		},
		"429 with an unbounded pause": {
			respond: respond("429 Too Many Requests", page, "Retry-After: 2147483647"), want: result{outcome: upstream.NotDone, busy: true, after: 5 * time.Minute},
		},
		"429 with nonsense": {respond: respond("429 Too Many Requests", page, "Retry-After: -3s"), want: result{outcome: upstream.NotDone, busy: true}},
		"429 with a field": {
			respond: respond("429 Too Many Requests", `{"success":false,"code":429,"error":"TooManyRequests","message":"slow down","after":3}`),
			want:    result{outcome: upstream.NotDone, busy: true, after: 3 * time.Second, reason: "TooManyRequests: slow down"},
		},
		"429 with an unbounded field": {
			respond: respond("429 Too Many Requests", `{"success":false,"error":"x","after":1e300}`),
			want:    result{outcome: upstream.NotDone, busy: true, after: 5 * time.Minute, reason: "x"},
		},
		"431": {respond: respond("431 Request Header Fields Too Large", page), want: result{outcome: upstream.NotDone, fault: true}},

		"500":            {respond: respond("500 Internal Server Error", refusedBody), want: result{outcome: upstream.Unknown, fault: true, reason: own}},
		"500 of a proxy": {respond: respond("500 Internal Server Error", page), want: result{outcome: upstream.Unknown, fault: true}},
		"500 in the scope": {
			respond: respond("500 Internal Server Error", refusedBody, "Idempotency-Scope: scope-1"), change: scoped, want: result{outcome: upstream.Unknown, fault: true},
		},
		"501": {respond: respond("501 Not Implemented", refusedBody), want: result{outcome: upstream.NotDone, fault: true, reason: own}},
		"502": {respond: respond("502 Bad Gateway", page), want: result{outcome: upstream.Unknown, fault: true}},
		"503": {respond: respond("503 Service Unavailable", page), want: result{outcome: upstream.Unknown, fault: true}},
		"503 of another relayer, with a pause": {
			respond: respond("503 Service Unavailable", refusedBody, "Retry-After: 2"), want: result{outcome: upstream.Unknown, fault: true, after: 2 * time.Second},
		},
		"503 of this project's relayer": {
			respond: respond("503 Service Unavailable", refusedBody, "Retry-After: 1", "Idempotency-Scope: scope-1"),
			want:    result{outcome: upstream.NotDone, after: time.Second, reason: own},
		},
		"503 of this project's relayer before it knows its scope": {
			respond: respond("503 Service Unavailable", refusedBody, "Retry-After: 1"), change: scoped,
			want: result{outcome: upstream.NotDone, after: time.Second, reason: own},
		},
		"503 of a proxy before this project's relayer": {
			respond: respond("503 Service Unavailable", page), change: scoped, want: result{outcome: upstream.Unknown, fault: true},
		},
		"504": {respond: respond("504 Gateway Timeout", refusedBody, "Idempotency-Scope: scope-1"), change: scoped, want: result{outcome: upstream.Unknown, fault: true}},
		"507": {respond: respond("507 Insufficient Storage", page), want: result{outcome: upstream.Unknown, fault: true}},
		"999": {respond: respond("999 Strange", page), want: result{outcome: upstream.Unknown, fault: true}},

		"the key in an error": {
			respond: respond("400 Bad Request", `{"success":false,"data":null,"error":"key `+apiKey+` at `+"\\u0007"+`"}`),
			want:    result{outcome: upstream.Rejected, reason: "key [API key] at  "},
		},
		"a long error": {
			respond: respond("400 Bad Request", `{"success":false,"data":null,"error":"`+strings.Repeat("é", 10_000)+`"}`), want: result{outcome: upstream.Rejected},
		},
		"a reset after the request": {
			respond: func(c net.Conn, _ *http.Request) { _ = c.(*net.TCPConn).SetLinger(0) }, want: result{outcome: upstream.Unknown, fault: true},
		},
		"an end after the request": {respond: func(net.Conn, *http.Request) {}, want: result{outcome: upstream.Unknown, fault: true}},
		"no HTTP":                  {respond: text("SSH-2.0-OpenSSH_9.2\r\n"), want: result{outcome: upstream.Unknown, fault: true}},
		"a cut header":             {respond: text("HTTP/1.1 200 OK\r\nContent-Le"), want: result{outcome: upstream.Unknown, fault: true}},
		"a cut body": {
			respond: text(head("200 OK", "Content-Length: 1000") + acceptedBody), want: result{outcome: upstream.Unknown, fault: true, reason: "incomplete"},
		},
		"a cut body of an error": {
			respond: text(head("400 Bad Request", "Content-Length: 1000") + refusedBody), want: result{outcome: upstream.NotDone, fault: true},
		},
		"a cut body of a refusal by its status": {
			respond: text(head("429 Too Many Requests", "Retry-After: 3", "Content-Length: 1000") + refusedBody),
			want:    result{outcome: upstream.NotDone, busy: true, after: 3 * time.Second},
		},
		"an endless header": {respond: endless("HTTP/1.1 200 OK\r\n", "X-More: more\r\n"), want: result{outcome: upstream.Unknown, fault: true}},
		"an endless body": {
			respond: endless(head("200 OK")+acceptedBody[:len(acceptedBody)-1], "          "), want: result{outcome: upstream.Unknown, fault: true, reason: "too large"},
		},
		"an endless body of an error": {respond: endless(head("400 Bad Request"), "          "), want: result{outcome: upstream.NotDone, fault: true}},
		"a gzip bomb": {
			respond: func(c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, head("200 OK", "Content-Encoding: gzip", isJSON))
				_, _ = c.Write(bomb(t))
			},
			want: result{outcome: upstream.Unknown, fault: true, reason: "another body"},
		},
		"HTTP/1.0":                 {respond: text("HTTP/1.0 200 OK\r\n\r\n" + acceptedBody), want: result{outcome: upstream.Accepted}},
		"HTTP/1.0 with a cut body": {respond: text("HTTP/1.0 200 OK\r\n\r\n" + acceptedBody[:50]), want: result{outcome: upstream.Unknown, fault: true}},
		"chunks": {
			respond: text(head("200 OK", "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(acceptedBody), acceptedBody)),
			want:    result{outcome: upstream.Accepted},
		},
		"an interim response first": {
			respond: text("HTTP/1.1 103 Early Hints\r\n\r\n" + head("200 OK") + acceptedBody), want: result{outcome: upstream.Accepted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, c.respond)
			s := submission()
			if c.change != nil {
				c.change(&s)
			}
			got := open(t, server.url).Submit(t.Context(), s)
			c.want.check(t, got)
			if got.Outcome == upstream.Accepted {
				require.Equal(t, "tx-1", got.Transaction.ID)
				require.True(t, got.Transaction.Pending)
				require.Zero(t, got.Transaction.Hash)
				require.Equal(t, 2026, got.Transaction.CreatedAt.Year())
			}
			require.Equal(t, 1, server.count(), "a submission is sent once")
		})
	}
}

// A relayer has accepted a transaction whatever status it reports with it.
func TestSubmit_StatusMissingOrUnknown_IsAccepted(t *testing.T) {
	t.Parallel()
	for name, field := range map[string]string{"missing": ``, "null": `,"status":null`, "unknown": `,"status":"Dreaming"`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, respond("200 OK", `{"success":true,"data":{"id":"tx-1"`+field+`},"error":null}`))
			got := open(t, server.url).Submit(t.Context(), submission())
			result{outcome: upstream.Accepted}.check(t, got)
			require.Equal(t, "tx-1", got.Transaction.ID)
		})
	}
}

func text(s string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, s) }
}

func endless(begin, more string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) {
		_, err := io.WriteString(c, begin)
		for block := strings.Repeat(more, 1000); err == nil; {
			_, err = io.WriteString(c, block)
		}
	}
}

// bomb returns 64 MB of JSON and blanks, compressed.
func bomb(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, acceptedBody)
	require.NoError(t, err)
	for range 64 {
		_, err = z.Write(bytes.Repeat([]byte{' '}, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestSubmit_Request_IsExact(t *testing.T) {
	t.Parallel()
	server := serve(t, respond("200 OK", acceptedBody))
	client := open(t, server.url+"/base//")
	s := submission()
	s.RelayerID, s.Scope, s.Traceparent = "a/b?c", "scope-1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, value := range []string{"0", "1", "9007199254740993", "115792089237316195423570985008687907853269984665640564039457584007913129639935"} {
		s.Value, _ = new(big.Int).SetString(value, 10)
		require.Equal(t, upstream.Accepted, client.Submit(t.Context(), s).Outcome)
		r, body := server.requests[server.count()-1], server.bodies[server.count()-1]
		require.Equal(t, "POST /base/api/v1/relayers/a%2Fb%3Fc/transactions", r.Method+" "+r.RequestURI)
		require.JSONEq(t, `{"to":"0x00000000000000000000000000000000000000ff","value":"0x`+s.Value.Text(16)+`","data":"0x010203","gas_limit":100000,"speed":"average"}`, body)
		require.Equal(t, []string{"Bearer " + apiKey}, r.Header["Authorization"])
		require.Equal(t, []string{"key-1"}, r.Header["Idempotency-Key"])
		require.Equal(t, []string{"scope-1"}, r.Header["Idempotency-Scope"])
		require.Equal(t, []string{s.Traceparent}, r.Header["Traceparent"])
		require.Equal(t, []string{"application/json"}, r.Header["Content-Type"])
		require.NotContains(t, r.Header, "Accept-Encoding")
	}
	s = upstream.Submission{RelayerID: "relayer-1", Data: []byte{0x60}}
	require.Equal(t, upstream.Accepted, client.Submit(t.Context(), s).Outcome)
	require.JSONEq(t, `{"value":"0x0","data":"0x60"}`, server.bodies[server.count()-1])
	for _, name := range []string{"Idempotency-Key", "Idempotency-Scope", "Traceparent"} {
		require.NotContains(t, server.requests[server.count()-1].Header, name)
	}
}

func TestSubmit_InvalidSubmission_IsRejectedUnsent(t *testing.T) {
	t.Parallel()
	server := serve(t, respond("200 OK", acceptedBody))
	client := open(t, server.url)
	for field, change := range map[string]func(*upstream.Submission){
		"relayer id":        func(s *upstream.Submission) { s.RelayerID = "" },
		"value":             func(s *upstream.Submission) { s.Value = big.NewInt(-1) },
		"value: must":       func(s *upstream.Submission) { s.Value = new(big.Int).Lsh(big.NewInt(1), 256) },
		"idempotency key":   func(s *upstream.Submission) { s.IdempotencyKey = strings.Repeat("k", 256) },
		"idempotency key:":  func(s *upstream.Submission) { s.IdempotencyKey = "k\r\nX: y" },
		"idempotency scope": func(s *upstream.Submission) { s.Scope = "a b" },
		"trace context":     func(s *upstream.Submission) { s.Traceparent = "\n" },
	} {
		s := submission()
		change(&s)
		result{outcome: upstream.Rejected, reason: field}.check(t, client.Submit(t.Context(), s))
	}
	require.Zero(t, server.count())
}

func TestSubmit_NoConnection_IsNotDone(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	t.Cleanup(secure.Close)
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and never shakes hands
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	dial := func(err error) func(*upstream.Config) {
		return func(c *upstream.Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
			}
		}
	}
	for name, c := range map[string]struct {
		url    string
		change func(*upstream.Config)
		reason string
		local  bool
	}{
		"refused":                {url: "http://127.0.0.1:1", reason: "connection refused"},
		"unknown certificate":    {url: secure.URL, reason: "certificate"},
		"TLS to a plain server":  {url: strings.Replace(serve(t, text("HTTP/1.1 400 Bad Request\r\n\r\n")).url, "http:", "https:", 1), reason: "not sent"},
		"no handshake":           {url: "https://" + silent.Addr().String(), change: func(c *upstream.Config) { c.ConnectTimeout = 2 * time.Second }, reason: "handshake"},
		"no such name":           {url: "http://relayer.example:3000", change: dial(&net.DNSError{Err: "no such host", Name: "relayer.example", IsNotFound: true}), reason: "no such host"},
		"no route":               {url: "http://relayer.example:3000", change: dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), reason: "no route"},
		"no file descriptor":     {url: "http://relayer.example:3000", change: dial(os.NewSyscallError("socket", syscall.EMFILE)), reason: "too many open files", local: true},
		"no local port":          {url: "http://relayer.example:3000", change: dial(os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)), reason: "assign requested address", local: true},
		"a dial that never ends": {url: "http://relayer.example:3000", change: hangingDial, reason: "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var change []func(*upstream.Config)
			if c.change != nil {
				change = append(change, c.change)
			}
			got := open(t, c.url, change...).Submit(t.Context(), submission())
			result{outcome: upstream.NotDone, fault: !c.local, reason: c.reason}.check(t, got)
			require.Zero(t, got.Code)
		})
	}
}

func hangingDial(c *upstream.Config) {
	c.ConnectTimeout = 20 * time.Millisecond
	c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// failingConn fails to write the byte at a position.
type failingConn struct {
	net.Conn
	after int
	err   error
}

func (c *failingConn) Write(p []byte) (int, error) {
	if len(p) <= c.after {
		c.after -= len(p)
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:c.after])
	c.after = 0
	if err != nil {
		return n, err
	}
	return n, c.err
}

// hangingConn hangs in Write until it is closed, and then reports that everything was written.
type hangingConn struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (c *hangingConn) Write(p []byte) (int, error) {
	<-c.closed
	return len(p), nil
}

func (c *hangingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// The request is longer than its body, so that a request without its last bytes may still count as sent. Fewer bytes than
// the body has are certainly incomplete.
func TestSubmit_WriteFails_DependsOnTheBytesSent(t *testing.T) {
	t.Parallel()
	s := submission()
	s.Data = bytes.Repeat([]byte{7}, 50_000)
	const size = 100_000 // of the body, roughly
	for name, c := range map[string]struct {
		after int
		err   error
		want  upstream.Outcome
	}{
		"an error before the first byte": {0, syscall.EPIPE, upstream.NotDone},
		"an error in the middle":         {size / 2, syscall.ECONNRESET, upstream.NotDone},
		"an error after all":             {size + 200, syscall.ECONNRESET, upstream.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, respond("200 OK", acceptedBody))
			client := open(t, server.url, func(cfg *upstream.Config) {
				cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					under, err := new(net.Dialer).DialContext(ctx, network, address)
					return &failingConn{Conn: under, after: c.after, err: c.err}, err
				}
			})
			result{outcome: c.want, fault: true}.check(t, client.Submit(t.Context(), s))
		})
	}
}

// A write that is running when the time is up may still be sent, so all of it counts as sent.
func TestSubmit_Timeout_DependsOnTheBytesSent(t *testing.T) {
	t.Parallel()
	t.Run("after the request", func(t *testing.T) {
		t.Parallel()
		server := serve(t, func(net.Conn, *http.Request) { <-t.Context().Done() })
		got := open(t, server.url, timeouts(5*time.Second, 0)).Submit(t.Context(), submission())
		result{outcome: upstream.Unknown, fault: true, reason: "no answer in time"}.check(t, got)
	})
	t.Run("during a write", func(t *testing.T) {
		t.Parallel()
		server := serve(t, respond("200 OK", acceptedBody))
		client := open(t, server.url, timeouts(5*time.Second, 0), func(cfg *upstream.Config) {
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				under, err := new(net.Dialer).DialContext(ctx, network, address)
				return &hangingConn{Conn: under, closed: make(chan struct{})}, err
			}
		})
		result{outcome: upstream.Unknown, fault: true, reason: "no answer in time"}.check(t, client.Submit(t.Context(), submission()))
		require.Zero(t, server.count())
	})
	t.Run("during the body", func(t *testing.T) {
		t.Parallel()
		server := serve(t, func(c net.Conn, _ *http.Request) {
			_, _ = io.WriteString(c, head("200 OK", "Content-Length: "+itoa(len(acceptedBody)))+acceptedBody[:20])
			<-t.Context().Done()
		})
		got := open(t, server.url, timeouts(5*time.Second, 0)).Submit(t.Context(), submission())
		require.Equal(t, upstream.Unknown, got.Outcome)
		require.True(t, got.Fault)
	})
	t.Run("a slow stream", func(t *testing.T) {
		t.Parallel()
		server := serve(t, func(c net.Conn, _ *http.Request) {
			_, err := io.WriteString(c, head("200 OK"))
			for tick := time.NewTicker(5 * time.Millisecond); err == nil; <-tick.C {
				_, err = io.WriteString(c, " ")
			}
		})
		began := time.Now()
		got := open(t, server.url, timeouts(5*time.Second, 0)).Submit(t.Context(), submission())
		require.Equal(t, upstream.Unknown, got.Outcome)
		require.Less(t, time.Since(began), patience)
	})
}

// The caller's own end is not the relayer's fault.
func TestSubmit_Canceled_IsNoFault(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := serve(t, func(_ net.Conn, _ *http.Request) {
		cancel()
		<-t.Context().Done()
	})
	got := open(t, server.url).Submit(ctx, submission())
	result{outcome: upstream.Unknown, reason: "canceled"}.check(t, got)
	got = open(t, server.url).Submit(ctx, submission())
	result{outcome: upstream.NotDone, reason: "canceled"}.check(t, got)
	require.Equal(t, 1, server.count())
}

// net/http itself would repeat a request that has an Idempotency-Key, when a kept connection ends without a response.
func TestSubmit_KeptConnectionEnds_IsNotRepeated(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1)%2 == 0 {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = c.Close()
			}
			return
		}
		_, _ = io.WriteString(w, acceptedBody)
	})
	web := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
	done := make(chan error, 1)
	go func() { done <- web.Serve(l) }()
	t.Cleanup(func() {
		_ = web.Close()
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	client := open(t, "http://"+l.Addr().String())
	for i := range 6 {
		got := client.Submit(t.Context(), submission())
		if i%2 == 0 {
			require.Equal(t, upstream.Accepted, got.Outcome)
		} else {
			require.Equal(t, upstream.Unknown, got.Outcome)
		}
		require.EqualValues(t, i+1, requests.Load())
	}
}

// A kept connection that its server has closed before a byte was sent costs nothing: the request goes over another one.
func TestSubmit_KeptConnectionIsClosed_UsesAnother(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, acceptedBody) }))
	t.Cleanup(server.Close)
	var broken atomic.Bool // the next write on a kept connection fails
	client := open(t, server.URL, func(cfg *upstream.Config) {
		cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return &breakable{Conn: c, broken: &broken}, err
		}
	})
	require.Equal(t, upstream.Accepted, client.Submit(t.Context(), submission()).Outcome)
	broken.Store(true)
	require.Equal(t, upstream.Accepted, client.Submit(t.Context(), submission()).Outcome)
	require.False(t, broken.Load())
}

type breakable struct {
	net.Conn
	broken *atomic.Bool
}

func (c *breakable) Write(p []byte) (int, error) {
	if c.broken.CompareAndSwap(true, false) {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

func TestSubmit_TLS_IsVerified(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			_, _ = io.WriteString(w, acceptedBody)
		}
	}))
	server.Config.ErrorLog, server.EnableHTTP2 = quiet, true
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	client := open(t, server.URL, func(c *upstream.Config) { c.CAs = pool })
	require.Equal(t, upstream.Accepted, client.Submit(t.Context(), submission()).Outcome)
	got := open(t, strings.Replace(server.URL, "127.0.0.1", "localhost", 1), func(c *upstream.Config) { c.CAs = pool }).Submit(t.Context(), submission())
	require.Equal(t, upstream.NotDone, got.Outcome)
	require.Contains(t, got.Reason, "certificate")
}

// Under TLS the bytes that were sent are counted below the encryption.
func TestSubmit_TLSConnectionLost_IsUnknown(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = c.(*tls.Conn).NetConn().Close()
		}
	}))
	t.Cleanup(server.Close)
	pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	got := open(t, server.URL, func(c *upstream.Config) { c.CAs = pool }).Submit(t.Context(), submission())
	result{outcome: upstream.Unknown, fault: true}.check(t, got)
}

func TestNew_InvalidConfig_ReportsAllProblems(t *testing.T) {
	t.Parallel()
	for raw, problem := range map[string]string{
		"": "is one like", "relayer:3000": "is one like", "ftp://relayer": "begins with http", "http://": "is one like", "http://a b": "is one like",
		"http://user:secret@relayer": "no user and password", "http://relayer/?token=secret": "no query", "http://relayer/#x": "no fragment",
		"http://" + strings.Repeat("a", 3000): "at most", "http:relayer": "is one like", "//relayer": "begins with http", "http://relayer?": "no query",
	} {
		_, err := upstream.New(upstream.Config{URL: raw})
		require.ErrorContains(t, err, problem, raw)
		require.ErrorContains(t, err, "API key", raw)
		require.NotContains(t, err.Error(), "secret")
	}
	cfg := upstream.Config{URL: "http://relayer:3000//", Key: apiKey}
	client, err := upstream.New(cfg)
	require.NoError(t, err)
	require.Equal(t, "http://relayer:3000", client.URL())
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, errors.New(cfg.LogValue().String())), apiKey)
}

// A relayer that may be registered must be one that consumers accept, and the other way round.
func TestCheckURL_RelayersOfTheDirectory_AreAccepted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"http://relayer:3000", "https://relayer", "HTTPS://relayer/base/path", "http://[2001:db8::1]:3000/", "http://relayer/#",
		"http://relayer/" + strings.Repeat("x", rollcallv1.MaxURLBytes-len("http://relayer/")),
		"http://relayer/" + strings.Repeat("x", rollcallv1.MaxURLBytes), "http://relayer/?x=1", "http://relayer?", "http://relayer/#x",
		"grpc://relayer:1", "grpcs://relayer:1", "tcp://relayer:1", "ftp://relayer", "http://user@relayer", "http:relayer", "relayer:3000", "",
	} {
		s := &rollcallv1.Service{Id: "a", Kind: rollcallv1.KindRelayer, WorkerRef: &rollcallv1.WorkerRef{Url: url}}
		_, err := upstream.CheckURL(url)
		require.Equal(t, err == nil, len(s.Validate()) == 0, "%.60q: %v, %v", url, err, s.Validate())
	}
}
