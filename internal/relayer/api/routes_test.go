package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// requests returns one valid request for each route.
func requests(tx string) map[string]struct{ method, path, body string } {
	const at = "/api/v1/relayers/" + keyID
	hash := strings.Repeat("ab", 32)
	return map[string]struct{ method, path, body string }{
		"listRelayers":              {"GET", "/api/v1/relayers", ""},
		"getRelayer":                {"GET", at, ""},
		"updateRelayer":             {"PATCH", at, `{"paused":true,"name":"x","policies":{"min_balance":"` + maxText + `"}}`},
		"getRelayerStatus":          {"GET", at + "/status", ""},
		"getRelayerBalance":         {"GET", at + "/balance", ""},
		"sendTransaction":           {"POST", at + "/transactions", submission("1")},
		"listTransactions":          {"GET", at + "/transactions", ""},
		"getTransactionById":        {"GET", at + "/transactions/" + tx, ""},
		"replaceTransaction":        {"PUT", at + "/transactions/" + tx, submission("2")},
		"cancelTransaction":         {"DELETE", at + "/transactions/" + tx, ""},
		"getTransactionByNonce":     {"GET", at + "/transactions/by-nonce/0", ""},
		"deletePendingTransactions": {"DELETE", at + "/transactions/pending", ""},
		"sign":                      {"POST", at + "/sign", `{"message":"hello"}`},
		"signTypedData":             {"POST", at + "/sign-typed-data", `{"domain_separator":"` + hash + `","hash_struct_message":"` + hash + `"}`},
		"rpc":                       {"POST", at + "/rpc", `{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}`},
		"health":                    {"GET", "/api/v1/health", ""},
		"readiness":                 {"GET", "/api/v1/ready", ""},
		"canRelay":                  {"GET", "/health", ""},
		"openapi":                   {"GET", "/api-docs/openapi.json", ""},
	}
}

// Each route returns every described response, and (see api.do) no other; every described field occurs in some response.
func TestOpenAPI_EachRoute_ReturnsDescribedResponsesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the timeout of a request passes at once, and only if nothing else can run
		a := setup(t)
		tx := a.submitted()
		all := requests(tx)
		for path, methods := range a.doc.Paths {
			for method, op := range methods {
				request, ok := all[op.ID]
				require.True(t, ok, "no request for %s %s", method, path)
				for code := range op.Responses {
					a.provoke(code, op.ID, request.method, request.path, request.body)
				}
			}
		}
		// The remaining fields are provoked here.
		a.do("GET", "/api/v1/relayers/pool-1", "")
		a.rpcErr = nodeFailure
		a.do("POST", "/api/v1/relayers/pool-1/rpc", `[{"jsonrpc":"2.0","id":"x","method":"eth_call"}]`)
		a.do("POST", poolTransactions, `{"to":"`+target+`","value":1,"metadata":{"method":"m","orderbook":"o","trader":"t","request_id":"r","trace_id":"i"}}`)
		a.health = relayer.Health{Reason: "no database", Components: []relayer.Component{{Name: "database", Problem: "away"}, {Name: "rpc", Info: "old"}}}
		a.do("GET", "/health", "")

		var missing []string
		for path, methods := range a.doc.Paths {
			for _, op := range methods {
				for code := range op.Responses {
					if !a.doc.seen[op.ID+" "+code] {
						missing = append(missing, path+" "+op.ID+" "+code)
					}
				}
			}
		}
		for name, schema := range a.doc.Components.Schemas {
			if requestSchemas[name] != nil {
				continue
			}
			properties, _ := schema["properties"].(map[string]any)
			for field := range properties {
				if !a.doc.seen[name+"."+field] {
					missing = append(missing, name+"."+field)
				}
			}
		}
		require.Empty(t, missing)
		require.Len(t, all, len(routes))
	})
}

// provoke makes a route respond with a status code.
func (a *api) provoke(code, id, method, path, body string) {
	a.t.Helper()
	var headers []string
	want, err := strconv.Atoi(code)
	require.NoError(a.t, err)
	defer func() { a.fail, a.hang, a.health = nil, false, relayer.Health{Ready: true} }()
	switch want {
	case 200:
		a.health.Components = []relayer.Component{{Name: "database"}, {Name: "rpc", Problem: "one of two is away", Degraded: true}}
	case 400:
		headers = []string{"Idempotency-Scope", "one\ntwo"} // two headers
	case 401:
		headers = []string{"Authorization", ""}
	case 403:
		a.fail = relayer.ErrPaused
	case 404:
		a.fail = relayer.ErrNotFound
	case 410:
		a.fail = relayer.ErrForgotten
	case 412:
		headers = []string{"Idempotency-Scope", "another"}
	case 413:
		body = strings.Repeat(" ", maxBody+1)
	case 415:
		headers = []string{"Content-Type", "text/plain"}
	case 422:
		a.fail = relayer.ErrKeyReused
	case 429:
		a.fail = &relayer.LimitError{Limit: "global rate", After: time.Second}
	case 500:
		a.fail = errors.New("a mistake")
	case 503:
		a.fail, a.health = relayer.ErrUnavailable, relayer.Health{Reason: "no database"}
	case 504:
		a.hang = true
	default:
		require.Fail(a.t, "no way to provoke "+code)
	}
	w := a.do(method, path, body, headers...)
	require.Equal(a.t, want, w.Code, "%s: %s", id, w.Body)
}

var nodeFailure = &relayer.RPCError{
	Code: 3, Message: "execution reverted", Description: "the node answered with an error", Data: json.RawMessage(`"0x08c379a0"`),
}

func TestErrors_EachRelayerError_HasItsResponse(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err        error
		code       int
		says       string
		retryAfter string
	}{
		"ErrNotFound":    {relayer.ErrNotFound, 404, "relayer pool-1 not found", ""},
		"ErrDisabled":    {relayer.ErrDisabled, 403, "Relayer disabled", ""},
		"ErrPaused":      {relayer.ErrPaused, 403, "Relayer paused", ""},
		"ErrSigningOff":  {relayer.ErrSigningOff, 403, "signs no messages: RELAYER_ALLOW_MESSAGE_SIGNING", ""},
		"ErrUnavailable": {relayer.ErrUnavailable, 503, "nothing was stored", "1"},
		"ErrUnknown":     {relayer.ErrUnknown, 504, "ask again with the same Idempotency-Key", "1"},
		"ErrKeyReused":   {relayer.ErrKeyReused, 422, "another body", ""},
		"ErrOtherScope":  {relayer.ErrOtherScope, 412, "Idempotency-Scope", ""},
		"ErrForgotten":   {errors.Join(relayer.ErrUnavailable, relayer.ErrForgotten), 410, "no longer known", ""},
		"InvalidError":   {relayer.Invalidf("to", "is not on the list"), 400, "to: is not on the list", ""},
		"StateError":     {&relayer.StateError{Status: relayer.Confirmed, Doing: "cancel"}, 400, "cancel: the transaction is confirmed", ""},
		"RevertError":    {&relayer.RevertError{Reason: "ERC20: " + strings.Repeat("x", 5000)}, 400, "execution would revert: ERC20: x", ""},
		"LimitError":     {&relayer.LimitError{Limit: "daily gas of trader", After: 1500 * time.Millisecond}, 429, "daily gas of trader: try again in 2 s", "2"},
		"FundsError":     {&relayer.FundsError{Need: big.NewInt(12345)}, 503, "no key can pay for it: value and gas may come to 12345 wei", "30"},

		"no limit's time":          {&relayer.LimitError{Limit: "queue"}, 429, "try again in 1 s", "1"},
		"unknown, and why":         {errors.Join(relayer.ErrUnavailable, relayer.ErrUnknown), 504, "same Idempotency-Key", "1"},
		"a node out of time":       {fmt.Errorf("%w: simulate: %w", relayer.ErrUnavailable, context.DeadlineExceeded), 503, "nothing was stored", "1"},
		"out of time":              {context.DeadlineExceeded, 504, "same Idempotency-Key", "1"},
		"the caller went away":     {context.Canceled, 504, "same Idempotency-Key", "1"},
		"anything else":            {errors.New("password=x"), 500, "internal error", ""},
		"a revert without reason":  {&relayer.RevertError{}, 400, "execution would revert", ""},
		"an invalid within others": {errors.Join(errors.New("x"), relayer.Invalidf("", "whole")), 400, "whole", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := setup(t)
			a.fail = c.err
			w := a.do("POST", "/api/v1/relayers/pool-1/transactions", submission("1"), idempotencyKey, "k")
			require.Equal(t, c.code, w.Code)
			require.Equal(t, c.retryAfter, w.Header().Get("Retry-After"))
			require.NotContains(t, w.Body.String(), "internals")
			require.NotContains(t, w.Body.String(), "password")
			require.Less(t, w.Body.Len(), 2000)
			if c.code == 429 {
				var refused openzeppelin.Refused
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &refused))
				after, err := strconv.ParseInt(c.retryAfter, 10, 64)
				require.NoError(t, err)
				require.Equal(t, openzeppelin.Refused{Code: 429, Error: "TooManyRequests", Message: refused.Message, After: &after}, refused)
				require.Contains(t, refused.Message, c.says)
				return
			}
			e := read(t, w, c.code)
			require.Equal(t, "null", string(e.Data))
			require.Contains(t, *e.Error, c.says)
			if c.code >= 500 {
				require.Contains(t, a.log.String(), "secret internals", "the log has what the caller has not")
				require.Contains(t, a.log.String(), w.Header().Get("X-Request-Id"))
			}
		})
	}
	file, err := parser.ParseFile(token.NewFileSet(), "../errors.go", nil, 0)
	require.NoError(t, err)
	for name, object := range file.Scope.Objects {
		isError := strings.HasPrefix(name, "Err") || object.Kind == ast.Typ && strings.HasSuffix(name, "Error")
		if isError {
			require.Contains(t, cases, name, "it needs an answer")
		}
	}
}

func TestErrors_UnknownOutcome_MessageSaysHowToCheck(t *testing.T) {
	t.Parallel()
	a := setup(t)
	tx := a.submitted()
	a.fail = relayer.ErrUnknown
	for _, c := range []struct{ method, path, body, says string }{
		{"GET", "/transactions/" + tx, "", "no answer in time"},
		{"POST", "/transactions", submission("1"), "send an Idempotency-Key the next time"},
		{"PUT", "/transactions/" + tx, submission("1"), "check before retrying"},
		{"DELETE", "/transactions/" + tx, "", "check before retrying"},
	} {
		e := read(t, a.do(c.method, "/api/v1/relayers/pool-1"+c.path, c.body), 504)
		require.Contains(t, *e.Error, c.says)
	}
}

func TestListRelayers_Pages(t *testing.T) {
	t.Parallel()
	a := setup(t)
	e := read(t, a.do("GET", "/api/v1/relayers", ""), 200)
	require.JSONEq(t, `{"current_page":1,"per_page":10,"total_items":2}`, string(e.Pagination))
	require.JSONEq(t, `[{
		"id":"pool-1","name":"pool-1","network":"dev","network_type":"evm","paused":false,"signer_id":"pool-1","address":null,
		"system_disabled":false,"policies":{"min_balance":0,"gas_limit_estimation":true,"eip1559_pricing":false,"include_revert_data":false}
	},{
		"id":"`+keyID+`","name":"first","network":"dev","network_type":"evm","paused":true,"signer_id":"local-0","address":"`+target+`",
		"system_disabled":true,"disabled_reason":{"type":"BalanceCheckFailed","details":"low balance"},
		"policies":{"min_balance":`+maxText+`,"gas_limit_estimation":true,"gas_price_cap":5,"eip1559_pricing":true,"include_revert_data":false,"whitelist_receivers":["`+target+`"]}
	}]`, string(e.Data))
	require.Contains(t, string(e.Data), maxText)

	e = read(t, a.do("GET", "/api/v1/relayers?page=2&per_page=1", ""), 200)
	require.JSONEq(t, `{"current_page":2,"per_page":1,"total_items":2}`, string(e.Pagination))
	require.Contains(t, string(e.Data), keyID)
	require.NotContains(t, string(e.Data), poolID)
	e = read(t, a.do("GET", "/api/v1/relayers/?page=1001&per_page=100", ""), 200)
	require.Equal(t, "[]", string(e.Data))

	for _, query := range []string{
		"page=0", "page=-1", "page=x", "page=100001", "per_page=0", "per_page=101", "page=1002&per_page=100", "page=10002", "page=1&page=1", "page=18446744073709551617", "page=1.5",
	} {
		e := read(t, a.do("GET", "/api/v1/relayers?"+query, ""), 400)
		require.Contains(t, *e.Error, "page", query)
	}
	for reason, kind := range map[string]string{"low balance": "BalanceCheckFailed", "foreign nonce": "NonceSyncFailed", "errors": "RpcValidationFailed"} {
		shown := openzeppelin.FromRelayer(&relayer.Relayer{Disabled: true, DisabledReason: reason})
		require.Equal(t, kind, shown.DisabledReason.Type)
	}
}

func TestRelayerStatus_AmountsAreExact(t *testing.T) {
	t.Parallel()
	a := setup(t)
	e := read(t, a.do("GET", "/api/v1/relayers/"+keyID+"/status", ""), 200)
	require.JSONEq(t, `{"network_type":"evm","balance":"`+maxText+`","pending_transactions_count":3,
		"last_confirmed_transaction_timestamp":"2026-11-05T09:00:00.123456Z","system_disabled":true,"paused":true,"nonce":"7"}`, string(e.Data))
	e = read(t, a.do("GET", "/api/v1/relayers/pool-1/status", ""), 200)
	require.JSONEq(t, `{"network_type":"evm","balance":"0","pending_transactions_count":0,"last_confirmed_transaction_timestamp":null,
		"system_disabled":false,"paused":false,"nonce":"0"}`, string(e.Data), "clients of theirs expect all that they did not decline")
	e = read(t, a.do("GET", "/api/v1/relayers/"+keyID+"/status?include_balance=false&include_pending_count=false&include_last_confirmed_tx=false", ""), 200)
	require.JSONEq(t, `{"network_type":"evm","system_disabled":true,"paused":true,"nonce":"7"}`, string(e.Data))
	require.Zero(t, a.want, "parts that were not requested are not read")
	e = read(t, a.do("GET", "/api/v1/relayers/"+keyID+"/status?include_balance=true&include_pending_count=false", ""), 200)
	require.Contains(t, string(e.Data), maxText)
	require.Equal(t, relayer.StatusParts{Balance: true, LastConfirmed: true}, a.want)
	for _, query := range []string{"include_balance=1", "include_pending_count=", "include_last_confirmed_tx=true&include_last_confirmed_tx=true"} {
		read(t, a.do("GET", "/api/v1/relayers/"+keyID+"/status?"+query, ""), 400)
	}
	e = read(t, a.do("GET", "/api/v1/relayers/pool-1/balance", ""), 200)
	require.Equal(t, `{"balance":`+maxText+`,"unit":"wei"}`, string(e.Data))

	read(t, a.do("PATCH", "/api/v1/relayers/pool-1", `{"paused":false,"policies":{"min_balance":null}}`, "Content-Type", "application/json; charset=UTF-8"), 200)
	require.False(t, *a.patch.Paused)
	require.True(t, a.patch.MinBalance.Set)
	e = read(t, a.do("PATCH", "/api/v1/relayers/pool-1", `{"network":"x"}`), 400)
	require.Contains(t, *e.Error, "network")
}

func TestSign_MessageIsSignedAsSent(t *testing.T) {
	t.Parallel()
	a := setup(t)
	e := read(t, a.do("POST", "/api/v1/relayers/pool-1/sign", `{"message":"0x\u00e9"}`), 200)
	zeros := strings.Repeat("0", 64)
	require.JSONEq(t, `{"r":"`+zeros+`","s":"`+zeros+`","v":27,"sig":"`+zeros+zeros+`1b"}`, string(e.Data))
	require.Equal(t, "0xé", string(a.message))
	read(t, a.do("POST", "/api/v1/relayers/pool-1/sign-typed-data", `{"domain_separator":"0x`+strings.Repeat("01", 32)+
		`","hash_struct_message":"`+strings.Repeat("02", 32)+`"}`), 200)
	require.Equal(t, [2]common.Hash{common.HexToHash(strings.Repeat("01", 32)), common.HexToHash(strings.Repeat("02", 32))}, a.hashed)
	require.Equal(t, []string{"first", "first"}, a.signedFor)
	for path, body := range map[string]string{"sign": `{}`, "sign-typed-data": `{"domain_separator":"00"}`} {
		read(t, a.do("POST", "/api/v1/relayers/pool-1/"+path, body), 400)
	}
}

func TestRPC_OnlyReadsReachNode(t *testing.T) {
	t.Parallel()
	a := setup(t)
	rpc := func(body string) string {
		w := a.do("POST", "/api/v1/relayers/pool-1/rpc", body)
		require.Equal(t, 200, w.Code, w.Body)
		return w.Body.String()
	}
	require.Equal(t, `{"jsonrpc":"2.0","result":"0x1","id":18446744073709551616}`,
		rpc(`{"jsonrpc":"2.0","id":18446744073709551616,"method":"eth_call","params":[{}]}`))
	require.Equal(t, `{"jsonrpc":"2.0","result":"0x1"}`, rpc(`{"jsonrpc":"2.0","method":"eth_call"}`))
	a.rpcResult = nil
	require.Equal(t, `[{"jsonrpc":"2.0","result":null,"id":"a"},{"jsonrpc":"2.0","result":null,"id":null}]`,
		rpc(`[{"jsonrpc":"2.0","id":"a","method":"eth_chainId"},{"jsonrpc":"2.0","id":null,"method":"eth_getLogs"}]`))
	for _, method := range []string{
		"eth_sendTransaction", "eth_sendRawTransaction", "eth_sign", "eth_signTransaction", "eth_accounts", "eth_newFilter",
		"debug_traceTransaction", "debug_setHead", "admin_peers", "personal_sign", "personal_unlockAccount", "miner_start",
		"txpool_content", "engine_newPayloadV1", "ETH_CALL", "eth_call\u0000", "anvil_setBalance", "evm_mine",
	} {
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": strings.TrimRight(method, "\x00") + strings.Repeat("x", strings.Count(method, "\x00"))})
		require.NoError(t, err)
		require.Contains(t, rpc(string(body)), `"code":-32601`, method)
	}
	a.rpcErr = nodeFailure
	require.Equal(t, `{"jsonrpc":"2.0","error":{"code":3,"message":"execution reverted","description":"the node answered with an error","data":"0x08c379a0"},"id":1}`,
		rpc(`{"jsonrpc":"2.0","id":1,"method":"eth_call"}`))

	a.rpcErr, a.rpcResult = nil, json.RawMessage(`{"garbled`)
	e := read(t, a.do("POST", "/api/v1/relayers/pool-1/rpc", `{"jsonrpc":"2.0","id":1,"method":"eth_call"}`), 500)
	require.Contains(t, *e.Error, "can't be encoded")
	require.Contains(t, a.log.String(), "level=ERROR msg=\"request failed\"")

	for _, body := range []string{`{}`, `[]`, `1`, `{"jsonrpc":"2.0","id":1}`} {
		read(t, a.do("POST", "/api/v1/relayers/pool-1/rpc", body), 400)
	}
	for _, method := range []string{"eth_call", "eth_sign"} {
		read(t, a.do("POST", "/api/v1/relayers/absent/rpc", `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`), 404)
	}
}

// Requests to nodes and signers are limited, each call of a batch by itself, and no others.
func TestLimit_NodeAndSignerCalls_AreCountedSeparately(t *testing.T) {
	t.Parallel()
	var asked []int
	full := false
	a := setup(t, func(c *Config) {
		c.Limit = func(caller string, calls int) error {
			require.Equal(t, "first", caller)
			asked = append(asked, calls)
			if full {
				return &relayer.LimitError{Limit: "rate limit of the API key", After: 2 * time.Second}
			}
			return nil
		}
	})
	all := requests(a.submitted())
	batch := all["rpc"]
	batch.body = "[" + batch.body + "," + batch.body + "," + batch.body + "]"
	for _, full = range []bool{false, true} {
		asked = nil
		for _, id := range []string{"sign", "signTypedData", "getRelayerBalance", "rpc", "batch"} {
			r := all[id]
			if id == "batch" {
				r = batch
			}
			w := a.do(r.method, r.path, r.body)
			if !full {
				require.Equal(t, 200, w.Code, id)
				continue
			}
			require.Equal(t, 429, w.Code, id)
			require.Equal(t, "2", w.Header().Get("Retry-After"))
		}
		require.Equal(t, []int{1, 1, 1, 1, 3}, asked)
		require.Equal(t, 200, a.do("GET", "/api/v1/relayers", "").Code)
		require.Equal(t, 200, a.do("POST", poolTransactions, submission("1")).Code)
		require.Len(t, asked, 5)
	}
}

func TestHealth_NotReady_GivesReason(t *testing.T) {
	t.Parallel()
	a := setup(t)
	w := a.do("GET", "/api/v1/health", "", "Authorization", "")
	require.Equal(t, "OK", w.Body.String())
	a.health = relayer.Health{
		Ready: true, Reason: "one node of two", At: created,
		Components: []relayer.Component{{Name: "database", Info: "old"}, {Name: "rpc", Problem: "node 2 lags", Degraded: true}},
	}
	for _, path := range []string{"/health", "/api/v1/ready"} {
		w = a.do("GET", path, "", "Authorization", "")
		require.Equal(t, 200, w.Code)
		require.JSONEq(t, `{"ready":true,"status":"degraded","reason":"one node of two","timestamp":"2026-11-05T09:00:00.123456Z",
			"components":{"database":{"status":"healthy","info":"old"},"rpc":{"status":"degraded","error":"node 2 lags"}}}`, w.Body.String())
	}
	a.health = relayer.Health{Reason: "the database is away", At: created, Components: []relayer.Component{{Name: "database", Problem: "refused"}}}
	for _, path := range []string{"/health", "/api/v1/ready"} {
		w = a.do("GET", path, "", "Authorization", "")
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.JSONEq(t, `{"ready":false,"status":"unhealthy","reason":"the database is away","timestamp":"2026-11-05T09:00:00.123456Z",
			"components":{"database":{"status":"unhealthy","error":"refused"}}}`, w.Body.String())
	}
}

// An error of a read-only request does not report that nothing was stored.
func TestErrors_NotReady_PointsAtHealth(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.fail = relayer.ErrUnavailable
	for method, stored := range map[string]bool{"GET": false, "POST": true} {
		message := *read(t, a.do(method, poolTransactions, submission("1")), 503).Error
		require.Contains(t, message, "see /health")
		require.Equal(t, stored, strings.Contains(message, "nothing was stored"), message)
	}
}
