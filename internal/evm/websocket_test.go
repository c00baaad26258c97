package evm

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
)

// hoard is a node with large answers.
type hoard struct {
	arrived  chan struct{}
	released chan struct{}
}

// ChainId serves eth_chainId.
func (hoard) ChainId() hexutil.Uint64 { return simulatedID }

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

// An answer above the limit closes the websocket. Its caller receives ErrTooLarge, alone or in a batch. Concurrent
// callers still receive their answers.
func TestWebsocket_ResponseTooLarge_OnlyItsCallerFails(t *testing.T) {
	t.Parallel()
	node := hoard{arrived: make(chan struct{}, 10), released: make(chan struct{})}
	server := rpc.NewServer()
	require.NoError(t, server.RegisterName("eth", node))
	srv := httptest.NewServer(server.WebsocketHandler([]string{"*"}))
	t.Cleanup(func() {
		server.Stop()
		srv.Close()
	})
	c := open(t, Config{Endpoints: []string{strings.Replace(srv.URL, "http", "ws", 1)}, MaxResponse: 10_000, Timeout: patient})
	beside := make(chan error, 1)
	go func() {
		result, err := c.Call(t.Context(), "eth_wait", nil)
		if err == nil && string(result) != `"waited"` {
			t.Errorf("got %s", result)
		}
		beside <- err
	}()
	<-node.arrived
	_, err := c.Call(t.Context(), "eth_blob", json.RawMessage(`[20000]`))
	require.ErrorIs(t, err, ErrTooLarge)
	<-node.arrived
	close(node.released)
	require.NoError(t, <-beside)
	blobs := []call{{method: "eth_blob", params: []any{1}}, {method: "eth_blob", params: []any{20_000}}}
	_, err = c.endpoints[0].ask(t.Context(), blobs)
	require.ErrorIs(t, err, ErrTooLarge)
	result, err := c.Call(t.Context(), "eth_blob", json.RawMessage(`[3]`))
	require.NoError(t, err)
	require.JSONEq(t, `"xxx"`, string(result))
}
