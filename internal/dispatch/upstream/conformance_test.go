package upstream_test

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
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

var receiver = common.HexToAddress("0x00000000000000000000000000000000000000ff")

func TestConformance_StandIns(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]upstreamtest.Options{
		"as OpenZeppelin's": {}, "newest first": {NewestFirst: true}, "as this project's": {ID: "pool", Scope: "5c09e"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upstreamtest.Start(t, o)
			upstreamtest.Conformance(t, upstreamtest.Target{URL: r.URL(), Key: upstreamtest.Key, To: receiver, Idempotent: o.Scope != ""})
		})
	}
}

func TestConformance_ThisProjectsRelayer(t *testing.T) {
	t.Parallel()
	upstreamtest.Conformance(t, upstreamtest.Target{
		URL: ourRelayer(t, tracing.Off()), Key: upstreamtest.Key, To: receiver, Idempotent: true,
	})
}

// ourRelayer starts a relayer of this project, and returns its URL.
func ourRelayer(t *testing.T, tracer trace.Tracer) string {
	t.Helper()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	ring := signertest.Ring(t, t.Name(), 2)
	chain.Fund(testchain.Ether(10), ring.Addresses()...)
	r := relayertest.Start(t, relayertest.Options{
		DatabaseURL: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).URL(), RPC: []string{chain.URL()}, Ring: ring,
		Sender: func(c *sender.Config) { c.Tracer = tracer },
	})
	handler, err := api.NewHandler(api.Config{Service: r.Service, Keys: []apikey.Key{{Name: "consumer", Key: upstreamtest.Key}}})
	require.NoError(t, err)
	web, err := api.Open(t.Context(), "127.0.0.1:0", handler)
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	done := make(chan error, 1)
	go func() { done <- web.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return "http://" + web.Addr().String()
}

// Our relayer gets an amount that no float can hold as the client posted it, and returns it so.
func TestSubmit_LargestValue_ReachesOurRelayer(t *testing.T) {
	t.Parallel()
	client := open(t, ourRelayer(t, nil), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	s := submission()
	s.RelayerID, s.IdempotencyKey = relayertest.PoolID, "largest"
	s.Value = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	result := client.Submit(t.Context(), s)
	require.Equal(t, upstream.Accepted, result.Outcome, result.Reason)
	tx, err := client.Get(t.Context(), upstream.Ref{ID: relayertest.PoolID}, result.Transaction.ID)
	require.NoError(t, err)
	require.Equal(t, s.Value, tx.Value)
}

// The span of a signature is below the span that the request's header names, and is exported only if the client samples the trace.
func TestSubmit_Traceparent_IsTheParentOfTheSignature(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans), sdk.WithSampler(sdk.ParentBased(sdk.AlwaysSample())))
	client := open(t, ourRelayer(t, provider.Tracer("test")), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	for _, flags := range []string{"-00", "-01"} { // the unsampled one is signed first
		s := submission()
		s.RelayerID, s.IdempotencyKey, s.Traceparent = relayertest.PoolID, "key"+flags, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"+flags
		result := client.Submit(t.Context(), s)
		require.Equal(t, upstream.Accepted, result.Outcome, result.Reason)
		require.Eventually(t, func() bool {
			tx, err := client.Get(t.Context(), upstream.Ref{ID: relayertest.PoolID}, result.Transaction.ID)
			return err == nil && tx.Hash != (common.Hash{})
		}, patience, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return len(spans.GetSpans()) > 0 }, patience, 10*time.Millisecond)
	exported := spans.GetSpans()
	require.Len(t, exported, 1)
	require.Equal(t, "sign", exported[0].Name)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", exported[0].SpanContext.TraceID().String())
	require.Equal(t, "b7ad6b7169203331", exported[0].Parent.SpanID().String())
}
