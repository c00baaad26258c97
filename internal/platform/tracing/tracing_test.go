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
	"go.opentelemetry.io/otel/attribute"
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

// Each sampler decides about a trace that begins here, and about that of a client that samples it, or does not.
func TestOpen_Sampler_Decides(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer receiver.Close()
	const unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	all, none := [3]bool{true, true, true}, [3]bool{}
	tests := map[string]struct{ whole, nothing [3]bool }{ // new, sampled and not sampled by the client; with the ratios 1 and 0
		"":                         {[3]bool{true, true, false}, [3]bool{false, true, false}},
		"parentbased_traceidratio": {[3]bool{true, true, false}, [3]bool{false, true, false}},
		"parentbased_always_on":    {[3]bool{true, true, false}, [3]bool{true, true, false}},
		"parentbased_always_off":   {[3]bool{false, true, false}, [3]bool{false, true, false}},
		"traceidratio":             {all, none},
		"always_on":                {all, all},
		"always_off":               {none, none},
	}
	require.Len(t, tests, len(tracing.Samplers)+1)
	for name, want := range tests {
		for ratio, want := range map[float64][3]bool{1: want.whole, 0: want.nothing} {
			tracer, end, err := tracing.Open(t.Context(), tracing.Config{Endpoint: receiver.URL, Sampler: name, Ratio: ratio, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			var got [3]bool
			for i, header := range []string{"", parent, unsampled} {
				_, span := tracer.Start(tracing.Extract(t.Context(), header), "relay")
				got[i] = span.SpanContext().IsSampled()
				span.End()
			}
			end()
			require.Equal(t, want, got, "%s with %v", name, ratio)
		}
	}
}

func TestOpen_Attributes_ReplaceTheNames(t *testing.T) {
	bodies := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if unzipped, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, _ = io.ReadAll(unzipped)
		}
		bodies <- string(body)
	}))
	defer receiver.Close()
	attributes, err := tracing.ParseAttributes("service.name=ignored, team = payments%2Ceu ,,service.version=7")
	require.NoError(t, err)
	attributes = append(attributes, attribute.String("service.name", "shop-api"))
	tracer, end, err := tracing.Open(t.Context(), tracing.Config{
		Service: "rollcall-api", Version: "devel", Attributes: attributes, Endpoint: receiver.URL, Ratio: 1, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	_, span := tracer.Start(t.Context(), "relay")
	span.End()
	end()
	body := <-bodies
	for _, want := range []string{"shop-api", "payments,eu", "team"} {
		require.Contains(t, body, want)
	}
	for _, replaced := range []string{"rollcall-api", "ignored", "devel"} {
		require.NotContains(t, body, replaced)
	}
}

func TestParseAttributes_Invalid_NamesThePair(t *testing.T) {
	for text, want := range map[string]string{"a=1,b": `"b" is not key=value`, "=x": `"=x" is not key=value`, "a=%zz": "the value of a is not percent-encoded"} {
		_, err := tracing.ParseAttributes(text)
		require.ErrorContains(t, err, want)
	}
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
