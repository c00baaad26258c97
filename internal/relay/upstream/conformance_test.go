package upstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/relayer/api"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
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
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	ring := signertest.Ring(t, t.Name(), 2)
	chain.Fund(testchain.Ether(10), ring.Addresses()...)
	r := relayertest.Start(t, relayertest.Options{
		DatabaseURL: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).URL(), RPC: []string{chain.URL()}, Ring: ring,
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
	upstreamtest.Conformance(t, upstreamtest.Target{
		URL: "http://" + web.Addr().String(), Key: upstreamtest.Key, To: receiver, Idempotent: true,
	})
}
