package sqs

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/require"
)

func TestShow_ServerHangs_ReportsHidden(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client is gone
		<-r.Context().Done()
	}))
	defer server.Close()
	c := newClient(location{region: "us-east-1", endpoint: server.URL, dead: server.URL + "/1/dead"}, credentials.NewStaticCredentialsProvider("a", "b", ""))
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := c.show(ctx, []*received{{handle: "one"}, {handle: "two"}})
	require.ErrorContains(t, err, "2 dead letters stay hidden for up to 5m0s, because ")
}
