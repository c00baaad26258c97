package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/statuscache"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

const to = `"0x00000000000000000000000000000000000000aa"`

// An accepted transaction is stored and queued, and its client reads it, on both paths.
func TestDirect_Accepted_IsStored(t *testing.T) {
	s := start(t, nil, nil)
	id := s.post(`{"to": `+to+`, "value": 9007199254740993, "data": "0xa9059cbb", "gasLimit": "0x5208", "speed": "fast"}`,
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	for _, path := range []string{"/api/v1/relay/status/", "/relay/status/"} {
		status, body, _ := s.do(http.MethodGet, path+id, shopKey, "")
		require.Equal(t, http.StatusOK, status)
		var v view
		require.NoError(t, json.Unmarshal(body, &v))
		require.Equal(t, "9007199254740993", v.Value)
		require.Equal(t, "0xa9059cbb", v.Data)
		require.Equal(t, uint64(21000), v.GasLimit)
		require.Equal(t, dispatch.Fast, v.Speed)
		require.Equal(t, dispatch.Queued, v.Status)
		require.Nil(t, v.Hash)
	}
	require.Equal(t, 1, s.count(`SELECT count(*) FROM relay_queue`))
	require.Equal(t, 1, s.count(`SELECT count(*) FROM relay_transactions WHERE traceparent LIKE '00-0af%'`))
}

// The largest amount, and defaults, survive.
func TestDirect_Amounts(t *testing.T) {
	s := start(t, nil, nil)
	const most = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
	for _, value := range []string{most, `"` + most + `"`, `"0x` + strings.Repeat("f", 64) + `"`} {
		tx, err := s.store.Get(t.Context(), "shop", s.post(`{"to": `+to+`, "value": `+value+`}`))
		require.NoError(t, err)
		require.Equal(t, most, tx.Value.String())
		require.Equal(t, uint64(dispatch.DefaultGasLimit), tx.GasLimit)
		require.Equal(t, dispatch.Average, tx.Speed)
		require.Equal(t, common.HexToAddress("0xaa"), tx.To)
	}
}

// A bad request gets an error with the member, its value and the remedy, and stores nothing.
func TestDirect_BadRequest_NamesTheMember(t *testing.T) {
	s := start(t, nil, nil)
	const and = `{"to": ` + to + `, `
	for _, c := range []struct{ body, field, problem string }{
		{`{"value": 1}`, "to", "give the address"},
		{`{"to": null}`, "to", "give the address"},
		{`{"to": "0xaa"}`, "to", `must be an address, 0x and 40 hex digits, not "0xaa"`},
		{`{"to": 5}`, "to", "must be a string, not 5"},
		{`{"to": "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1Beaee"}`, "to", "the checksum of 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1Beaee is wrong"},
		{and + `"gasLimit": 0}`, "gasLimit", "must be 1 to 4294967296, not 0"},
		{and + `"gasLimit": 4294967297}`, "gasLimit", "not 4294967297"},
		{and + `"gasLimit": "many"}`, "gasLimit", `0x hex, not "many"`},
		{and + `"gasLimit": true}`, "gasLimit", "0x hex, not true"},
		{and + `"speed": "warp"}`, "speed", `must be fastest, fast, average or safeLow, not "warp"`},
		{and + `"speed": 1}`, "speed", "must be a string, not 1"},
		{and + `"value": -1}`, "value", "must not be negative: -1"},
		{and + `"value": 1.5}`, "value", `without fraction or exponent, a decimal string or 0x hex, not "1.5"`},
		{and + `"value": 1e3}`, "value", `not "1e3"`},
		{and + `"value": "1_0"}`, "value", `not "1_0"`},
		{and + `"value": "0x+5"}`, "value", `not "0x+5"`},
		{and + `"value": "0x-0"}`, "value", `not "0x-0"`},
		{and + `"value": "0x"}`, "value", `not "0x"`},
		{and + `"value": ""}`, "value", `not ""`},
		{and + `"value": "0x1` + strings.Repeat("0", 64) + `"}`, "value", "must be below 2^256: 0x1000"},
		{and + `"data": "0xa"}`, "data", `"0xa" has 1 digits`},
		{and + `"data": "0xzz"}`, "data", `must be hex, such as 0xa9059cbb, not "0xzz"`},
		{and + `"data": []}`, "data", "must be a string, not []"},
		{and + `"data": "0x` + strings.Repeat("00", maxData+1) + `"}`, "data", "must not have more than 131072 bytes, and has 131073"},
		{and + `"nonce": 5}`, "nonce", "is unknown: there are transactionId, chainId, to, value, data, gasLimit, speed"},
		{and + `"gas_limit": 5}`, "gas_limit", "is unknown: there are"},
		{and + `"Value": 1}`, "Value", "must be written as value"},
		{and + `"GASLIMIT": null}`, "GASLIMIT", "must be written as gasLimit"},
		{and + `"to": ` + to + `}`, "to", "is there twice"},
		{and + `"value": 1, "v\u0061lue": 1}`, "value", "is there twice"},
		{and + `"transactionId": "a b"}`, "transactionId", "visible ASCII"},
		{and + `"transactionId": "a/b"}`, "transactionId", "visible ASCII"},
		{and + `"transactionId": "` + strings.Repeat("x", 129) + `"}`, "transactionId", "1 to 128"},
		{``, "", "not JSON"}, {`x`, "", "not JSON"}, {`{"to": ` + to + `} {}`, "", "not JSON"},
		{`[]`, "", "must be a JSON object"}, {`null`, "", "must be a JSON object"},
	} {
		message := s.refuses(http.StatusBadRequest, "invalid_request", c.field, http.MethodPost, "/api/v1/relay/direct", shopKey, c.body)
		require.Contains(t, message, c.problem)
		require.Less(t, len(message), 300)
	}
	s.refuses(http.StatusRequestEntityTooLarge, "too_large", "", http.MethodPost, "/relay/direct", shopKey, strings.Repeat(" ", maxBody+1))
	s.refuses(http.StatusBadRequest, "invalid_request", "Idempotency-Key", http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`}`, "Idempotency-Key", "a b")
	require.Zero(t, s.count(`SELECT count(*) FROM relay_transactions`))
}

// The relayer's API accepts the same.
func TestDirect_OtherSpellings_AreAccepted(t *testing.T) {
	s := start(t, nil, nil)
	for _, body := range []string{
		`{"to": "00000000000000000000000000000000000000aa", "data": "A9", "value": "0X0a"}`,
		`{"to": "0X00000000000000000000000000000000000000AA", "data": "0xa9", "value": "010", "gasLimit": null, "speed": null, "transactionId": null}`,
	} {
		tx, err := s.store.Get(t.Context(), "shop", s.post(body))
		require.NoError(t, err)
		require.Equal(t, dispatch.Call{
			To: common.HexToAddress("0xaa"), Value: big.NewInt(10), Data: []byte{0xa9}, GasLimit: dispatch.DefaultGasLimit, Speed: dispatch.Average,
		}, tx.Call)
	}
	tx, err := s.store.Get(t.Context(), "shop", s.post(`{"to": `+to+`, "data": null, "value": null}`))
	require.NoError(t, err)
	require.Empty(t, tx.Data)
	require.Zero(t, tx.Value.Sign())
}

// A client that asks for problems gets them. Ids of requests, however bad, are no reason to reject one.
func TestHandler_Headers_AreHeeded(t *testing.T) {
	s := start(t, nil, nil)
	for path, want := range map[string]httpserver.Problem{
		"/relay/status/none": {Status: http.StatusNotFound, Title: "Not Found", Code: "not_found", Detail: "transaction not found"},
		"/nowhere":           {Status: http.StatusNotFound, Title: "Not Found", Code: "not_found", Detail: errNoRoute.message},
		"/relay/transactions?limit=0": {
			Status: http.StatusBadRequest, Title: "Bad Request", Code: "invalid_request", Field: "limit", Detail: "limit: must be 1 to 100",
		},
	} {
		want.Type = "about:blank"
		status, body, h := s.do(http.MethodGet, path, shopKey, "", "Accept", "application/problem+json")
		require.Equal(t, want.Status, status)
		require.Equal(t, "application/problem+json", h.Get("Content-Type"))
		var got httpserver.Problem
		require.NoError(t, json.Unmarshal(body, &got))
		require.Equal(t, want, got)
	}
	_, _, h := s.do(http.MethodGet, "/relay/transactions", shopKey, "", "Accept", "application/problem+json")
	require.Equal(t, "application/json", h.Get("Content-Type"))

	for want, ids := range map[string][]string{"^a$": {"\xff", "a", "b"}, "^[0-9a-f]{16}$": {strings.Repeat("x", 257)}, "^c$": {"c"}} {
		for _, path := range []string{"/health", "/relay/transactions"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.http.URL+path, nil)
			require.NoError(t, err)
			r.Header["X-Request-Id"] = ids
			r.Header.Set("X-Api-Key", shopKey)
			resp, err := s.http.Client().Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Regexp(t, want, resp.Header.Get("X-Request-Id"))
		}
	}
}

// Keys and roles are required, and an error shows neither.
func TestAuth_WithoutKey_IsRefused(t *testing.T) {
	s := start(t, nil, nil)
	id := s.post(`{"to": ` + to + `}`)
	for _, path := range []string{"/relay/status/" + id, "/relay/transactions", "/api/v1/relay/gasless/nonce/0x00000000000000000000000000000000000000aa"} {
		s.refuses(http.StatusUnauthorized, "unauthorized", "", http.MethodGet, path, "", "")
		s.refuses(http.StatusUnauthorized, "unauthorized", "", http.MethodGet, path, shopKey[1:], "")
	}
	s.refuses(http.StatusForbidden, "forbidden", "", http.MethodPost, "/relay/direct", readerKey, `{"to": `+to+`}`)
	s.refuses(http.StatusNotFound, "not_found", "", http.MethodGet, "/relay/status/"+id, otherKey, "")
	status, _, _ := s.do(http.MethodGet, "/relay/status/"+id, "", "", "Authorization", "Bearer "+shopKey)
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, s.log.String(), shopKey)
}

// The same id or key again is the same transaction; with another request it is a 422. Concurrent ones are one transaction.
func TestDirect_Repeated_IsTheSameTransaction(t *testing.T) {
	s := start(t, nil, nil)
	body := `{"to": ` + to + `, "transactionId": "order-1"}`
	require.Equal(t, "order-1", s.post(body))
	require.Equal(t, "order-1", s.post(body))
	s.refuses(http.StatusUnprocessableEntity, "reused", "", http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`, "transactionId": "order-1", "value": 1}`)
	first := s.post(`{"to": `+to+`}`, "Idempotency-Key", "k")
	require.Equal(t, first, s.post(`{"to": `+to+`, "value": "0x0", "speed": "average"}`, "Idempotency-Key", "k"), "an equal request in other words")
	s.refuses(http.StatusUnprocessableEntity, "reused", "", http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`, "value": 1}`, "Idempotency-Key", "k")
	status, _, _ := s.do(http.MethodPost, "/relay/direct", otherKey, body)
	require.Equal(t, http.StatusAccepted, status, "another client's id")

	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.http.URL+"/relay/direct", strings.NewReader(`{"to": `+to+`}`))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("X-Api-Key", shopKey)
			r.Header.Set("Idempotency-Key", "many")
			resp, err := s.http.Client().Do(r)
			if err != nil || resp.StatusCode != http.StatusAccepted {
				t.Error(err, resp)
				return
			}
			_ = resp.Body.Close()
		})
	}
	wg.Wait()
	require.Equal(t, 1, s.count(`SELECT count(*) FROM relay_transactions WHERE idempotency_key = 'many'`))
}

// A client that names a transaction in two ways gets the same one by each of them, also above its rate.
func TestDirect_TwoNames_AreOneTransaction(t *testing.T) {
	s := start(t, func(c *Config) { c.Client = ratelimit.Rate{PerSecond: 0.001, Burst: 1} }, nil)
	named, unnamed := `{"to": `+to+`, "transactionId": "order-1"}`, `{"to": `+to+`}`
	require.Equal(t, "order-1", s.post(named))
	require.Equal(t, "order-1", s.post(named, "Idempotency-Key", "k"))
	require.Equal(t, "order-1", s.post(unnamed, "Idempotency-Key", "k"))
	require.Equal(t, "order-1", s.post(named, "Idempotency-Key", "k"))
	s.refuses(http.StatusUnprocessableEntity, "reused", "", http.MethodPost, "/relay/direct", shopKey, named, "Idempotency-Key", "other")
	require.Equal(t, 1, s.count(`SELECT count(*) FROM relay_transactions`))
}

// Pages list a client's own transactions by filter.
func TestTransactions_Pages(t *testing.T) {
	s := start(t, nil, nil)
	for i := range 5 {
		s.post(fmt.Sprintf(`{"to": %s, "transactionId": "t%d"}`, to, i))
	}
	var seen []string
	for query := "?limit=2"; ; {
		status, body, _ := s.do(http.MethodGet, "/relay/transactions"+query, shopKey, "")
		require.Equal(t, http.StatusOK, status)
		var p page
		require.NoError(t, json.Unmarshal(body, &p))
		for _, v := range p.Transactions {
			seen = append(seen, v.TransactionID)
		}
		if p.Next == nil {
			break
		}
		query = "?limit=2&before=" + *p.Next
	}
	require.Equal(t, []string{"t4", "t3", "t2", "t1", "t0"}, seen)
	_, body, _ := s.do(http.MethodGet, "/relay/transactions?status=mined,confirmed", shopKey, "")
	require.JSONEq(t, `{"transactions": [], "next": null}`, string(body))
	_, body, _ = s.do(http.MethodGet, "/relay/transactions", otherKey, "")
	require.JSONEq(t, `{"transactions": [], "next": null}`, string(body))
	for query, field := range map[string]string{"status=done": "status", "limit=0": "limit", "limit=101": "limit", "before=x": "before", "kind=x": "kind", "page=2": "page", "limit=1&limit=2": "limit"} {
		s.refuses(http.StatusBadRequest, "invalid_request", field, http.MethodGet, "/relay/transactions?"+query, shopKey, "")
	}
}

// A client above its rate gets a 429 with the time to wait; another client is served.
func TestDirect_AboveTheRate_IsRefused(t *testing.T) {
	s := start(t, func(c *Config) { c.Client = ratelimit.Rate{PerSecond: 0.001, Burst: 2} }, nil)
	s.post(`{"to": ` + to + `}`)
	s.post(`{"to": ` + to + `}`)
	status, _, h := s.do(http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`}`)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.NotEmpty(t, h.Get("Retry-After"))
	status, _, _ = s.do(http.MethodPost, "/relay/direct", otherKey, `{"to": `+to+`}`)
	require.Equal(t, http.StatusAccepted, status)
}

func TestDirect_RepeatedAboveTheRate_IsAnswered(t *testing.T) {
	s := start(t, func(c *Config) { c.Client = ratelimit.Rate{PerSecond: 0.001, Burst: 1} }, nil)
	const body = `{"to": ` + to + `, "transactionId": "order-1"}`
	first := s.post(body)
	require.Equal(t, first, s.post(body))
	status, _, _ := s.do(http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`, "value": "1", "transactionId": "order-1"}`)
	require.Equal(t, http.StatusUnprocessableEntity, status)
	status, _, _ = s.do(http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`, "transactionId": "order-2"}`)
	require.Equal(t, http.StatusTooManyRequests, status)
}

// The global rate bounds what all clients post together.
func TestDirect_AboveTheGlobalRate_IsRefused(t *testing.T) {
	s := start(t, func(c *Config) { c.Global = ratelimit.Rate{PerSecond: 0.001, Burst: 2} }, nil)
	for _, key := range []string{shopKey, otherKey} {
		status, _, _ := s.do(http.MethodPost, "/relay/direct", key, `{"to": `+to+`}`)
		require.Equal(t, http.StatusAccepted, status)
	}
	for _, key := range []string{shopKey, otherKey} {
		status, body, _ := s.do(http.MethodPost, "/relay/direct", key, `{"to": `+to+`}`)
		require.Equal(t, http.StatusTooManyRequests, status)
		require.Contains(t, string(body), "global rate limit")
	}
}

// Without the database nothing is accepted, and the answer says that nothing was stored or that it is unknown.
func TestDirect_WithoutDatabase_IsUnavailable(t *testing.T) {
	s := start(t, nil, nil)
	s.db.Close()
	s.refuses(http.StatusServiceUnavailable, "unavailable", "", http.MethodGet, "/relay/status/x", shopKey, "")
	status, _, h := s.do(http.MethodPost, "/relay/direct", shopKey, `{"to": `+to+`}`)
	require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusGatewayTimeout}, status)
	require.Equal(t, "1", h.Get("Retry-After"))
}

// Before the start and without a forwarder the answers name the cause.
func TestHandler_NotServed_NamesTheCause(t *testing.T) {
	s := start(t, nil, nil)
	s.refuses(http.StatusNotImplemented, "not_implemented", "", http.MethodPost, "/relay/gasless", shopKey, `{}`)
	s.refuses(http.StatusNotFound, "not_found", "", http.MethodGet, "/relay", shopKey, "")
	status, body, _ := s.do(http.MethodGet, "/health", "", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(body), `"status":"healthy"`)
}

// The description names each route, and exactly the codes that it can answer by its method, its key and its path.
func TestOpenAPI_DescribesEachRoute(t *testing.T) {
	s := start(t, nil, nil)
	_, body, _ := s.do(http.MethodGet, "/api/v1/api-docs/openapi.json", "", "")
	var doc struct {
		Info  struct{ Version string }
		Paths map[string]map[string]struct{ Responses map[string]any }
	}
	require.NoError(t, json.Unmarshal(body, &doc))
	require.Equal(t, "test", doc.Info.Version)
	described := 0
	for _, methods := range doc.Paths {
		described += len(methods)
	}
	require.Equal(t, len(routes), described)
	for _, r := range routes {
		path := base + r.path
		if r.path == "/health" || r.path == "/ready" {
			path = r.path
		}
		require.ElementsMatch(t, codes(r), slices.Collect(maps.Keys(doc.Paths[path][strings.ToLower(r.method)].Responses)), path)
	}
}

// codes returns the status codes that a route can answer.
func codes(r route) []string {
	switch {
	case r.path == "/health" || r.path == "/ready":
		return []string{"200", "503"}
	case r.public: // the webhook: its signature is its key
		return []string{"200", "400", "401", "408", "413", "500", "503"}
	}
	all := []string{"401", "500", "503"} // 503: also while the API starts
	if r.writes {
		all = append(all, "202", "400", "403", "413", "422", "429", "504")
	} else {
		all = append(all, "200")
	}
	switch r.path {
	case "/relay/gasless":
		all = append(all, "409", "501")
	case "/relay/gasless/nonce/{address}":
		all = append(all, "400", "429", "501")
	case "/relay/status/{id}":
		all = append(all, "404")
	case "/relay/transactions":
		all = append(all, "400", "429")
	}
	return all
}

// A final answer comes from the cache. One that can change is never older than a second, however it changed, and a Redis that hangs hides
// none.
func TestStatus_Cached_FollowsTheRow(t *testing.T) {
	redis := testredis.Start(t)
	client, err := redisclient.New(redisclient.Options{URL: redis.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	s := start(t, func(c *Config) {
		c.Cache = statuscache.New(statuscache.Config{Redis: client, Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)})
	}, nil)
	s.atRelayer(s.post(`{"to": `+to+`, "transactionId": "order-1"}`), "r1")
	read := func() (v view) {
		t.Helper()
		status, body, _ := s.do(http.MethodGet, "/relay/status/order-1", shopKey, "")
		require.Equal(t, http.StatusOK, status)
		require.NoError(t, json.Unmarshal(body, &v))
		return v
	}
	exec := func(change string) {
		t.Helper()
		_, err := s.db.Exec(t.Context(), `UPDATE relay_transactions SET `+change)
		require.NoError(t, err)
	}
	becomes := func(want dispatch.Status) {
		t.Helper()
		require.Eventually(t, func() bool { return read().Status == want }, 2*time.Minute, 10*time.Millisecond)
	}
	require.Equal(t, dispatch.Submitted, read().Status)
	body := nested("r1", "mined", 5, time.Now())
	status, r := s.report(body, signature.HeaderOpenZeppelin, sign(oldSecret, body))
	require.Equal(t, http.StatusOK, status)
	require.True(t, r.Changed)
	becomes(dispatch.Mined)
	exec(`status = 'submitted'`) // a reorganization took it back
	becomes(dispatch.Submitted)

	redis.Pause()
	exec(`status = 'confirmed', open = false`)
	becomes(dispatch.Confirmed)
	redis.Resume()
	// Changes that no transaction can have show that an answer is the cache's.
	change := 0
	require.Eventually(t, func() bool {
		change++
		exec(fmt.Sprintf(`status_reason = '%d'`, change))
		return read().Reason != fmt.Sprint(change)
	}, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, dispatch.Confirmed, read().Status)
}
