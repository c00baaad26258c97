package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// asking is a relayer whose nodes respond when the test lets them.
type asking struct {
	*fake
	begun, end chan struct{}
}

func (q *asking) RPC(ctx context.Context, id, method string, params json.RawMessage) (json.RawMessage, error) {
	q.begun <- struct{}{}
	<-q.end
	return q.fake.RPC(ctx, id, method, params)
}

const oneCall = `{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{}]}`

// Concurrent calls of nodes are limited, because their responses are large, and in memory until they are written.
func TestRPC_ConcurrentCalls_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spent := 0
		a := setup(t, func(c *Config) { c.Limit = func(_ string, calls int) error { spent += calls; return nil } })
		q := &asking{fake: a.fake, begun: make(chan struct{}), end: make(chan struct{})}
		a.handler.service = q
		codes := make(chan int, 2*maxRPCs)
		ask := func() { codes <- a.serve("POST", poolRPC, oneCall).Code }
		for range maxRPCs {
			go ask()
			<-q.begun
		}
		go ask() // waits
		synctest.Wait()
		require.Equal(t, 200, a.serve("POST", poolTransactions, submission("1")).Code)
		require.Equal(t, 200, a.serve("GET", poolTransactions, "").Code)
		q.end <- struct{}{}
		require.Equal(t, 200, <-codes)
		<-q.begun // the one that waited

		before := spent
		w := a.serve("POST", poolRPC, oneCall)
		require.Equal(t, 429, w.Code)
		require.Contains(t, w.Body.String(), "too many calls of nodes at once: try again in 1 s")
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, before, spent, "a rejected call is not counted")
		close(q.end)
		for range maxRPCs {
			require.Equal(t, 200, <-codes)
		}
		require.Empty(t, a.handler.rpcs.taken)
	})
}

// takeAllSlots starts a server with one slot, whose responses to calls and lists exceed the buffers between server and
// client.
func takeAllSlots(t *testing.T, patience time.Duration) (taken chan struct{}, addr net.Addr) {
	a := setup(t, func(c *Config) { c.Logger = nil })
	a.handler.lists = newSemaphore(1, "full")
	a.handler.rpcs, a.handler.slowReaderTimeout = a.handler.lists, patience
	a.rpcResult = json.RawMessage(`"` + strings.Repeat("0", maxAnswers-2) + `"`)
	for range maxPerPage / 2 { // 12 MB, more than the buffers of a connection
		a.txs = append(a.txs, &relayer.Transaction{Status: relayer.Allocated, Request: relayer.Request{Data: make([]byte, 127<<10)}})
	}
	return a.handler.lists.taken, running(t, a).Addr()
}

// request sends a request on a new connection without reading the response.
func request(t *testing.T, to net.Addr, head, body string) *net.TCPConn {
	t.Helper()
	dialed, err := new(net.Dialer).DialContext(t.Context(), "tcp", to.String())
	require.NoError(t, err)
	conn, ok := dialed.(*net.TCPConn)
	require.True(t, ok)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadBuffer(64<<10))
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Minute))) // encoding takes long with the race detector
	_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", head, testKey, len(body), body)
	require.NoError(t, err)
	return conn
}

var bounded = []struct {
	head, body string
}{
	{"POST " + poolRPC, oneCall},
	{"GET " + poolTransactions + "?per_page=100", ""},
}

// length reads a response and returns its length.
func length(t *testing.T, conn io.Reader) (read int64, err error) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	require.Equal(t, 200, resp.StatusCode)
	read, err = io.Copy(io.Discard, resp.Body)
	if err == nil {
		require.Equal(t, resp.ContentLength, read)
	}
	return read, err
}

// A slot is held until the response is written.
func TestLimits_SlowReader_KeepsItsSlot(t *testing.T) {
	t.Parallel()
	for _, b := range bounded {
		taken, addr := takeAllSlots(t, time.Hour)
		slow := request(t, addr, b.head, b.body)
		require.Eventually(t, func() bool { return len(taken) == 1 }, 2*time.Minute, time.Millisecond)
		resp, err := http.ReadResponse(bufio.NewReader(request(t, addr, b.head, b.body)), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 429, resp.StatusCode, b.head)
		_, err = length(t, slow)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(taken) == 0 }, 2*time.Minute, time.Millisecond)
		_, err = length(t, request(t, addr, b.head, b.body))
		require.NoError(t, err)
	}
}

// The slot of a slow reader is released after the timeout.
func TestLimits_TooSlowReader_IsCutOff(t *testing.T) {
	t.Parallel()
	for _, b := range bounded {
		taken, addr := takeAllSlots(t, 2*time.Second)
		slow := bufio.NewReader(request(t, addr, b.head, b.body))
		_, err := slow.Peek(1) // the slot is taken when the response begins
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(taken) == 0 }, writeTimeout-10*time.Second, time.Millisecond)
		_, err = length(t, slow)
		require.Error(t, err, b.head)
	}
}
