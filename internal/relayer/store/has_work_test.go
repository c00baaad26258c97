package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func TestHasWork_QueuedPendingAndMined_UntilFinal(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	limits.Cap = 1
	open := func() bool {
		t.Helper()
		open, err := s.HasWork(t.Context(), limits.Held)
		require.NoError(t, err)
		return open
	}
	require.False(t, open())
	txs := accept(t, s, limits, newTxs(s, 1)...)
	require.True(t, open())
	broadcast(t, s, txs...)
	require.True(t, open())
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 7)}))
	require.True(t, open(), "a reorganization may remove its block")
	_, err := s.Confirm(t.Context(), []Block{{7, blockHash(7)}})
	require.NoError(t, err)
	require.False(t, open())

	accept(t, s, limits, newTxs(s, 2)...)
	queued, err := s.HasWork(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, queued, "the second one has no nonce")
	other, own := pond(t, s.db)
	foreign, err := other.HasWork(t.Context(), own.Held)
	require.NoError(t, err)
	require.False(t, foreign, "of another pool")
}
