package health

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

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
	require.NoError(t, Check(t.Context(), Config{}, server.URL+"/well"))
	require.EqualError(t, Check(t.Context(), Config{}, server.URL), "status 418")
	require.NoError(t, Check(t.Context(), Config{Codes: Codes{418}}, server.URL))
	require.NoError(t, Check(t.Context(), Config{}, "tcp://"+server.Listener.Addr().String()))

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { silent.Close() })
	require.ErrorContains(t, Check(t.Context(), Config{Timeout: 50 * time.Millisecond, ConnectTimeout: 50 * time.Millisecond}, "http://"+silent.Addr().String()), "no answer within 50ms")
	require.ErrorContains(t, Check(t.Context(), Config{Rise: 99}, server.URL), "rise 99")
}
