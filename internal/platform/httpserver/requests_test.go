package httpserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
)

func TestRequestID_FirstValidOrNew(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 257)
	for want, ids := range map[string][]string{
		"a": {"a"}, "b": {"b", "a"}, "c": {"", "c"}, "d": {long, "\xff", "e\x01", "d", "f"}, "é 1": {"é 1"}, long[1:]: {long[1:]},
	} {
		require.Equal(t, want, httpserver.RequestID(http.Header{"X-Request-Id": ids}))
	}
	seen := map[string]bool{}
	for _, ids := range [][]string{nil, {""}, {long}, {"\xff", "a\nb"}, {"a\x01"}} {
		id := httpserver.RequestID(http.Header{"X-Request-Id": ids})
		require.Regexp(t, "^[0-9a-f]{16}$", id)
		require.False(t, seen[id])
		seen[id] = true
	}
}

func TestWantsProblem(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"":                         false,
		"*/*":                      false,
		"application/json":         false,
		"application/*":            false,
		"application/problem+json": true,
		"Application/Problem+JSON": true,
		"application/json, application/problem+json":             true,
		"application/problem+json;q=0.5, application/json;q=0.5": true,
		"application/problem+json;q=0.4, application/json;q=0.5": false,
		"application/problem+json;q=0":                           false,
		"application/problem+json;q=x":                           false,
		"text/html, */*;q=0.1, application/problem+json;q=0.3":   true,
	} {
		require.Equal(t, want, httpserver.WantsProblem(http.Header{"Accept": {accept}}), accept)
	}
	require.True(t, httpserver.WantsProblem(http.Header{"Accept": {"text/html", "application/problem+json"}}))
}
