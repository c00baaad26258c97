package keymonitor_test

import (
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api"
	"github.com/rollcall-dev/rollcall/internal/relayer/limits"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// apiServer is a relayer's HTTP server.
type apiServer struct {
	t       *testing.T
	handler http.Handler
}

const oneKey, otherKey = "an-api-key-of-32-characters-or-more", "another-key-of-32-characters-or-more"

func serve(t *testing.T, r *relayertest.Relayer) *apiServer {
	t.Helper()
	handler, err := api.NewHandler(api.Config{Service: r.Service, Keys: []apikey.Key{{Name: "one", Key: oneKey}, {Name: "other", Key: otherKey}}})
	require.NoError(t, err)
	return &apiServer{t: t, handler: handler}
}

// answer is a response of the API.
type answer struct {
	code   int
	header http.Header
	text   string
	ID     string // of a transaction
}

func (a *apiServer) ask(method, path, body, key, idempotency string) answer {
	a.t.Helper()
	r := httptest.NewRequestWithContext(a.t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+key)
	if idempotency != "" {
		r.Header.Set("Idempotency-Key", idempotency)
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	var answered struct {
		Data struct{ ID string }
	}
	_ = json.Unmarshal(w.Body.Bytes(), &answered)
	return answer{w.Code, w.Header(), w.Body.String(), answered.Data.ID}
}

func (a *apiServer) post(body, key string) answer {
	return a.ask("POST", "/api/v1/relayers/pool/transactions", body, key, "")
}

func (a *apiServer) limited(got answer, text string) {
	a.t.Helper()
	require.Equal(a.t, http.StatusTooManyRequests, got.code, got.text)
	require.Contains(a.t, got.text, text)
	after, err := strconv.Atoi(got.header.Get("Retry-After"))
	require.NoError(a.t, err)
	require.Positive(a.t, after)
}

func TestPool_Disabled_FinishesPendingAndRejectsNew(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000)
	good := `{"to":"` + f.chain.Accounts[0].Address.Hex() + `","value":1,"data":"0x","speed":"fast"}`
	on := relayertest.Start(t, f.options())
	accepted := serve(t, on).ask("POST", "/api/v1/relayers/pool/transactions", good, oneKey, "key-1")
	require.Equal(t, 200, accepted.code, accepted.text)
	on.Stop()

	o := f.options()
	o.Pool = func(c *service.Config) { c.Enabled = false }
	off := relayertest.Launch(t, o)
	a := serve(t, off)
	f.health(off)
	require.Eventually(t, func() bool {
		h := a.ask("GET", "/health", "", "", "")
		return h.code == http.StatusServiceUnavailable && strings.Contains(h.text, "RELAYER_ENABLED is false")
	}, patience, 10e6)
	for _, path := range []string{"pool", f.keys[0].Hex()} {
		refused := a.ask("POST", "/api/v1/relayers/"+path+"/transactions", good, oneKey, "key-2")
		require.Equal(t, http.StatusForbidden, refused.code, refused.text)
	}
	require.Equal(t, http.StatusForbidden, a.ask("PUT", "/api/v1/relayers/pool/transactions/"+accepted.ID, good, oneKey, "").code)
	// An accepted transaction is still returned by a replay, and finished.
	replayed := a.ask("POST", "/api/v1/relayers/pool/transactions", good, oneKey, "key-1")
	require.Equal(t, 200, replayed.code, replayed.text)
	require.Equal(t, accepted.ID, replayed.ID)
	f.mine("it is confirmed", func() bool {
		tx, err := off.Store.Transaction(t.Context(), uuid.MustParse(accepted.ID))
		return err == nil && tx.Status == relayer.Confirmed
	})
}

func TestPolicies_Violated_ResponseNamesPolicy(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000)
	listed := f.chain.Accounts[0].Address
	o := f.options()
	o.Pool = func(c *service.Config) {
		c.Receivers, c.MaxFee, c.MaxGas = []common.Address{listed}, big.NewInt(50_000_000_000), 100_000
	}
	r := relayertest.Start(t, o)
	a := serve(t, r)
	to := `"to":"` + listed.Hex() + `","value":1,"data":"0x"`
	for name, c := range map[string]struct{ body, says string }{
		"another receiver":      {`{"to":"` + f.chain.Accounts[1].Address.Hex() + `","value":1,"data":"0x","speed":"fast"}`, "is not among the receivers"},
		"zero address":          {`{"to":"0x0000000000000000000000000000000000000000","value":1,"data":"0x","speed":"fast"}`, "is not among the receivers"},
		"a contract":            {`{"value":0,"data":"0x6000","speed":"fast","gas_limit":90000}`, "creates no contracts"},
		"gas price":             {`{` + to + `,"gas_price":50000000001}`, "gas_price: is above the relayer's cap of 50000000000 wei"},
		"maximal fee":           {`{` + to + `,"max_fee_per_gas":50000000001,"max_priority_fee_per_gas":1}`, "max_fee_per_gas: is above"},
		"tip":                   {`{` + to + `,"max_fee_per_gas":50000000000,"max_priority_fee_per_gas":50000000001}`, "must not be below max_priority_fee_per_gas"},
		"gas limit":             {`{` + to + `,"speed":"fast","gas_limit":100001}`, "gas_limit: 100001 is more than the 100000"},
		"a gas limit too small": {`{` + to + `,"speed":"fast","gas_limit":20999}`, "gas_limit: must be at least 21000"},
	} {
		got := a.post(c.body, oneKey)
		require.Equal(t, http.StatusBadRequest, got.code, "%s: %s", name, got.text)
		require.Contains(t, got.text, c.says, name)
	}
	for name, body := range map[string]string{
		"at the caps": `{` + to + `,"max_fee_per_gas":50000000000,"max_priority_fee_per_gas":50000000000,"gas_limit":100000}`,
		"to a key":    `{"to":"` + f.keys[0].Hex() + `","value":1,"data":"0x","speed":"fast"}`,
	} {
		require.Equal(t, 200, a.post(body, oneKey).code, name)
	}
	key := f.key(r, f.keys[0], "there", func(*relayer.Key) bool { return true })
	require.EqualValues(t, 2, key.NextNonce, "a rejected request took no nonce")
}

func TestLimits_Exceeded_ResponseHasRetryAfter(t *testing.T) {
	t.Parallel()
	f := setup(t, 10_000)
	o := f.options()
	o.Registry = prometheus.NewRegistry()
	o.Budgets = store.Budgets{Trader: milli(1)}
	o.Pool = func(c *service.Config) {
		c.Guard = limits.NewGuard(limits.Rates{Caller: ratelimit.Rate{PerSecond: 0.001, Burst: 4}})
	}
	r := relayertest.Start(t, o)
	f.owns(r, f.keys[0], milli(10_000))
	a := serve(t, r)
	body := func(wei, trader, gas string) string {
		return `{"to":"` + f.chain.Accounts[0].Address.Hex() + `","value":"` + wei + `","data":"0x","max_fee_per_gas":10000000000,"max_priority_fee_per_gas":1,` +
			`"gas_limit":` + gas + `,"metadata":{"trader":"` + trader + `"}}`
	}
	// 60,000 gas at 10 gwei are 0.0006 ether.
	require.Equal(t, 200, a.post(body("1", "x", "60000"), oneKey).code)
	over := a.post(body("1", "x", "60000"), oneKey)
	a.limited(over, "daily gas budget of the trader")
	require.Equal(t, 200, a.post(body("1", "y", "60000"), oneKey).code)
	more := a.post(body("10000000000000000001", "z", "21000"), oneKey) // more than the key has
	require.Equal(t, http.StatusBadRequest, more.code, more.text)
	require.Contains(t, more.text, "value: is more than the relayer has")
	poor := a.post(body("10000000000000000000", "z", "21000"), otherKey)
	require.Equal(t, http.StatusServiceUnavailable, poor.code, poor.text)
	require.Contains(t, poor.text, "no key can pay for it")
	a.limited(a.post(body("1", "z", "21000"), oneKey), "rate limit of the API key")
	require.Equal(t, 200, a.post(body("1", "z", "21000"), otherKey).code, "others are not held up")
	for limit, n := range map[string]float64{"daily gas budget of the trader": 1, "funds": 1, "rate limit of the API key": 1} {
		requireMetric(t, o.Registry, "rollcall_relayer_rate_limited_total", map[string]string{"limit": limit}, n)
	}
	requireMetric(t, o.Registry, "rollcall_relayer_submissions_total", map[string]string{"outcome": "accepted"}, 3)
	requireMetric(t, o.Registry, "rollcall_relayer_submissions_total", map[string]string{"outcome": "refused"}, 4)

	// A replacement that may cost more than the remaining budget is rejected as well, and a cheaper one refunds the
	// difference.
	accepted := a.post(body("1", "w", "60000"), otherKey)
	require.Equal(t, 200, accepted.code, accepted.text)
	at := "/api/v1/relayers/pool/transactions/" + accepted.ID
	a.limited(a.ask("PUT", at, body("1", "w", "100001"), otherKey, ""), "daily gas budget of the trader")
}
