package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
)

// hoard is a node with large answers.
type hoard struct {
	arrived  chan struct{}
	released chan struct{}
	links    chan net.Conn // its clients' websockets
}

// ChainId serves eth_chainId.
func (hoard) ChainId() hexutil.Uint64 { return simulatedID }

// SendRawTransaction serves eth_sendRawTransaction like eth_wait.
func (h hoard) SendRawTransaction(ctx context.Context) string { return h.Wait(ctx) }

// Blob serves eth_blob: an answer of the requested length.
func (hoard) Blob(n int) string { return strings.Repeat("x", n) }

// Wait serves eth_wait: an answer that comes when the test releases it.
func (h hoard) Wait(ctx context.Context) string {
	h.arrived <- struct{}{}
	select {
	case <-h.released:
	case <-ctx.Done():
	}
	return "waited"
}

// openHoard returns a client of a new hoard over a websocket.
func openHoard(t *testing.T) (hoard, *Client) {
	t.Helper()
	node := hoard{arrived: make(chan struct{}, 10), released: make(chan struct{}), links: make(chan net.Conn, 10)}
	server := rpc.NewServer()
	require.NoError(t, server.RegisterName("eth", node))
	srv := httptest.NewUnstartedServer(server.WebsocketHandler([]string{"*"}))
	srv.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateHijacked {
			node.links <- c
		}
	}
	srv.Start()
	t.Cleanup(func() {
		server.Stop()
		srv.Close()
	})
	return node, open(t, Config{Endpoints: []string{strings.Replace(srv.URL, "http", "ws", 1)}, MaxResponse: 10_000, Timeout: patient})
}

// wait calls eth_wait, and returns where its error will arrive.
func (h hoard) wait(t *testing.T, c *Client) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		result, err := c.Call(t.Context(), "eth_wait", nil)
		if err == nil && string(result) != `"waited"` {
			t.Errorf("got %s", result)
		}
		ended <- err
	}()
	<-h.arrived
	return ended
}

// An answer above the limit closes the websocket. Its caller receives ErrTooLarge, alone or in a batch. Concurrent
// callers still receive their answers.
func TestWebsocket_ResponseTooLarge_OnlyItsCallerFails(t *testing.T) {
	t.Parallel()
	node, c := openHoard(t)
	beside := node.wait(t, c)
	_, err := c.Call(t.Context(), "eth_blob", json.RawMessage(`[20000]`))
	require.ErrorIs(t, err, ErrTooLarge)
	<-node.arrived
	close(node.released)
	require.NoError(t, <-beside)
	_, err = c.endpoints[0].ask(t.Context(), oneTooLarge)
	require.ErrorIs(t, err, ErrTooLarge)
	result, err := c.Call(t.Context(), "eth_blob", json.RawMessage(`[3]`))
	require.NoError(t, err)
	require.JSONEq(t, `"xxx"`, string(result))
}

// oneTooLarge is a batch whose answer is above the limit.
var oneTooLarge = []call{{method: "eth_blob", params: []any{1}}, {method: "eth_blob", params: []any{20_000}}}

// faultyConn is a connection whose next write can be replaced.
type faultyConn struct {
	net.Conn
	write atomic.Pointer[func(net.Conn, []byte) (int, error)]
}

func (c *faultyConn) Write(p []byte) (int, error) {
	if write := c.write.Swap(nil); write != nil {
		return (*write)(c.Conn, p)
	}
	return c.Conn.Write(p)
}

// busy writes as on a machine that continues with a writer only after the client has dealt with the reader's error.
func busy(c net.Conn, p []byte) (int, error) {
	n, err := c.Write(p)
	stacks := make([]byte, 4<<20)
	// Before it closes the websocket, the client ends the waiting calls.
	ended := func() bool {
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("rpc.(*websocketCodec).close("))
	}
	for began := time.Now(); err == nil && time.Since(began) < patient && !ended(); {
		runtime.Gosched()
	}
	return n, err
}

func fails(net.Conn, []byte) (int, error) { return 0, syscall.EPIPE }

func TestWebsocket_ClosesDuringAWrite_CallersGetTheirAnswers(t *testing.T) {
	// Not parallel: other clients must not close a websocket.
	single := oneTooLarge[1:]
	for name, test := range map[string]struct {
		write func(net.Conn, []byte) (int, error)
		calls []call
	}{
		"before it returns":           {busy, single},
		"before it returns, in batch": {busy, oneTooLarge},
		"before it begins":            {fails, single},
		"before it begins, in batch":  {fails, oneTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			node, c := openHoard(t)
			ws := c.endpoints[0].conn.(*wsConn)
			first, dial := new(faultyConn), ws.dialTCP
			ws.dialTCP = func(ctx context.Context, network, address string) (net.Conn, error) {
				tcp, err := dial(ctx, network, address)
				if first.Conn == nil {
					first.Conn, tcp = tcp, first
				}
				return tcp, err
			}
			beside := node.wait(t, c)
			first.write.Store(&test.write)
			_, err := c.endpoints[0].ask(t.Context(), test.calls)
			require.ErrorIs(t, err, ErrTooLarge)
			<-node.arrived
			close(node.released)
			require.NoError(t, <-beside)
		})
	}
}

func TestWebsocket_NodeCloses_TheNextCallDials(t *testing.T) {
	t.Parallel()
	node, c := openHoard(t)
	for range 3 {
		result, err := c.Call(t.Context(), "eth_blob", json.RawMessage(`[3]`))
		require.NoError(t, err)
		require.JSONEq(t, `"xxx"`, string(result))
		require.NoError(t, (<-node.links).Close())
		<-c.endpoints[0].conn.(*wsConn).shared.ctx.Done()
	}
}

// The second attempt's refusal would hide that the node may have the transaction.
func TestWebsocket_ClosesWhileATransactionIsSent_SendsItOnce(t *testing.T) {
	t.Parallel()
	node, c := openHoard(t)
	beside := node.wait(t, c)
	sent := make(chan error, 1)
	go func() {
		_, err := c.endpoints[0].ask(t.Context(), []call{{method: sendMethod}})
		sent <- err
	}()
	<-node.arrived
	_, err := c.Call(t.Context(), "eth_blob", json.RawMessage(`[20000]`))
	require.ErrorIs(t, err, ErrTooLarge)
	e, ok := errors.AsType[*TransportError](<-sent)
	require.True(t, ok)
	require.True(t, e.Sent)
	<-node.arrived // eth_wait, repeated
	close(node.released)
	require.NoError(t, <-beside)
	require.Empty(t, node.arrived)
}

func TestWebsocket_ClosesAgainAndAgain_NoCallWaitsForItsTimeout(t *testing.T) {
	t.Parallel()
	node, c := openHoard(t)
	var calls sync.WaitGroup
	ended := make(chan struct{})
	for range 8 {
		calls.Go(func() {
			for range 100 {
				_, err := c.endpoints[0].ask(t.Context(), []call{{method: "eth_blob", params: []any{3}}})
				if errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
		})
	}
	go func() { calls.Wait(); close(ended) }()
	for {
		select {
		case link := <-node.links:
			_ = link.Close() // its client may have closed it
		case <-ended:
			return
		}
	}
}
