package sqs_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testsqs.Main(m)) }

func reachable(t *testing.T, endpoint string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint+"/health", nil)
	require.NoError(t, err)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil
}

func TestEndpoint_SecondCall_ReturnsTheSameServer(t *testing.T) {
	t.Parallel()
	endpoint := testsqs.Endpoint(t)
	require.Equal(t, endpoint, testsqs.Endpoint(t))
	require.True(t, reachable(t, endpoint))
	require.Regexp(t, `^https?://[^/]+/\d{12}/some-queue$`, testsqs.QueueURL(t, endpoint, "some-queue"))
}

func TestOwn_StoppedAndStarted_KeepsItsEndpoint(t *testing.T) {
	t.Parallel()
	s := testsqs.Own(t)
	require.True(t, reachable(t, s.Endpoint()))
	s.Stop()
	require.False(t, reachable(t, s.Endpoint()))
	s.Start()
	require.True(t, reachable(t, s.Endpoint()))
}
