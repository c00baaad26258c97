package tracing_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestOpen_Endpoint_ExportsSpansOfTheClientsTrace(t *testing.T) {
	bodies := make(chan []byte, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if unzipped, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, _ = io.ReadAll(unzipped)
		}
		if r.URL.Path == "/v1/traces" {
			bodies <- body
		}
	}))
	tracer, end, err := tracing.Open(t.Context(), tracing.Config{Service: "api", Version: "1", Endpoint: receiver.URL, Ratio: 1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, span := tracer.Start(tracing.Extract(t.Context(), parent), "relay")
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", span.SpanContext().TraceID().String())
	sent := tracing.Inject(ctx)
	require.Contains(t, sent, "00-0af7651916cd43dd8448eb211c80319c-")
	require.NotEqual(t, parent, sent, "the span is the parent of the next one")
	span.End()
	end()
	require.Contains(t, string(<-bodies), "relay")
	receiver.Close()
}

func TestOpen_NoEndpoint_PassesTheTraceOn(t *testing.T) {
	tracer, end, err := tracing.Open(t.Context(), tracing.Config{})
	require.NoError(t, err)
	ctx, span := tracer.Start(tracing.Extract(t.Context(), parent), "relay")
	require.False(t, span.IsRecording())
	span.End()
	require.Equal(t, parent, tracing.Inject(ctx))
	end()
}

func TestExtract_Invalid_IsIgnored(t *testing.T) {
	for _, header := range []string{"", "junk", "00-00000000000000000000000000000000-b7ad6b7169203331-01", parent + "\n", "ff" + parent[2:]} {
		ctx := tracing.Extract(context.Background(), header)
		require.False(t, trace.SpanContextFromContext(ctx).IsValid(), "%q", header)
		require.Empty(t, tracing.Inject(ctx))
	}
}

func TestCheckEndpoint_Invalid_DoesNotShowIt(t *testing.T) {
	for _, url := range []string{"collector:4318", "ftp://user:hunter2@host", "http://"} {
		err := tracing.CheckEndpoint(url)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "hunter2")
	}
	require.NoError(t, tracing.CheckEndpoint("https://collector:4318/base"))
}
