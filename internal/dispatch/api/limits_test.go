package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// listing is a store whose lists block until the test ends them.
type listing struct {
	Store
	begun, end chan struct{}
}

func (*listing) Chain(context.Context) (uint64, error) { return 1, nil }

func (l *listing) List(context.Context, store.Filter) ([]*dispatch.Transaction, error) {
	l.begun <- struct{}{}
	<-l.end
	return nil, nil
}

func (l *listing) Get(context.Context, string, string) (*dispatch.Transaction, error) {
	return nil, dispatch.ErrNotFound
}

// handlerOf returns a handler with a store.
func handlerOf(t *testing.T, s Store) *Handler {
	t.Helper()
	h, err := NewHandler(Config{
		Keys: []apikey.Key{{Name: "shop", Key: shopKey}}, Secrets: []signature.Key{secret(t, newSecret)}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	h.Start(s, nil)
	return h
}

// Lists use only some of the database's connections, and bounded memory. Further ones wait for a moment, and are rejected.
func TestTransactions_Concurrent_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &listing{begun: make(chan struct{}, 2*maxLists), end: make(chan struct{})}
		end := sync.OnceFunc(func() { close(l.end) })
		defer end()
		h := handlerOf(t, l)
		get := func(ctx context.Context, path string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
			r.Header.Set("X-Api-Key", shopKey)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		codes := make(chan int, 2*maxLists)
		list := func() { codes <- get(t.Context(), "/relay/transactions").Code }
		for range maxLists + 1 {
			go list()
		}
		synctest.Wait()
		require.Len(t, l.begun, maxLists, "one waits")
		require.Equal(t, http.StatusNotFound, get(t.Context(), "/relay/status/x").Code, "not a list")
		require.Equal(t, http.StatusBadRequest, get(t.Context(), "/relay/transactions?limit=0").Code)
		l.end <- struct{}{}
		require.Equal(t, http.StatusOK, <-codes)
		synctest.Wait()
		require.Len(t, l.begun, maxLists+1, "the one that waited has begun")

		begun := time.Now()
		w := get(t.Context(), "/relay/transactions")
		require.Equal(t, acquireTimeout, time.Since(begun))
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.JSONEq(t, `{"error": {"code": "rate_limited",
			"message": "limit of concurrent lists of transactions exceeded: try again after the seconds of Retry-After"}}`, w.Body.String())

		gone, cancel := context.WithCancel(t.Context())
		go func() { codes <- get(gone, "/relay/transactions").Code }()
		synctest.Wait()
		cancel()
		require.Equal(t, http.StatusTooManyRequests, <-codes, "the client has gone")
		end()
		for range maxLists {
			require.Equal(t, http.StatusOK, <-codes)
		}
		require.Empty(t, h.lists)
	})
}

// large is a store whose list exceeds the buffers between server and client.
type large struct{ Store }

func (large) Chain(context.Context) (uint64, error) { return 1, nil }

func (large) List(context.Context, store.Filter) ([]*dispatch.Transaction, error) {
	list := make([]*dispatch.Transaction, maxPage)
	for i := range list {
		list[i] = &dispatch.Transaction{ID: uuid.Must(uuid.NewV7()), Call: dispatch.Call{Value: new(big.Int), Data: make([]byte, maxData/2)}}
	}
	return list, nil
}

// serveLarge starts a server of large lists.
func serveLarge(t *testing.T, slowReader time.Duration) (*Handler, net.Addr) {
	t.Helper()
	h := handlerOf(t, large{})
	h.slowReaderTimeout = slowReader
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return h, s.Listener.Addr()
}

// requestList asks for a list on a new connection, and reads nothing of the response.
func requestList(t *testing.T, to net.Addr) *bufio.Reader {
	t.Helper()
	dialed, err := new(net.Dialer).DialContext(t.Context(), "tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = dialed.Close() })
	conn, ok := dialed.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, conn.SetReadBuffer(64<<10))
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "GET /relay/transactions?limit=%d HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\n\r\n", maxPage, shopKey)
	require.NoError(t, err)
	return bufio.NewReader(conn)
}

// A list counts until its client has read it.
func TestTransactions_SlowReader_CountsUntilItHasRead(t *testing.T) {
	t.Parallel()
	h, addr := serveLarge(t, time.Hour)
	slow := requestList(t, addr)
	_, err := slow.Peek(1) // the response has begun
	require.NoError(t, err)
	require.Len(t, h.lists, 1)
	resp, err := http.ReadResponse(slow, nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.Equal(t, resp.ContentLength, n)
	require.Eventually(t, func() bool { return len(h.lists) == 0 }, 2*time.Minute, time.Millisecond)
}

// A client that does not read its list is cut off, so that others get theirs.
func TestTransactions_TooSlowReader_IsCutOff(t *testing.T) {
	t.Parallel()
	h, addr := serveLarge(t, 2*time.Second)
	slow := requestList(t, addr)
	_, err := slow.Peek(1)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(h.lists) == 0 }, 2*time.Minute, 5*time.Millisecond)
	resp, err := http.ReadResponse(slow, nil)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
	}
	require.Error(t, err)
}
