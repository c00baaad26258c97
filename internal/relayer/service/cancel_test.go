package service_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
)

// Everything pending is canceled: queued transactions at once, those with a nonce by no-ops that the tracker signs.
func TestCancelPending_CancelsAll(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t, func(c *service.Config) { c.Cap = 2 })
	var want []uuid.UUID
	var txs []*relayer.Transaction
	for range 4 {
		tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
		want, txs = append(want, tx.ID), append(txs, tx)
	}
	r.Reaches(t, txs[1], relayer.Broadcasted)
	done, err := r.CancelPending(t.Context(), relayertest.PoolID, "test")
	require.NoError(t, err)
	require.ElementsMatch(t, want, done.Queued)
	require.Empty(t, done.Failed)
	r.Reaches(t, txs[2], relayer.Canceled)
	r.Reaches(t, txs[3], relayer.Canceled)
	for _, tx := range txs[:2] {
		require.Eventually(t, func() bool {
			attempts, err := r.Store.Attempts(t.Context(), tx.ID)
			if err != nil || attempts[len(attempts)-1].Purpose != relayer.PurposeNoop {
				return false
			}
			now, err := r.Transaction(t.Context(), relayertest.PoolID, tx.ID) // wait until the hash is that of the broadcasted no-op
			return err == nil && *now.Hash == attempts[len(attempts)-1].Hash
		}, 2*time.Minute, 10*time.Millisecond)
	}
	for range 2 {
		f.chain.Commit()
	}
	r.Reaches(t, txs[0], relayer.Canceled)
	r.Reaches(t, txs[1], relayer.Canceled)
	done, err = r.CancelPending(t.Context(), relayertest.PoolID, "test")
	require.NoError(t, err)
	require.Empty(t, done.Queued)
}
