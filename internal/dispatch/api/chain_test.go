package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// shown returns the chain that the status of a transaction, and the list, show.
func (s *server) shown(id string) (chain *uint64) {
	s.t.Helper()
	var v view
	status, body, _ := s.do(http.MethodGet, "/api/v1/relay/status/"+id, shopKey, "")
	require.Equal(s.t, http.StatusOK, status)
	require.NoError(s.t, json.Unmarshal(body, &v))
	var p page
	status, body, _ = s.do(http.MethodGet, "/api/v1/relay/transactions", shopKey, "")
	require.Equal(s.t, http.StatusOK, status)
	require.NoError(s.t, json.Unmarshal(body, &p))
	require.Equal(s.t, v.ChainID, p.Transactions[0].ChainID)
	return v.ChainID
}

func TestDirect_ChainID_MustBeTheDatabases(t *testing.T) {
	s := start(t, nil, nil)
	with := func(chain string) string { return `{"to": ` + to + `, "chainId": ` + chain + `}` }
	refuses := func(status int, code, field, body string) {
		s.refuses(status, code, field, http.MethodPost, "/api/v1/relay/direct", shopKey, body)
	}
	id := s.post(`{"to": ` + to + `}`)
	require.Nil(t, s.shown(id), "no chain is known")
	refuses(http.StatusServiceUnavailable, "unavailable", "", with("1"))

	_, err := s.store.ClaimChain(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, new(uint64(10)), s.shown(id))
	for _, same := range []string{"10", `"10"`, `"0xa"`} {
		s.post(with(same))
	}
	before := s.count(`SELECT count(*) FROM relay_transactions`)
	for _, other := range []string{"1", "0", `"0xb"`, `"` + strings.Repeat("9", 70) + `"`} {
		refuses(http.StatusBadRequest, "invalid_request", "chainId", with(other))
	}
	_, body, _ := s.do(http.MethodPost, "/api/v1/relay/direct", shopKey, with("1"))
	require.Contains(t, string(body), "is 1, and transactions of this API are for chain 10")
	status, _, _ := s.do(http.MethodPost, "/api/v1/relay/direct", shopKey, with("1.5"))
	require.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, before, s.count(`SELECT count(*) FROM relay_transactions`))

	// The chain is no part of the request: with and without it, it is the same one.
	first := s.post(with("10"), "Idempotency-Key", "key")
	require.Equal(t, first, s.post(`{"to": `+to+`}`, "Idempotency-Key", "key"))
}

func TestGasless_ChainID_MustBeTheDatabases(t *testing.T) {
	g := startGasless(t)
	_, err := g.store.ClaimChain(t.Context(), testchain.ChainID)
	require.NoError(t, err)
	body := g.signed(0, time.Now().Add(time.Hour), common.Hash{1}, nil)
	with := func(chain int) string { return fmt.Sprintf(`{"chainId": %d, %s`, chain, strings.TrimPrefix(body, "{")) }
	g.refuses(http.StatusBadRequest, "invalid_request", "chainId", http.MethodPost, "/api/v1/relay/gasless", shopKey, with(1))
	status, answer, _ := g.do(http.MethodPost, "/api/v1/relay/gasless", shopKey, with(testchain.ChainID))
	require.Equal(t, http.StatusAccepted, status, "%s", answer)
}
