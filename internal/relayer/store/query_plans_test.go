package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Postgres keeps plans that it made when the tables were nearly empty: those must read by index.
func TestPlans_MadeForSmallTables_ReadByIndex(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap = 1000
	scans := func() (n int) {
		s.db.Reset() // a session reports its counts when it ends
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'relayer_txs'`).Scan(&n))
		return n
	}
	before := scans()
	for block := range uint64(20) {
		txs := accept(t, s, limits, newTxs(s, 3)...)
		broadcast(t, s, txs...)
		require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, block), mined(txs[1], 1, relayer.PurposeSend, block)}))
		n, err := s.Confirm(t.Context(), []Block{{block, blockHash(block)}})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, err = s.HasWork(t.Context(), limits.Held)
		require.NoError(t, err)
	}
	require.Equal(t, before, scans())
}

func TestConfirm_BlockExceedsStatementLimit_ConfirmsAll(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap = 1000
	txs := accept(t, s, limits, newTxs(s, 2*settleLimit+50)...)
	broadcast(t, s, txs...)
	var found []Mined
	for i, tx := range txs {
		found = append(found, mined(tx, 1, relayer.PurposeSend, uint64(i%2)))
	}
	require.NoError(t, s.RecordMined(t.Context(), found))
	n, err := s.Confirm(t.Context(), []Block{{1, blockHash(1)}})
	require.NoError(t, err)
	require.Equal(t, len(txs)/2, n)
	n, err = s.Confirm(t.Context(), []Block{{0, blockHash(0)}, {1, blockHash(1)}})
	require.NoError(t, err)
	require.Equal(t, len(txs)/2, n)
	for _, tx := range txs {
		require.Equal(t, relayer.Confirmed, read(t, s, tx).Status)
	}
}
