package tracker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// oracle is a chain that only returns anchors.
type oracle struct {
	tracker.Chain
	anchors []evm.Anchor
	onCall  func()
}

func (o *oracle) Anchors(context.Context, uint64, time.Duration) []evm.Anchor {
	o.onCall()
	return o.anchors
}

// sight is a view of a chain whose block hashes all have the same first byte.
type sight struct {
	tracker.View
	number uint64
	branch byte
}

func (s sight) block(n uint64) evm.Header {
	return evm.Header{Number: n, Hash: common.Hash{s.branch, 31: byte(n)}}
}

func (s sight) Header() evm.Header { return s.block(s.number) }

func (s sight) Headers(_ context.Context, from, _ uint64) ([]evm.Header, error) {
	return []evm.Header{s.block(from)}, nil
}

// A node that was not waited for keeps its last fault; a node that is down loses it.
func TestChainIdentity_NodeNotAwaited_KeepsItsFault(t *testing.T) {
	t.Parallel()
	here, elsewhere := sight{number: 40, branch: 1}, sight{number: 40, branch: 2}
	store := store.New(testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t), store.Config{ChainID: 1337, Pool: relayertest.PoolID})
	_, err := store.InitChain(t.Context(), here.block(0).Hash)
	require.NoError(t, err)
	well := evm.Anchor{Endpoint: "well", Genesis: here.block(0).Hash, Block: here.block(0)}
	o := &oracle{anchors: []evm.Anchor{well, {Endpoint: "slow", Genesis: elsewhere.block(0).Hash}}, onCall: func() {}}
	g := tracker.NewChainIdentity(o, store, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, g.Check(t.Context()), "slow has genesis")
	o.anchors = []evm.Anchor{well, {Endpoint: "slow", Err: fmt.Errorf("read blocks: %w", context.Canceled)}}
	require.ErrorContains(t, g.Check(t.Context()), "slow has genesis")
	o.anchors = []evm.Anchor{well, {Endpoint: "slow", Err: errors.New("connection refused")}}
	require.NoError(t, g.Check(t.Context()))
}

// A contradicting view stops sending at once, even while slow nodes are being queried, and their older responses do not
// undo that.
func TestChainIdentity_ViewContradicts_StopsSendingAtOnce(t *testing.T) {
	t.Parallel()
	here := sight{number: 40, branch: 1}
	another := store.New(testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t), store.Config{ChainID: 1337, Pool: relayertest.PoolID})
	_, err := another.InitChain(t.Context(), here.block(0).Hash)
	require.NoError(t, err)
	require.NoError(t, another.MoveAnchor(t.Context(), 0, store.Block{Number: 9, Hash: here.block(9).Hash}))
	o := &oracle{anchors: []evm.Anchor{{Genesis: here.block(0).Hash, Block: here.block(9)}}, onCall: func() {}}
	g := tracker.NewChainIdentity(o, another, slog.New(slog.DiscardHandler))
	require.NoError(t, g.Verify(t.Context(), here))
	require.Error(t, g.Err(), "only the nodes' responses enable sending")
	require.NoError(t, g.Check(t.Context()))

	checked, asked, answered := make(chan error, 1), make(chan struct{}), make(chan struct{})
	o.onCall = func() { close(asked); <-answered }
	go func() { checked <- g.Check(t.Context()) }()
	<-asked
	require.ErrorContains(t, g.Verify(t.Context(), sight{number: 40, branch: 2}), "another history")
	require.Error(t, g.Err())
	close(answered)
	require.ErrorContains(t, <-checked, "another history")
	o.onCall = func() {}
	require.NoError(t, g.Check(t.Context()), "until the nodes say otherwise again")

	require.ErrorContains(t, g.Verify(t.Context(), sight{number: 8, branch: 1}), "no block 9")
	require.NoError(t, g.Err(), "one node that is behind is no other chain")
}

func TestRound_ChecksChainIdentity(t *testing.T) {
	var own *tracker.ChainIdentity
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) {
			own = tracker.NewChainIdentity(c.Chain, c.Store, c.Log) // without a Run
			c.ChainIdentity = own
			require.NoError(t, own.Check(t.Context()))
		}
	})
	early, err := f.chain.Client().HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		f.chain.Commit()
		known, err := f.Store.Chain(t.Context())
		return err == nil && known.Anchor.Number > early.Number.Uint64()
	}, 2*time.Minute, 10*time.Millisecond)
	head, err := f.chain.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	f.chain.Fork(early.Hash())
	f.chain.AdjustTime(time.Hour) // otherwise the blocks would be the same
	for range head {
		f.chain.Commit()
	}
	require.Eventually(t, func() bool { return own.Err() != nil }, 2*time.Minute, 10*time.Millisecond)
}
