package e2e

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// relayer answers health checks, and can be set to fail. It records the times of requests.
type relayer struct {
	t    testing.TB
	id   string
	addr string

	mu     sync.Mutex
	server *http.Server
	code   int
	hang   bool
	asked  []time.Time
	header http.Header // of the last request
}

// startRelayer starts a healthy relayer on its own port.
func startRelayer(t testing.TB, id string) *relayer {
	for {
		if r := tryRelayer(t, id, freePort(t)); r != nil { // nil: the port was taken meanwhile
			return r
		}
	}
}

// tryRelayer starts a healthy relayer on the port; nil if the port is taken.
func tryRelayer(t testing.TB, id string, port int) *relayer {
	return tryRelayerAt(t, id, fmt.Sprintf("127.0.0.1:%d", port))
}

func tryRelayerAt(t testing.TB, id, addr string) *relayer {
	r := &relayer{t: t, id: id, addr: addr, code: http.StatusOK}
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		return nil
	}
	r.serve(l)
	t.Cleanup(r.crash)
	return r
}

func (r *relayer) url() string { return "http://" + r.addr }

// start listens again after a crash.
func (r *relayer) start() {
	l, err := net.Listen("tcp", r.addr)
	require.NoError(r.t, err)
	r.serve(l)
}

func (r *relayer) serve(l net.Listener) {
	s := &http.Server{Handler: r, ReadHeaderTimeout: time.Second}
	r.mu.Lock()
	r.server = s
	r.mu.Unlock()
	go func() { _ = s.Serve(l) }() // ends with crash
}

// crash closes the port and every connection.
func (r *relayer) crash() {
	r.mu.Lock()
	s := r.server
	r.mu.Unlock()
	_ = s.Close()
}

// answer sets the status code of all later answers.
func (r *relayer) answer(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.code, r.hang = code, false
}

// stopAnswering accepts requests and answers none.
func (r *relayer) stopAnswering() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hang = true
}

// times returns the times of the requests.
func (r *relayer) times() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.asked...)
}

func (r *relayer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.asked = append(r.asked, time.Now())
	r.header = req.Header
	code, hang := r.code, r.hang
	r.mu.Unlock()
	if hang {
		<-req.Context().Done()
		return
	}
	w.WriteHeader(code)
}
