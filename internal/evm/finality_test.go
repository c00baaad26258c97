package evm

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

func TestFinalOf_TagOrDepth_IsOneBlockOfTheEndpoint(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL(), "http://127.0.0.1:1"}})
	ep := c.Status().Endpoints[0].Endpoint
	hashes := map[uint64]common.Hash{}
	for head := uint64(0); head < 40; {
		hash := s.Commit()
		h, err := s.Client().HeaderByHash(t.Context(), hash)
		require.NoError(t, err)
		head = h.Number.Uint64()
		hashes[head] = hash
	}
	for _, test := range []struct {
		f      Finality
		number uint64
		found  bool
	}{
		{Finality{Tag: "finalized"}, 32, true},
		{Finality{Depth: 0}, 40, true},
		{Finality{Depth: 15}, 25, true},
		{Finality{Depth: 40}, 0, true},
		{Finality{Depth: 41}, 0, true},
	} {
		h, found, err := c.FinalOf(t.Context(), ep, test.f)
		require.NoError(t, err, test.f)
		require.Equal(t, test.found, found, test.f)
		require.Equal(t, test.number, h.Number, test.f)
		if test.number > 0 {
			require.Equal(t, hashes[test.number], h.Hash, test.f)
		}
	}
	h, err := c.HeaderAt(t.Context(), ep, 7)
	require.NoError(t, err)
	require.Equal(t, hashes[7], h.Hash)
	_, err = c.HeaderAt(t.Context(), ep, 41)
	require.ErrorIs(t, err, ErrMissing)
	_, _, err = c.FinalOf(t.Context(), "127.0.0.1:1", Finality{Tag: "finalized"})
	require.True(t, IsNoAnswer(err), "no other endpoint is asked: %v", err)
}

func TestFinalOf_Tag_IsOneCall(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
		if string(params[0]) == `"safe"` {
			return blockJSON(90, 1), ""
		}
		return blockJSON(numberOf(params[0], 100), 1), ""
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	ep := c.Status().Endpoints[0].Endpoint
	_, err := c.HeaderAt(t.Context(), ep, 1) // reports the chain first
	require.NoError(t, err)
	before := f.count("eth_getBlockByNumber")
	h, found, err := c.FinalOf(t.Context(), ep, Finality{Tag: "safe"})
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, uint64(90), h.Number)
	require.Equal(t, before+1, f.count("eth_getBlockByNumber"))
}

func TestHeaderAt_AnotherBlock_CountsAgainstTheEndpoint(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.always("eth_getBlockByNumber", blockJSON(6, 1), "")
	c := open(t, Config{Endpoints: []string{f.url()}})
	_, err := c.HeaderAt(t.Context(), c.Status().Endpoints[0].Endpoint, 5)
	require.ErrorContains(t, err, "it is block 6")
	require.True(t, IsNoAnswer(err))
}

func TestFinalOf_RateLimit_EndsBeforeTheEndpointIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	ep := c.Status().Endpoints[0].Endpoint
	f.onRequest(func(w http.ResponseWriter, _ []fakeCall, _ bool) bool {
		w.Header().Set("Retry-After", "77")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	_, err := c.HeaderAt(t.Context(), ep, 5)
	require.True(t, isRateLimit(err), "%v", err)
	asked := f.count("eth_chainId")
	for _, final := range []Finality{{Tag: "finalized"}, {Depth: 1}} {
		_, _, err = c.FinalOf(t.Context(), ep, final)
		require.True(t, isRateLimit(err), "%v", err)
	}
	require.Equal(t, asked, f.count("eth_chainId"))
}
