package main

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/relayer/api"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
)

// The relay path's client meets this project's relayer here, because neither product imports the other.

var receiver = common.HexToAddress("0x00000000000000000000000000000000000000ff")

// servedRelayer starts a relayer with its API, and returns its URL.
func servedRelayer(t *testing.T, tracer trace.Tracer) string {
	t.Helper()
	r := startRelay(t, 2, func(o *relayertest.Options) { o.Sender = func(c *sender.Config) { c.Tracer = tracer } })
	handler, err := api.NewHandler(api.Config{Service: r.Service, Keys: []apikey.Key{{Name: "consumer", Key: upstreamtest.Key}}})
	require.NoError(t, err)
	web, err := api.Open(t.Context(), "127.0.0.1:0", handler)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- web.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return "http://" + web.Addr().String()
}

// clientOf returns the relay path's client of a served relayer.
func clientOf(t *testing.T, url string) *upstream.Client {
	t.Helper()
	c, err := upstream.New(upstream.Config{URL: url, Key: upstreamtest.Key})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func submission(key string) upstream.Submission {
	return upstream.Submission{
		RelayerID: relayertest.PoolID, IdempotencyKey: key, To: &receiver, Value: big.NewInt(1), Data: []byte{1, 2, 3}, GasLimit: 100_000, Speed: "average",
	}
}

func TestRelayerClient_ThisProjectsRelayer_Conforms(t *testing.T) {
	t.Parallel()
	upstreamtest.Conformance(t, upstreamtest.Target{URL: servedRelayer(t, tracing.Off()), Key: upstreamtest.Key, To: receiver, Idempotent: true})
}

// Our relayer gets an amount that no float can hold as the client posted it, and returns it so.
func TestRelayerClient_LargestValue_ReachesTheRelayer(t *testing.T) {
	t.Parallel()
	client := clientOf(t, servedRelayer(t, nil))
	s := submission("largest")
	s.Value = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	result := client.Submit(t.Context(), s)
	require.Equal(t, upstream.Accepted, result.Outcome, result.Reason)
	tx, err := client.Get(t.Context(), upstream.Ref{ID: relayertest.PoolID}, result.Transaction.ID)
	require.NoError(t, err)
	require.Equal(t, s.Value, tx.Value)
}

func TestRelayerClient_Chain_IsPublished(t *testing.T) {
	t.Parallel()
	client := clientOf(t, servedRelayer(t, nil))
	info, err := client.Discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(1337), info.ChainID)
	require.Equal(t, "evm:1337", info.Network)
	asked, err := client.Chain(t.Context(), info)
	require.NoError(t, err)
	require.Equal(t, info.ChainID, asked)
	now, err := client.Confirm(t.Context(), info)
	require.NoError(t, err)
	require.Equal(t, info, now)
}

// The span of a signature is below the span that the request's header names, and is exported only if the client samples the trace.
func TestRelayerClient_Traceparent_IsTheParentOfTheSignature(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.ParentBased(sdk.AlwaysSample())))
	client := clientOf(t, servedRelayer(t, provider.Tracer("test")))
	for _, flags := range []string{"-00", "-01"} { // the unsampled one is signed first
		s := submission("key" + flags)
		s.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331" + flags
		result := client.Submit(t.Context(), s)
		require.Equal(t, upstream.Accepted, result.Outcome, result.Reason)
		require.Eventually(t, func() bool {
			tx, err := client.Get(t.Context(), upstream.Ref{ID: relayertest.PoolID}, result.Transaction.ID)
			return err == nil && tx.Hash != (common.Hash{})
		}, 2*time.Minute, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return len(spans.GetSpans()) > 0 }, 2*time.Minute, 10*time.Millisecond)
	exported := spans.GetSpans()
	require.Len(t, exported, 1)
	require.Equal(t, "sign", exported[0].Name)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", exported[0].SpanContext.TraceID().String())
	require.Equal(t, "b7ad6b7169203331", exported[0].Parent.SpanID().String())
}
