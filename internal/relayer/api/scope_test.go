package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func TestScope_AuthorizedResponse_NamesTheCallersScope(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for key, scope := range map[string]string{testKey: "scope-of-first", otherKey: "scope-of-other"} {
		for request, code := range map[string]int{
			"GET /api/v1/relayers":                           200,
			"POST /api/v1/relayers/" + poolID + "/rpc":       400,
			"GET /api/v1/relayers/absent":                    404,
			"PUT /api/v1/relayers":                           405,
			"DELETE /api/v1/relayers/" + poolID:              501,
			"GET /api/v1/relayers/" + poolID + "/":           200,
			"GET /api/v1/relayers/" + poolID + "/no-such":    404,
			"DELETE /api/v1/relayers/" + poolID + "/balance": 405,
		} {
			method, path, _ := strings.Cut(request, " ")
			w := a.do(method, path, "", "Authorization", "Bearer "+key)
			require.Equal(t, code, w.Code, request)
			require.Equal(t, []string{scope}, w.Header()["Idempotency-Scope"], request)
		}
	}
	doubled := httptest.NewRequest("GET", "/api/v1//relayers/"+poolID+"/status", nil)
	doubled.Header.Set("Authorization", "Bearer "+testKey)
	recorded := httptest.NewRecorder()
	a.handler.ServeHTTP(recorded, doubled)
	require.Equal(t, []string{"scope-of-first"}, recorded.Header()["Idempotency-Scope"])
	w := a.do("GET", "/api/v1/relayers", "", "Idempotency-Scope", "one\ntwo")
	require.Equal(t, 400, w.Code)
	require.Equal(t, "scope-of-first", w.Header().Get("Idempotency-Scope"))
	for path, key := range map[string]string{
		"/api/v1/relayers": "", "/api/v1/relayers/" + poolID: "not-a-key-0123456789abcdef0123456789", "/health": testKey, "/api/v1/relayersX": testKey,
	} {
		w := a.do("GET", path, "", "Authorization", "Bearer "+key)
		require.NotContains(t, w.Header(), "Idempotency-Scope", path)
	}
}

func TestScope_AnotherIsRequired_412AndNothingIsDone(t *testing.T) {
	t.Parallel()
	a := setup(t)
	tx := a.submitted()
	calls := len(a.txs)
	for id, r := range requests(tx) {
		if !scoped(r.path) {
			continue
		}
		w := a.do(r.method, r.path, r.body, "Idempotency-Scope", "scope-of-other", "Idempotency-Key", "key-"+id)
		answer := read(t, w, http.StatusPreconditionFailed)
		require.Contains(t, *answer.Error, "Idempotency-Scope", id)
		require.NotContains(t, w.Body.String(), "scope-of-other", id)
		require.Equal(t, 200, a.do(r.method, r.path, r.body, "Idempotency-Scope", "scope-of-first", "Idempotency-Key", "key-"+id).Code, id)
		if id == "sendTransaction" {
			require.Equal(t, "scope-of-first", a.submission.Scope)
		}
	}
	require.Len(t, a.txs, calls+1) // only the one with the right scope
	require.Equal(t, 1, a.calls)

	r := httptest.NewRequest("GET", "/api/v1/relayers", nil)
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.Header["Idempotency-Scope"] = []string{"scope-of-first", "scope-of-first"}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, r)
	require.Equal(t, 400, w.Code)
}

func TestScope_NotKnown_OnlyRequestsThatRequireOneAreRefused(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.scope = func(string) (string, error) { return "", nil }
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/api/v1/relayers", nil)
	r.Header.Set("Authorization", "Bearer "+testKey)
	a.handler.ServeHTTP(w, r)
	require.Equal(t, 200, w.Code)
	require.NotContains(t, w.Header(), "Idempotency-Scope")

	w = a.do("POST", "/api/v1/relayers/pool-1/transactions", submission("1"), "Idempotency-Scope", "scope-of-first")
	require.Equal(t, 503, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))

	a.scope = func(string) (string, error) {
		return "", fmt.Errorf("%w: %w", relayer.ErrUnavailable, errors.New("secret internals"))
	}
	w = a.do("POST", "/api/v1/relayers/pool-1/transactions", submission("1"))
	require.Equal(t, 503, w.Code)
	require.NotContains(t, w.Body.String(), "secret")
	require.Empty(t, a.txs)
}

// The store may find another scope than the API has compared, because the database failed over in between.
func TestScope_ChangesDuringSubmission_412(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.fail = relayer.ErrOtherScope
	w := a.do("POST", "/api/v1/relayers/pool-1/transactions", submission("1"), "Idempotency-Scope", "scope-of-first")
	read(t, w, http.StatusPreconditionFailed)
}
