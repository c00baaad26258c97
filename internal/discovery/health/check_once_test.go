package health

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck_OverHTTPAndTCP_ReturnsTheVerdict(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/well/health" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(server.Close)
	require.NoError(t, Check(t.Context(), patient, server.URL+"/well"))
	require.EqualError(t, Check(t.Context(), patient, server.URL), "status 418")
	teapot := patient
	teapot.Codes = Codes{418}
	require.NoError(t, Check(t.Context(), teapot, server.URL))
	require.NoError(t, Check(t.Context(), patient, "tcp://"+server.Listener.Addr().String()))

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() })
	requireNoAnswer(t, func(cfg Config) error { return Check(t.Context(), cfg, "http://"+silent.Addr().String()) })
	require.ErrorContains(t, Check(t.Context(), Config{Rise: 99}, server.URL), "rise 99")
}
