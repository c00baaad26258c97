package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// running is a server on a real socket.
func running(t *testing.T, a *api) *httpserver.Server {
	t.Helper()
	s, err := Open(t.Context(), "127.0.0.1:0", a.handler)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
		require.NoError(t, s.Close())
	})
	return s
}

func client(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestServer_ConcurrentClients(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *Config) { c.Logger = nil })
	s, c := running(t, a), client(t)
	var wg sync.WaitGroup
	errs := make(chan error, 16*20)
	for worker := range 16 {
		wg.Go(func() {
			for i := range 20 {
				errs <- post(t.Context(), c, s.Addr(), fmt.Sprintf(`"0x%x"`, i), fmt.Sprintf("%d-%d", worker%8, i))
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, a.txs, 8*20)
}

func post(ctx context.Context, c *http.Client, at net.Addr, value, key string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.String()+poolTransactions, strings.NewReader(submission(value)))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.Header.Set(idempotencyKey, key)
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var e openzeppelin.Envelope[openzeppelin.Transaction]
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		return err
	}
	if e.Data == nil || e.Data.Value != strings.Trim(value, `"`) || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: answered %d %+v", value, resp.StatusCode, e)
	}
	return nil
}

// A connection without a valid key is closed after its 401, so that it does not keep a slot that callers need.
func TestUnauthorized_ClosesConnection(t *testing.T) {
	t.Parallel()
	s := running(t, setup(t))
	for name, request := range map[string]string{
		"get":  "GET /api/v1/relayers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer unknown\r\n\r\n",
		"none": "GET /api/v1/relayers HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
		"post": "POST " + poolTransactions + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer unknown\r\nContent-Length: 2\r\n\r\n{}",
	} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(idleTimeout/3)))
		_, err = io.WriteString(conn, request)
		require.NoError(t, err)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err, name)
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode, name)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.True(t, resp.Close, name)
		_, err = r.ReadByte()
		require.ErrorIs(t, err, io.EOF, "%s: the server closes it", name)
		require.NoError(t, conn.Close())
	}
}

func TestServer_BodyTooLarge_IsNotRead(t *testing.T) {
	t.Parallel()
	s := running(t, setup(t))
	for name, head := range map[string]string{
		"announced": "Content-Length: 10485760\r\n\r\n",
		"chunked":   "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat(" ", 2<<20) + "\r\n",
	} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s", poolTransactions, testKey, head)
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, name)
		require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, name)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(body), `"success":false`)
		require.True(t, resp.Close, name)
		require.NoError(t, conn.Close())
	}
}

func TestServer_ClientSendsWholeBodyFirst_GetsResponse(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.handler.ignoreTimeout = time.Minute // a client may take longer than the product's on a busy machine
	s := running(t, a)
	zeros := strings.Repeat("0", 1<<20)
	for _, keep := range []string{"keep-alive", "close"} {
		for _, chunked := range []bool{false, true} {
			for _, c := range []struct{ megabytes, code int }{{10, 413}, {15, 413}, {10, 401}} {
				name := fmt.Sprintf("%+v, chunked %v, %s", c, chunked, keep)
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr().String())
				require.NoError(t, err, name)
				require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
				key, encoding, begin, end := testKey, fmt.Sprintf("Content-Length: %d", c.megabytes<<20), "", ""
				if chunked {
					encoding, begin, end = "Transfer-Encoding: chunked", "100000\r\n", "\r\n"
				}
				if c.code == 401 {
					key = "unknown"
				}
				_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: %s\r\n%s\r\n\r\n",
					poolTransactions, key, keep, encoding)
				require.NoError(t, err, name)
				for range c.megabytes {
					_, err = io.WriteString(conn, begin+zeros+end)
					require.NoError(t, err, name)
				}
				if chunked {
					_, err = io.WriteString(conn, "0\r\n\r\n")
					require.NoError(t, err, name)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err, name)
				require.Equal(t, c.code, resp.StatusCode, name)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err, name)
				require.Contains(t, string(body), `"success":false`, name)
				require.NoError(t, conn.Close())
			}
		}
	}
}

func TestServer_EndlessBody_ClosesConnection(t *testing.T) {
	t.Parallel()
	s := running(t, setup(t))
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n", poolTransactions, testKey)
	require.NoError(t, err)
	chunk := "100000\r\n" + strings.Repeat("0", 1<<20) + "\r\n"
	for sent := 0; err == nil; sent++ {
		require.Less(t, sent, 100, "the server reads and buffers less")
		_, err = io.WriteString(conn, chunk)
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestServer_ClientStopsSending_ClosesConnection(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(drainBody(setup(t).handler, 200*time.Millisecond))
	s.Config.ReadTimeout = time.Hour
	s.Start()
	defer s.Close()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\n\r\n", poolTransactions)
	require.NoError(t, err)
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(all), "401 Unauthorized")
}

func TestServer_HeadersTooLarge_431(t *testing.T) {
	t.Parallel()
	s, c := running(t, setup(t)), client(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr().String()+"/api/v1/health", nil)
	require.NoError(t, err)
	r.Header.Set("X-Much", strings.Repeat("x", 64<<10))
	resp, err := c.Do(r)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
}

func TestOpen_AddressInUse_Fails(t *testing.T) {
	t.Parallel()
	a := setup(t)
	s := running(t, a)
	_, err := Open(t.Context(), s.Addr().String(), a.handler)
	require.ErrorContains(t, err, "listen for HTTP")

	closed, err := Open(t.Context(), "127.0.0.1:0", a.handler)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	require.Error(t, closed.Run(t.Context()))
}

func TestServer_Stop_FinishesRunningRequests(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *Config) { c.Logger = nil })
	begun, finish := make(chan struct{}), make(chan struct{})
	a.handler.service = &slow{fake: a.fake, begun: begun, finish: finish}
	s, err := Open(t.Context(), "127.0.0.1:0", a.handler)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ran, posted := make(chan error, 1), make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	c := client(t)
	go func() { posted <- post(t.Context(), c, s.Addr(), `"0x5"`, "k") }()
	<-begun
	stop()
	close(finish)
	require.NoError(t, <-posted)
	require.NoError(t, <-ran)
	require.NoError(t, s.Close())
}

// slow is a relayer whose submissions are slow.
type slow struct {
	*fake
	begun, finish chan struct{}
}

func (s *slow) Submit(ctx context.Context, sub relayer.Submission) (*relayer.Transaction, error) {
	close(s.begun)
	<-s.finish
	return s.fake.Submit(ctx, sub)
}

func TestServer_IdleConnections_DoNotBlockHealth(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *Config) { c.Logger = nil })
	s, c := running(t, a), client(t)
	for range maxConnections {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(conn, "GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.False(t, resp.Close)
	}
	// The timeout is far below the limit of idle connections.
	ctx, cancel := context.WithTimeout(t.Context(), idleTimeout/3)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr().String()+"/health", nil)
	require.NoError(t, err)
	resp, err := c.Do(r)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, post(t.Context(), c, s.Addr(), `"0x5"`, "k"))
}

func TestServer_Overloaded_AnswersHealthOnly(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for path, code := range map[string]int{"/health": 200, "/api/v1/health": 200, "/api/v1/relayers": 503, "/": 503} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+testKey)
		w := httptest.NewRecorder()
		a.handler.overloaded(w, r)
		require.Equal(t, code, w.Code, path)
		if code == 503 {
			require.Contains(t, *read(t, w, 503).Error, "nothing was stored")
			require.Equal(t, "1", w.Header().Get("Retry-After"))
		}
	}
}
