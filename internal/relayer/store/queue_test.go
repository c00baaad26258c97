package store

import (
	"math/big"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// worth returns a new transaction with a value and an unknown reserve.
func worth(s *Store, wei int64) *NewTransaction {
	d := newTx(s)
	d.Value = big.NewInt(wei)
	return d
}

func ids(txs []*relayer.Transaction) (all []uuid.UUID) {
	for _, tx := range txs {
		all = append(all, tx.ID)
	}
	return all
}

// Transactions that no key can pay for at present are queued, however many, and block no others: neither new ones nor those
// queued behind them.
func TestDispatch_UnaffordableTransaction_DoesNotBlockTheQueue(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap = 4
	_, err := s.db.Exec(t.Context(), `UPDATE relayer_keys SET balance_wei = 10, balance_at = now()`)
	require.NoError(t, err)
	accept(t, s, limits, worth(s, 7), worth(s, 7))
	for range 30 {
		require.Nil(t, accept(t, s, limits, worth(s, 9))[0].Nonce)
	}
	require.NotNil(t, accept(t, s, limits, worth(s, 1))[0].Nonce)
	require.Equal(t, 3, pending(t, s)[0]+pending(t, s)[1])

	full := limits
	full.Cap = 1
	cheap := accept(t, s, full, worth(s, 1), worth(s, 2), worth(s, 1))
	require.Nil(t, cheap[0].Nonce)
	late := accept(t, s, limits, worth(s, 1))[0]
	require.Nil(t, late.Nonce, "it comes after those that can be paid for and wait")
	none, err := s.Dispatch(t.Context(), full, 100)
	require.NoError(t, err)
	require.Empty(t, none)
	dispatched, err := s.Dispatch(t.Context(), limits, 100)
	require.NoError(t, err)
	require.Equal(t, append(ids(cheap), late.ID), ids(dispatched))

	// They are dispatched, the oldest first, when there is ether.
	_, err = s.db.Exec(t.Context(), `UPDATE relayer_keys SET balance_wei = 20, balance_at = now()`)
	require.NoError(t, err)
	dispatched, err = s.Dispatch(t.Context(), limits, 100)
	require.NoError(t, err)
	require.Len(t, dispatched, 1)
	require.Equal(t, "9", dispatched[0].Value.String())
}

// Spent budgets of the keys block only transactions that need them.
func TestDispatch_KeyBudgetsSpent_FreeTransactionsGoOn(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	s.Budgets = Budgets{Key: big.NewInt(100)}
	limits.Cap = 1
	accept(t, s, limits, costly(s, 60, "a", ""))
	var dear []*relayer.Transaction
	for range 10 {
		dear = append(dear, accept(t, s, limits, costly(s, 40, "a", ""))...)
	}
	cheap := accept(t, s, limits, costly(s, 0, "a", ""))[0]
	limits.Cap = 4
	dispatched, err := s.Dispatch(t.Context(), limits, 100)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{dear[0].ID}, ids(dispatched))
	dispatched, err = s.Dispatch(t.Context(), limits, 100)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{cheap.ID}, ids(dispatched))
	require.NotNil(t, accept(t, s, limits, costly(s, 0, "a", ""))[0].Nonce)
}
