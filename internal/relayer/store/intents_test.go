package store

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// A no-op is pending until the latest attempt is a no-op, whatever was signed before.
func TestListPendingNoops_LatestAttemptIsNoNoop_IsListed(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	due := func() (ids []uuid.UUID) {
		list, err := s.ListPendingNoops(t.Context(), all(limits), 10)
		require.NoError(t, err)
		for _, tx := range list {
			ids = append(ids, tx.ID)
		}
		return ids
	}
	sign := func(number int, purpose relayer.Purpose) {
		stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(tx, number, purpose)})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, stored)
	}
	require.Empty(t, due())
	_, err := s.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{tx.ID}, due(), "nothing is signed yet")
	sign(1, relayer.PurposeSend)
	require.Equal(t, []uuid.UUID{tx.ID}, due())
	sign(2, relayer.PurposeNoop)
	require.Empty(t, due())
	sign(3, relayer.PurposeSend)
	require.Equal(t, []uuid.UUID{tx.ID}, due())
	sign(4, relayer.PurposeNoop)
	require.Empty(t, due())
}
