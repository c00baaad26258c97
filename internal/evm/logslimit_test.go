package evm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

func TestLogsLimit_ClientMessages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		client, message string
		code            int
		limit           LogsLimit
		blocks          uint64
	}{
		{"geth", "exceed max addresses or topics per search position", -32602, LimitAddresses, 0},
		{"geth", "exceed maximum block range 1000", -32602, LimitRange, 1000},
		{"geth", "request timed out", -32002, LimitTime, 0},
		{"geth", "response too large", -32003, LimitSize, 0},
		{"geth", "block range extends beyond current head block", -32602, 0, 0},
		{"geth", "invalid block range params", -32602, 0, 0},
		{"geth", "unknown block", -32000, 0, 0},
		{"Erigon", "query block range exceeds server limit, narrow your filter: 5000", -32602, LimitRange, 5000},
		{"Nethermind", "Too many logs requested. Max logs per response is 20000.", -32005, LimitResults, 0},
		{"Nethermind", "8633830 could not be found", -32001, 0, 0},
		{"Besu", "Requested range exceeds maximum RPC range limit", -32005, LimitRange, 0},
		{"Besu", "Timeout expired", -32603, LimitTime, 0},
		{"Reth", "query exceeds max block range 100000", -32602, LimitRange, 100_000},
		{"Reth", "query exceeds max results 20000, retry with the range 21102592-21102595", -32602, LimitResults, 4},
		{"Reth", "block range extends beyond current head block: requested 9, head 8", -32602, 0, 0},
		{"Reth", "Response is too big", -32008, LimitSize, 0},
		{"Alchemy", "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the response size, or you can request any block range with a cap of 10K logs in the response. Based on your parameters and the response size limit, this block range should work: [0x0, 0x133e71]", -32602, LimitResults, 0x133e72},
		{"Alchemy", "Log response size exceeded. Please reduce query block range.", -32602, LimitResults, 0},
		{"Alchemy", "You can make eth_getLogs requests with up to a 500 block range. Based on your parameters, this block range should work: [0x123c9b2, 0x123cba5]", -32600, LimitRange, 500},
		{"Alchemy", "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range.", -32600, LimitRange, 10},
		{"Alchemy", "Your app has exceeded its compute units per second capacity.", 429, 0, 0},
		{"Infura", "query returned more than 10000 results. Try with this block range [0xCB3D, 0x7B737].", -32005, LimitResults, 0x7b737 - 0xcb3d + 1},
		{"Infura", "query returned more than 10000 results", -32005, LimitResults, 0},
		{"Infura", "query timeout exceeded", -32005, LimitTime, 0},
		{"Infura", "range 1000000 exceeds limit of 10000", -32602, LimitRange, 10_000},
		{"Infura", "project ID request rate exceeded", -32005, 0, 0},
		{"QuickNode", "eth_getLogs is limited to a 10,000 range", -32614, LimitRange, 10_000},
		{"QuickNode", "eth_getLogs and eth_newFilter are limited to a 10,000 blocks range", -32614, LimitRange, 10_000},
		{"QuickNode", "50/second request limit reached - reduce calls per second or upgrade your account", -32007, 0, 0},
		{"Ankr", "block range is too wide", -32600, LimitRange, 0},
		{"Ankr", "maximum [from, to] blocks distance: 10000", -32000, LimitRange, 10_000},
		{"Chainstack", "Block range limit exceeded. See more details at https://docs.chainstack.com/docs/limits#evm-range-limits.", -32602, LimitRange, 0},
		{"dRPC", "ranges over 10000 blocks are not supported on freetier", 35, LimitRange, 10_000},
		{"dRPC", "Request timeout on the free tier, please upgrade your tier to the paid one", 30, LimitTime, 0},
		{"PublicNode", "exceed maximum block range: 50000", -32701, LimitRange, 50_000},
		{"PublicNode", "Please, specify less number of addresses", -32602, LimitAddresses, 0},
		{"PublicNode", "Please specify an address in your request or, to remove restrictions, order a dedicated full node here: https://www.allnodes.com/eth/host", -32701, LimitNoAddress, 0},
		{"Cloudflare", "Max range: 800", -32047, LimitRange, 800},
		{"BlastAPI", "block range exceeds the range allowed for your plan (5000 > 3000)", -32600, LimitRange, 3000},
		{"thirdweb", "Maximum allowed number of requested blocks is 3500", -32005, LimitRange, 3500},
		{"1RPC", "eth_getLogs is limited to 0 - 50 blocks range", -32602, LimitRange, 50},
		{"1RPC", "response size should not greater than 10000000 bytes", -32000, LimitSize, 0},
		{"BlockPI", "eth_getLogs is limited to 1024 block range", -32602, LimitRange, 1024},
		{"Coinbase", "please limit the query to at most 1000 blocks", -32000, LimitRange, 1000},
		{"SimplyVC", "too wide blocks range, the limit is 100", -32000, LimitRange, 100},
		{"Merkle", "eth_getLogs range is too large, max is 1k blocks", -32603, LimitRange, 1000},
		{"Xplorer", "In eth_getLogs, eth_newFilter, klay_getLogs, and klay_newFilter, the block range is limited to 2000.", -32005, LimitRange, 2000},
		{"BNB Smart Chain", "exceed maximum block range: 5000", -32000, LimitRange, 5000},
		{"BNB Smart Chain", "limit exceeded", -32005, 0, 0}, // its public nodes refuse the method
		{"Polygon", "block range exceeds configured limit", -32000, LimitRange, 0},
		{"Polygon zkEVM", "query returned more than 10000 results", -32602, LimitResults, 0},
		{"Polygon zkEVM", "logs are limited to a 10000 block range", -32602, LimitRange, 10_000},
		{"zkSync", "Query returned more than 10000 results. Try with this block range [0x1, 0x2].", -32602, LimitResults, 2},
		{"zkSync", "Request timeout", -32603, LimitTime, 0},
		{"Hedera", "[Request ID: 5] Exceeded maximum block range: 1000", -32000, LimitRange, 1000},
		{"Hedera", "Cannot search topics without a valid timestamp range: Timestamp range by the lower and upper bounds must be positive and within 7d", -32000, LimitRange, 0},
		{"Hedera", "[Request ID: 5] IP Rate limit exceeded on eth_getLogs", -32605, 0, 0},
		{"Moonbeam", "block range is too wide (maximum 1024)", -32603, LimitRange, 1024},
		{"Moonbeam", "query returned more than 10000 results", -32603, LimitResults, 0},
		{"Moonbeam", "query timeout of 10 seconds exceeded", -32603, LimitTime, 0},
		{"Arbitrum", "logs matched by query exceeds limit of 10000", -32000, LimitResults, 0},
		{"Arbitrum", "log query timed out", -32000, LimitTime, 0},
		{"Optimism", "backend response too large", -32020, LimitSize, 0},
		{"Optimism", "Block range is too large", -32602, LimitRange, 0},
		{"Optimism", "block is out of range", -32019, 0, 0},
		{"Optimism", "over rate limit", -32016, 0, 0},
		{"Base", "block range too large", -32614, LimitRange, 0},
		{"Sei", "block range too large (2000), maximum allowed is 1000 blocks", -32000, LimitRange, 1000},
		{"Arc", "requested range too large", -32012, LimitRange, 0},
		{"Avalanche", "requested too many blocks from 0 to 16777216, maximum is set to 2048", -32000, LimitRange, 2048},
		{"Swell", "block range greater than 10000 max", -32000, LimitRange, 10_000},
		{"Somnia", "block range exceeds 1000", -32000, LimitRange, 1000},
		{"Harmony", "query must be smaller than size 1024", -32000, LimitRange, 1024},
		{"Morph", "block range is larger than max block range, block range = 5120, max block range = 5000", -32000, LimitRange, 5000},
		{"Scroll", "block range is bigger than maxBlockRange", -32000, LimitRange, 0},
		{"Candle", "block range too high", -32600, LimitRange, 0},
		{"Zeta", "query returned more than 10000 results", -32000, LimitResults, 0},
		{"any", "internal error", -32603, 0, 0},
		{"any", "limit exceeded", -32005, 0, 0},
	} {
		e := &RPCError{Method: logsMethod, Code: test.code, Message: test.message}
		require.Equal(t, test.limit, logsLimitOf(e), "%s: %s", test.client, test.message)
		if test.limit != 0 {
			require.Equal(t, test.blocks, suggestedBlocks(e, test.limit), "%s: %s", test.client, test.message)
			require.False(t, rateLimited(e), "%s: %s", test.client, test.message)
			require.False(t, logsUnknown(e), "%s: %s", test.client, test.message)
		}
		e.Method = "eth_call"
		require.Zero(t, logsLimitOf(e), "%s: %s", test.client, test.message)
	}
}

func TestLogs_QueryTooLarge_DoesNotCountAgainstTheEndpoint(t *testing.T) {
	t.Parallel()
	q := LogQuery{From: 100, To: 1099, Topics: tenBlocks.Topics, Contracts: []common.Address{{1}, {2}}}
	rpcError := func(code int, message string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":%q}}`, code, message)
	}
	for name, test := range map[string]struct {
		status int
		body   string
		limit  LogsLimit
		blocks uint64
	}{
		"error of a rate limit":        {200, rpcError(-32005, "query returned more than 10000 results"), LimitResults, 0},
		"suggestion":                   {200, rpcError(-32602, "query exceeds max results 20000, retry with the range 100-163"), LimitResults, 64},
		"suggestion of the same range": {200, rpcError(-32602, "query exceeds max results 20000, retry with the range 100-1099"), LimitResults, 0},
		"limit above the range":        {200, rpcError(-32602, "query exceeds max block range 1000"), LimitRange, 0},
		"status of a rate limit":       {429, rpcError(-32005, "eth_getLogs is limited to a 100 range"), LimitRange, 100},
		"status of a timeout":          {408, rpcError(30, "Request timeout on the free tier"), LimitTime, 0},
		"status of a failure":          {503, rpcError(-32020, "backend response too large"), LimitSize, 0},
		"status of a large request":    {413, rpcError(-32614, "eth_getLogs is limited to a 100 range"), LimitRange, 100},
		"large request":                {413, "content length too large (9>8)", LimitAddresses, 0},
		"large answer":                 {200, `{"jsonrpc":"2.0","id":1,"result":[` + strings.Repeat(" ", 20_000) + `]}`, LimitSize, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
				if calls[0].Method != logsMethod {
					return false
				}
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(strings.Replace(test.body, `"id":1`, `"id":`+string(calls[0].ID), 1)))
				return true
			})
			c := open(t, Config{Endpoints: []string{f.url()}, MaxResponse: 10_000})
			ep := c.Status().Endpoints[0].Endpoint
			_, err := c.Logs(t.Context(), ep, q)
			limit, ok := errors.AsType[*LogsLimitError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, test.limit, limit.Limit)
			require.Equal(t, test.blocks, limit.Blocks)
			require.Equal(t, ep, limit.Endpoint)
			require.False(t, IsNoAnswer(err), "%v", err)
			require.Equal(t, standingGood, c.endpoints[0].healthOf(time.Now(), logsMethod))
			require.Empty(t, c.Status().Endpoints[0].Failing)

			f.onRequest(nil)
			f.always(logsMethod, `[]`, "")
			_, err = c.Logs(t.Context(), ep, q)
			require.NoError(t, err)
			require.Equal(t, 2, f.count(logsMethod), "each query was sent once")
		})
	}
}

func TestLogs_LargeRequestWithoutContracts_IsALargeAnswer(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
		if calls[0].Method == logsMethod {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return true
		}
		return false
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	_, err := c.Logs(t.Context(), c.Status().Endpoints[0].Endpoint, tenBlocks)
	limit, ok := errors.AsType[*LogsLimitError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, LimitSize, limit.Limit)
}

func TestLogs_AnswerAboveTheLimitOfAWebsocket_IsALargeAnswer(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.WSURL()}, MaxResponse: 20_000})
	emitter := s.deployEmitter(t)
	q := LogQuery{Block: s.emit(t, emitter, common.Hash{0xa}, 60).BlockHash, Topics: tenBlocks.Topics}
	_, err := c.Logs(t.Context(), c.Status().Endpoints[0].Endpoint, q)
	require.ErrorIs(t, err, ErrTooLarge)
	require.False(t, IsNoAnswer(err))
	require.Empty(t, c.Status().Endpoints[0].Failing)
}

func TestCall_LogsTooMany_AsksTheNextEndpoint(t *testing.T) {
	t.Parallel()
	limited, other := newFake(t), newFake(t)
	limited.always(logsMethod, "", `{"code":-32005,"message":"query returned more than 10000 results"}`)
	other.always(logsMethod, `[]`, "")
	c := open(t, Config{Endpoints: []string{limited.url(), other.url()}})
	logs, err := c.Call(t.Context(), logsMethod, json.RawMessage(`[{}]`))
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(logs))
	require.False(t, c.endpoints[0].methods[logsMethod].limited, "it is no rate limit")
}
