package service_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
)

// asked gives the pool its own node for callers' requests, with a settable handler.
func (f *fixture) asked(t *testing.T, answer *atomic.Pointer[http.HandlerFunc]) *relayertest.Relayer {
	t.Helper()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) }))
	t.Cleanup(node.Close)
	id, err := f.chain.Client().ChainID(t.Context())
	require.NoError(t, err)
	client, err := evm.Open(evm.Config{ChainID: id.Uint64(), Endpoints: []string{node.URL}, MaxResponse: 10_000})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return f.start(t, func(c *service.Config) { c.RPCProxy = client })
}

// A node's error is returned without the node's name. Without a node the relayer is unavailable.
func TestRPC_Callers_AnsweredOrUnavailable(t *testing.T) {
	f := setup(t, 2)
	var answer atomic.Pointer[http.HandlerFunc]
	at, err := url.Parse(f.chain.URL())
	require.NoError(t, err)
	node := httputil.NewSingleHostReverseProxy(at)
	behave := func(result string) {
		answer.Store(new(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil && !strings.Contains(string(body), "eth_call") {
				r.Body = io.NopCloser(bytes.NewReader(body))
				node.ServeHTTP(w, r)
				return
			}
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,` + result + `}`))
		})))
	}
	behave(`"result":"0x1"`)
	r := f.asked(t, &answer)
	call := func() (json.RawMessage, error) {
		return r.RPC(t.Context(), relayertest.PoolID, "eth_call", json.RawMessage(`[{}]`))
	}
	result, err := call()
	require.NoError(t, err)
	require.Equal(t, `"0x1"`, string(result))

	behave(`"error":{"code":3,"message":"execution reverted","data":"0x08c379a0"}`)
	_, err = call()
	require.Equal(t, &relayer.RPCError{
		Code: 3, Message: "execution reverted", Description: "the node answered with an error", Data: json.RawMessage(`"0x08c379a0"`),
	}, err)

	behave(`"result":"0x` + strings.Repeat("0", 20_000) + `"`)
	_, err = call()
	var failed *relayer.RPCError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, relayer.RPCTooLarge, failed.Code)

	answer.Store(new(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })))
	_, err = call()
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	answer.Store(new(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })))
	_, err = call()
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	_, err = r.Balance(t.Context(), relayertest.PoolID)
	require.ErrorIs(t, err, relayer.ErrUnavailable, "a balance is asked of the same nodes")
}

// A pool's minimum balance is that of its keys. A relayer's name is its id: a patch may contain it, and no other name.
func TestUpdate_OwnName_IsAccepted(t *testing.T) {
	f := setup(t, 2)
	r := f.start(t, func(c *service.Config) { c.MinBalance = big.NewInt(7) })
	key := strings.ToLower(f.ring.Addresses()[1].Hex())
	for _, id := range []string{relayertest.PoolID, key} {
		_, err := r.Update(t.Context(), id, "test", relayer.Patch{Name: new(id), Paused: new(false)})
		require.NoError(t, err)
		for _, name := range []string{"", "other"} {
			_, err = r.Update(t.Context(), id, "test", relayer.Patch{Name: &name, Paused: new(true)})
			var invalid *relayer.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "name", invalid.Field)
		}
		found, err := r.Relayer(t.Context(), id)
		require.NoError(t, err)
		require.False(t, found.Paused)
		require.Equal(t, int64(7), found.MinBalance.Int64())
	}
	var patch relayer.Patch
	patch.MinBalance.Set, patch.MinBalance.Value = true, big.NewInt(5)
	_, err := r.Update(t.Context(), key, "test", patch)
	require.NoError(t, err)
	found, err := r.Relayer(t.Context(), relayertest.PoolID)
	require.NoError(t, err)
	require.Equal(t, int64(5), found.MinBalance.Int64(), "the lowest")
}
