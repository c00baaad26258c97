package httpserver

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a server with a page that answers when the test releases it.
type site struct {
	t     *testing.T
	s     *Server
	begun chan struct{}
	end   chan struct{}
}

func start(t *testing.T, connections int) *site {
	t.Helper()
	w := &site{t: t, begun: make(chan struct{}, 1000), end: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/slow", func(http.ResponseWriter, *http.Request) {
		w.begun <- struct{}{}
		<-w.end
	})
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	var err error
	w.s, err = Open(t.Context(), Config{
		Listen: "127.0.0.1:0", Connections: connections, Stop: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
		HTTP: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute},
		Overloaded: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				mux.ServeHTTP(out, r)
				return
			}
			out.WriteHeader(http.StatusServiceUnavailable)
		}),
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
		require.NoError(t, w.s.Close())
		require.NoError(t, w.s.Close())
	})
	return w
}

// dial opens a connection, which is closed before the server is.
func (w *site) dial() net.Conn {
	w.t.Helper()
	c, err := new(net.Dialer).DialContext(w.t.Context(), "tcp", w.s.Addr().String())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	require.NoError(w.t, c.SetDeadline(time.Now().Add(2*time.Minute)))
	return c
}

func (w *site) ask(c net.Conn, path string) {
	w.t.Helper()
	_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(w.t, err)
}

func (w *site) answer(c net.Conn) *http.Response {
	w.t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(w.t, err)
	require.NoError(w.t, r.Body.Close())
	return r
}

func TestListener_Full_ClosesLongestIdleConnection(t *testing.T) {
	t.Parallel()
	w := start(t, 3)
	silent, kept, busy := w.dial(), w.dial(), w.dial()
	w.ask(busy, "/slow")
	<-w.begun
	w.ask(kept, "/")
	require.False(t, w.answer(kept).Close)
	require.Eventually(t, func() bool { // the server learns of the connection a moment after the client
		w.s.listener.mu.Lock()
		defer w.s.listener.mu.Unlock()
		return w.s.listener.idle.Len() == 2
	}, 2*time.Minute, time.Millisecond)
	// The connection that has never sent anything is replaced first, and then the one that has been answered.
	for _, next := range []net.Conn{silent, kept} {
		fresh := w.dial()
		w.ask(fresh, "/slow")
		<-w.begun
		_, err := next.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	close(w.end)
	require.Equal(t, http.StatusOK, w.answer(busy).StatusCode, "one with a request stays")
}

func TestListener_BeyondLimit_AnswersEachOnce(t *testing.T) {
	t.Parallel()
	w := start(t, 40) // and two extra connections
	var busy []net.Conn
	for range 40 {
		c := w.dial()
		w.ask(c, "/slow")
		<-w.begun
		busy = append(busy, c)
	}
	for range 10 {
		c := w.dial()
		w.ask(c, "/")
		r := w.answer(c)
		require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
		require.True(t, r.Close)
	}
	var extra []net.Conn
	for range 2 { // one after the other, because an idle one would be replaced
		c := w.dial()
		w.ask(c, "/slow")
		<-w.begun
		extra = append(extra, c)
	}
	waiting := w.dial()
	w.ask(waiting, "/")
	close(w.end) // now a slot is free again
	require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, w.answer(waiting).StatusCode)
	for _, c := range append(busy, extra...) {
		require.Equal(t, http.StatusOK, w.answer(c).StatusCode)
	}
	last := w.dial()
	w.ask(last, "/")
	require.Equal(t, http.StatusOK, w.answer(last).StatusCode)
}

func TestListener_ConnectionWaits_CloseDoesNotBlock(t *testing.T) {
	t.Parallel()
	socket, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := newListener(socket, 1)
	var taken []net.Conn
	for range 2 { // one, and one extra
		go func() { _, _ = net.Dial("tcp", socket.Addr().String()) }()
		c, err := l.Accept()
		require.NoError(t, err)
		taken = append(taken, c)
	}
	client, err := net.Dial("tcp", socket.Addr().String())
	require.NoError(t, err)
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
	require.NoError(t, client.Close())
	for _, c := range taken {
		require.NoError(t, c.Close())
		_ = c.Close()
	}
	require.Zero(t, l.open+l.extra)
}
