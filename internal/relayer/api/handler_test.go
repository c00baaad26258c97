package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// serve is do without the check against the description, for use in other goroutines.
func (a *api) serve(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+testKey)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	return w
}

func TestAuth_WithoutKey_IsRefused(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, authorization := range [][]string{
		nil, {""}, {"Bearer"}, {"Bearer "}, {"Bearer x"}, {testKey}, {"Basic " + testKey}, {"Bearer  " + testKey}, {"Bearer " + testKey + " "},
		{"Bearer " + testKey + "x"}, {"Bearer " + testKey[1:]}, {"Bearer " + strings.ToUpper(testKey)},
		{"Bearer " + testKey, "Bearer " + testKey}, {"Bearer " + testKey, "Bearer x"}, {"Bearer " + testKey + ",Bearer " + testKey},
		{"first:" + testKey},
	} {
		for _, path := range []string{"/api/v1/relayers", "/nowhere", "/", "/api/v1/healthy", "/api/v1/health/x", "/healthx", "/metricsx", "/api-docs", "//healthx", "/x//health", "/x/../health", "/./health", "//x/..//health"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header["Authorization"] = authorization
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, r)
			require.Equal(t, 401, w.Code, "%q %s", authorization, path)
			require.JSONEq(t, `{"success":false,"code":401,"error":"Unauthorized","message":"Unauthorized"}`, w.Body.String())
			require.Equal(t, "Bearer", w.Header().Get("Www-Authenticate"))
		}
	}
	for _, authorization := range []string{"Bearer " + testKey, "bearer " + otherKey} {
		require.Equal(t, 200, a.do("GET", "/api/v1/relayers", "", "Authorization", authorization).Code)
	}
	require.Equal(t, 404, a.do("GET", "/swagger-ui/index.html", "", "Authorization", "").Code)
}

// During a rotation both keys are valid, and the same caller's: limits, budgets and idempotency keys depend on its name.
// A handler needs valid keys and a bounded timeout.
func TestNewHandler_BadConfig_Fails(t *testing.T) {
	t.Parallel()
	_, err := NewHandler(Config{Service: newFake()})
	require.ErrorContains(t, err, "no API key")
	_, err = NewHandler(Config{Keys: []apikey.Key{{Name: "a", Key: testKey}}, RequestTimeout: 1 << 60})
	require.ErrorContains(t, err, "timeout")
}

func TestAuth_TwoKeysOfOneName_AreOneCaller(t *testing.T) {
	t.Parallel()
	var limited []string
	a := setup(t, func(c *Config) {
		c.Keys = []apikey.Key{{Name: "first", Key: testKey}, {Name: "other", Key: otherKey}, {Name: "first", Key: testKey + "-new"}}
		c.Limit = func(caller string, _ int) error {
			limited = append(limited, caller)
			return nil
		}
	})
	for _, key := range []string{testKey, testKey + "-new"} {
		w := a.do("POST", poolTransactions, submission("1"), "Authorization", "Bearer "+key, "Idempotency-Key", "k")
		require.Equal(t, 200, w.Code, w.Body.String())
		require.Equal(t, "first", a.submission.Caller)
		require.Equal(t, 200, a.do("GET", "/api/v1/relayers/"+poolID+"/balance", "", "Authorization", "Bearer "+key).Code)
	}
	require.Len(t, a.txs, 1)
	require.Equal(t, []string{"first", "first"}, limited)
}

func TestAuth_RoleTooLow_RequestDoesNotReachRelayer(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *Config) {
		c.Keys = []apikey.Key{{Name: "first", Key: testKey}, {Name: "sub", Key: testKey + "s", Role: apikey.Submitter}, {Name: "read", Key: testKey + "r", Role: apikey.Reader}}
	})
	all := requests(a.submitted())
	needs := map[string]apikey.Role{
		"updateRelayer": apikey.Full, "deletePendingTransactions": apikey.Full, "sign": apikey.Full, "signTypedData": apikey.Full,
		"sendTransaction": apikey.Submitter, "replaceTransaction": apikey.Submitter, "cancelTransaction": apikey.Submitter,
	}
	for id, r := range all {
		least, ok := needs[id]
		if !ok {
			least = apikey.Reader
		}
		for suffix, role := range map[string]apikey.Role{"": apikey.Full, "s": apikey.Submitter, "r": apikey.Reader} {
			before := len(a.txs)
			w := a.do(r.method, r.path, r.body, "Authorization", "Bearer "+testKey+suffix)
			if role <= least {
				require.Equal(t, 200, w.Code, "%s %d", id, role)
				continue
			}
			e := read(t, w, 403)
			require.Equal(t, "this API key may not do that", *e.Error, "%s %d", id, role)
			require.Len(t, a.txs, before)
		}
	}
}

// No path is redirected: extra slashes are ignored, as OpenZeppelin's does, and paths with dots are not found.
func TestHandler_UncleanPath_IsNotRedirected(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for path, code := range map[string]int{
		"/health/": 200, "//health": 200, "/api//v1/relayers": 200, "//api/v1///relayers//": 200, "/api/v1/relayers//pool-1?x=//": 200,
		"/": 404, "//": 404, "///": 404, "/api/v1/./relayers": 404, "/api/v1/x/../relayers": 404, "/..": 404, "/api/v1/relayers/..": 404,
		"/api/v1/relayers/%2e%2e": 404, "/api/v1/relayers/a%2F%2Fb": 404,
		poolTransactions + "//": 200, strings.Replace(poolTransactions, "/transactions", "%2F%2Ftransactions", 1): 404,
		strings.Replace(poolTransactions, "/transactions", "%2Ftransactions//", 1): 404,
	} {
		r := httptest.NewRequest(http.MethodGet, "http://x/", nil)
		var err error
		r.URL, err = url.ParseRequestURI(path)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+testKey)
		w := httptest.NewRecorder()
		a.handler.ServeHTTP(w, r)
		require.Equal(t, code, w.Code, path)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"), path)
		require.True(t, json.Valid(w.Body.Bytes()), path)
	}
}

func TestRoutes_NotImplemented_SaysSo(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, path := range []string{"/", "/api/v1", "/api/v1/nothing", "/api/v1/relayers/a/nothing", "/metrics", "/api/v1/relayers/a/transactions/b/c"} {
		e := read(t, a.do("GET", path, ""), 404)
		require.Contains(t, *e.Error, "no such route")
	}
	for _, c := range []struct{ method, path, allow string }{
		{"PUT", "/api/v1/relayers", "GET, HEAD"},
		{"DELETE", poolTransactions, "POST, GET, HEAD"},
		{"POST", poolTransactions + "/x", "GET, HEAD, PUT, DELETE"},
		{"PATCH", poolTransactions + "/pending", "GET, HEAD, PUT, DELETE"},
		{"GET", "/api/v1/relayers/a/sign", "POST"},
		{"POST", "/health", "GET, HEAD"},
		{"OPTIONS", "/api/v1/relayers/a", "GET, HEAD, PATCH"},
		{"BREW", "/api/v1/relayers/a", "GET, HEAD, PATCH"},
	} {
		w := a.do(c.method, c.path, "")
		read(t, w, 405)
		require.Equal(t, c.allow, w.Header().Get("Allow"), "%s %s", c.method, c.path)
	}
	for _, c := range []struct{ method, path, says string }{
		{"POST", "/api/v1/relayers", "keys"}, {"DELETE", "/api/v1/relayers/a", "keys"}, {"GET", "/api/v1/signers", "keys"},
		{"PATCH", "/api/v1/signers/a", "keys"}, {"POST", "/api/v1/notifications", "webhooks"}, {"GET", "/api/v1/notifications/a", "webhooks"},
		{"GET", "/api/v1/networks/evm:dev", "chain"}, {"POST", "/api/v1/plugins/a/call", "plugins"}, {"GET", "/api/v1/plugins", "plugins"},
		{"POST", "/api/v1/api-keys", "API keys"}, {"DELETE", "/api/v1/api-keys/a", "API keys"},
		{"POST", "/api/v1/relayers/a/sign-transaction", "Stellar"},
		{"POST", poolTransactions + "/sponsored/quote", "Stellar"}, {"POST", poolTransactions + "/sponsored/build", "Stellar"},
	} {
		e := read(t, a.do(c.method, c.path, "{}"), 501)
		require.Contains(t, *e.Error, "not supported by this relayer")
		require.Contains(t, *e.Error, c.says)
	}
	// A trailing slash is ignored.
	for _, path := range []string{"/api/v1/relayers/", "/health/", poolTransactions + "//"} {
		require.Equal(t, 200, a.serve("GET", path, "").Code, path)
	}
	w := a.do("HEAD", "/api/v1/relayers", "")
	require.Equal(t, 200, w.Code)
	require.NotEqual(t, "0", w.Header().Get("Content-Length"))
}

func TestHandler_Body_SizeAndTypeAreChecked(t *testing.T) {
	t.Parallel()
	a := setup(t)
	padded := strings.Repeat(" ", maxBody-len(submission("1"))) + submission("1")
	require.Equal(t, 200, a.do("POST", poolTransactions, padded).Code)
	require.Equal(t, 413, a.do("POST", poolTransactions, padded+" ").Code)

	read := 0
	r := httptest.NewRequest("POST", poolTransactions, io.NopCloser(readerFunc(func(p []byte) (int, error) { read += len(p); return len(p), nil })))
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.ContentLength = -1
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	require.Equal(t, 413, w.Code)
	require.LessOrEqual(t, read, 2*maxBody)

	read = 0
	r.ContentLength = 10 << 20
	w = httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	require.Equal(t, 413, w.Code)
	require.Zero(t, read)
	require.Equal(t, "close", w.Header().Get("Connection"))

	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("{"), readerFunc(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }))), 5
	w = httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	require.Equal(t, 400, w.Code)
	require.Contains(t, w.Body.String(), "ended early")
	require.Len(t, a.txs, 1)

	for contentType, code := range map[string]int{
		"": 200, "application/json": 200, "application/json; charset=utf-8": 200, "Application/JSON;charset=UTF-8": 200,
		"text/json": 415, "application/json; charset=latin1": 415, "application/x-www-form-urlencoded": 415, ";": 415, "application/merge-patch+json": 415,
	} {
		require.Equal(t, code, a.do("POST", poolTransactions, submission("1"), "Content-Type", contentType).Code, contentType)
	}
	require.Equal(t, 415, a.do("POST", poolTransactions, submission("1"), "Content-Encoding", "gzip").Code)
	require.Equal(t, 200, a.do("POST", poolTransactions, submission("1"), "Content-Encoding", "identity").Code)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestHandler_RequestID_IsEchoed(t *testing.T) {
	t.Parallel()
	a := setup(t)
	require.Equal(t, "é-1", a.do("GET", "/health", "", "X-Request-Id", "é-1").Header().Get("X-Request-Id"))
	one, two := a.do("GET", "/health", "").Header().Get("X-Request-Id"), a.do("GET", "/health", "").Header().Get("X-Request-Id")
	require.Regexp(t, "^[0-9a-f]{16}$", one)
	require.NotEqual(t, one, two)
	for given, want := range map[string]string{
		strings.Repeat("x", 257): "^[0-9a-f]{16}$", "a\x01b": "^[0-9a-f]{16}$", "\xff": "^[0-9a-f]{16}$", "\xff\na\nb": "^a$", "b\na": "^b$",
	} {
		for _, path := range []string{"/health", "/api/v1/relayers", "/api/v1/relayers/pool-1"} {
			w := a.do("GET", path, "", "X-Request-Id", given)
			require.Equal(t, 200, w.Code, "%q", given)
			require.Regexp(t, want, w.Header().Get("X-Request-Id"))
		}
	}
}

func TestHandler_RepeatedIdempotencyKey_IsRejected(t *testing.T) {
	t.Parallel()
	a := setup(t)
	w := a.do("POST", poolTransactions, submission("1"), "Idempotency-Key", "a\nb")
	require.Contains(t, *read(t, w, 400).Error, "Idempotency-Key: is there twice")
	require.Empty(t, a.txs)
}

// A client that asks for problems gets them, and all others OpenZeppelin's bodies.
func TestHandler_ClientAsksForProblems_GetsThem(t *testing.T) {
	t.Parallel()
	a := setup(t)
	problem := func(want int, method, path, body string, headers ...string) httpserver.Problem {
		t.Helper()
		w := a.do(method, path, body, append([]string{"Accept", "application/json, application/problem+json"}, headers...)...)
		require.Equal(t, want, w.Code)
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		var p httpserver.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, want, p.Status)
		require.Equal(t, http.StatusText(want), p.Title)
		require.Equal(t, "about:blank", p.Type)
		require.NotEmpty(t, p.Detail)
		return p
	}
	p := problem(400, "POST", poolTransactions, `{"to":"0xaa"}`)
	require.Equal(t, "to", p.Field)
	require.Contains(t, p.Detail, `must be an address, 0x and 40 hex digits, not "0xaa"`)
	problem(401, "GET", "/api/v1/relayers", "", "Authorization", "")
	problem(404, "GET", "/nowhere", "")
	a.fail = &relayer.LimitError{Limit: "global rate", After: time.Second}
	problem(429, "POST", poolTransactions, submission("1"))
	a.fail = nil
	require.Equal(t, "application/json", a.do("GET", "/api/v1/relayers", "", "Accept", "application/problem+json").Header().Get("Content-Type"), "no failure")
	require.Equal(t, "application/json", a.do("GET", "/nowhere", "", "Accept", "application/json").Header().Get("Content-Type"))
}

func TestHandler_Panic_EndsOneRequest(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.panics = "index out of range"
	w := a.do("POST", poolTransactions, submission("31337"))
	e := read(t, w, 500)
	require.Contains(t, *e.Error, w.Header().Get("X-Request-Id"))
	require.NotContains(t, *e.Error, "index")
	require.Contains(t, a.log.String(), "index out of range")
	require.Contains(t, a.log.String(), "fake_test.go")
	require.Equal(t, 1, strings.Count(a.log.String(), "level=ERROR"), "once is enough")
	require.NotContains(t, a.log.String(), testKey)
	require.NotContains(t, a.log.String(), "31337")

	a.panics = http.ErrAbortHandler
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { a.do("GET", "/api/v1/relayers", "") })
	a.panics = nil
	require.Equal(t, 200, a.do("GET", "/api/v1/relayers", "").Code)
	var inFlight dto.Metric
	require.NoError(t, a.handler.metrics.inFlight.Write(&inFlight))
	require.Zero(t, inFlight.GetGauge().GetValue())
}

func TestHandler_LogAndMetrics_ContainRoutesOnly(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.do("POST", poolTransactions, submission("31337"), "X-Request-Id", "req-1")
	a.do("GET", "/api/v1/relayers/made-up", "")
	a.do("BREW", "/made-up", "")
	a.do("GET", "/api/v1/relayers", "", "Authorization", "Bearer wrong-key-that-a-client-mistyped")
	log := a.log.String()
	require.Contains(t, log, "level=DEBUG msg=\"request answered\" component=api method=POST "+
		"route=/api/v1/relayers/{relayer_id}/transactions code=200 caller=first request_id=req-1 took=")
	for _, secret := range []string{"31337", testKey, "made-up", "BREW", "mistyped", "Bearer"} {
		require.NotContains(t, log, secret)
	}
	families, err := a.metrics.Gather()
	require.NoError(t, err)
	var series []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetHistogram() == nil {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			series = append(series, strings.Join(labels, " "))
		}
	}
	require.ElementsMatch(t, []string{
		"200 POST /api/v1/relayers/{relayer_id}/transactions", "404 GET /api/v1/relayers/{relayer_id}", "404 other none", "401 GET none",
	}, series)
}

func TestMetrics_Configured_AreServed(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up 1") })
		c.Version = "v9"
	})
	w := a.serve("GET", "/metrics", "")
	require.Equal(t, 200, w.Code)
	require.Equal(t, "up 1", w.Body.String())
	require.Contains(t, a.do("GET", "/api-docs/openapi.json", "").Body.String(), `"version":"v9"`)
}

// Log lines of a request carry the ids of its trace, so that they are found from the trace.
func TestLog_RequestHasATrace_CarriesItsIDs(t *testing.T) {
	t.Parallel()
	const header, ids = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331"
	a := setup(t)
	a.do("GET", "/api/v1/relayers", "", "Traceparent", header)
	require.Regexp(t, `msg="request answered" .* `+ids+`\n$`, a.log.String())
	a.log.Reset()
	a.fail = errors.New("no database")
	a.do("GET", "/api/v1/relayers", "", "Traceparent", header)
	require.Regexp(t, `msg="request failed" .* `+ids+`\n$`, a.log.String())
	a.log.Reset()
	a.do("GET", "/api/v1/relayers", "", "Traceparent", header+"\n"+header) // two traces are none
	require.NotContains(t, a.log.String(), "trace_id")
}
