package upstream_test

import (
	"bufio"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
)

const (
	apiKey   = "api-key-of-these-tests-0123456789abcdef"
	patience = 2 * time.Minute
)

// server serves raw connections: respond gets each request, completely read, and writes what it wants.
type server struct {
	url string

	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

// serve starts a server; ends after the response close the connection.
func serve(t testing.TB, respond func(c net.Conn, r *http.Request)) *server {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{url: "http://" + l.Addr().String()}
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			running.Go(func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				s.mu.Lock()
				s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
				s.mu.Unlock()
				respond(c, r)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return s
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// respond returns a responder with a status line, headers and a body, and an exact length.
func respond(status, body string, headers ...string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) {
		_, _ = io.WriteString(c, head(status, append(headers, "Content-Length: "+itoa(len(body)))...)+body)
	}
}

func head(status string, headers ...string) string {
	return "HTTP/1.1 " + status + "\r\n" + strings.Join(append(headers, "Connection: close"), "\r\n") + "\r\n\r\n"
}

func itoa(n int) string { return big.NewInt(int64(n)).String() }

func open(t testing.TB, url string, change ...func(*upstream.Config)) *upstream.Client {
	t.Helper()
	cfg := upstream.Config{URL: url, Key: apiKey}
	for _, c := range change {
		c(&cfg)
	}
	c, err := upstream.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func timeouts(submit, read time.Duration) func(*upstream.Config) {
	return func(c *upstream.Config) { c.SubmitTimeout, c.ReadTimeout = submit, read }
}

func submission() upstream.Submission {
	return upstream.Submission{
		RelayerID: "relayer-1", IdempotencyKey: "key-1", To: &receiver, Value: big.NewInt(1), Data: []byte{1, 2, 3}, GasLimit: 100_000, Speed: "average",
	}
}

var quiet = log.New(io.Discard, "", 0)
