package tracker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/pool"
	"github.com/rollcall-dev/rollcall/internal/relayer/relaytest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// Many nonces that somebody else has used are looked into a few at each head, and none waits longer than those before it.
func TestManyForeignTransactionsAreFoundSoon(t *testing.T) {
	const many, heads = 40, 20
	followed := make(chan uint64)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	f := setup(t, 1, func(o *relaytest.Options) {
		o.Pool = func(c *pool.Config) { c.Cap = 2 * many }
		o.Tracker = func(c *tracker.Config) {
			c.Round = func(_ context.Context, _ []*relayer.Key, head chain.Header) {
				select {
				case followed <- head.Number:
				case <-ctx.Done():
				}
			}
		}
	})
	commit := func() {
		f.chain.Commit()
		number, err := f.chain.Client().BlockNumber(t.Context())
		require.NoError(t, err)
		for <-followed < number {
		}
	}
	var txs []*relayer.Transaction
	for range many {
		txs = append(txs, f.send())
	}
	for nonce := range uint64(many) {
		f.foreign(nonce)
	}
	for range heads {
		commit()
	}
	for i, tx := range txs {
		now, err := f.Transaction(t.Context(), relaytest.PoolID, tx.ID)
		require.NoError(t, err)
		require.True(t, now.Nonce == nil || *now.Nonce >= many, "the transaction with nonce %d", i)
	}
}
