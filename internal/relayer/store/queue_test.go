package store

import (
	"math/big"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// worth returns a draft with a value and an unknown reserve.
func worth(l *Store, wei int64) *NewTransaction {
	d := draft(l)
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
	l, terms := setup(t, 2)
	terms.Cap = 4
	_, err := l.db.Exec(t.Context(), `UPDATE relayer_keys SET balance_wei = 10, balance_at = now()`)
	require.NoError(t, err)
	accept(t, l, terms, worth(l, 7), worth(l, 7))
	for range 30 {
		require.Nil(t, accept(t, l, terms, worth(l, 9))[0].Nonce)
	}
	require.NotNil(t, accept(t, l, terms, worth(l, 1))[0].Nonce)
	require.Equal(t, 3, pending(t, l)[0]+pending(t, l)[1])

	full := terms
	full.Cap = 1
	cheap := accept(t, l, full, worth(l, 1), worth(l, 2), worth(l, 1))
	require.Nil(t, cheap[0].Nonce)
	late := accept(t, l, terms, worth(l, 1))[0]
	require.Nil(t, late.Nonce, "it comes after those that can be paid for and wait")
	none, err := l.Dispatch(t.Context(), full, 100)
	require.NoError(t, err)
	require.Empty(t, none)
	seated, err := l.Dispatch(t.Context(), terms, 100)
	require.NoError(t, err)
	require.Equal(t, append(ids(cheap), late.ID), ids(seated))

	// They are dispatched, the oldest first, when there is ether.
	_, err = l.db.Exec(t.Context(), `UPDATE relayer_keys SET balance_wei = 20, balance_at = now()`)
	require.NoError(t, err)
	seated, err = l.Dispatch(t.Context(), terms, 100)
	require.NoError(t, err)
	require.Len(t, seated, 1)
	require.Equal(t, "9", seated[0].Value.String())
}

// Spent budgets of the keys block only transactions that need them.
func TestDispatch_KeyBudgetsSpent_FreeTransactionsGoOn(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	l.Budgets = Budgets{Key: big.NewInt(100)}
	terms.Cap = 1
	accept(t, l, terms, costly(l, 60, "a", ""))
	var dear []*relayer.Transaction
	for range 10 {
		dear = append(dear, accept(t, l, terms, costly(l, 40, "a", ""))...)
	}
	cheap := accept(t, l, terms, costly(l, 0, "a", ""))[0]
	terms.Cap = 4
	seated, err := l.Dispatch(t.Context(), terms, 100)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{dear[0].ID}, ids(seated))
	seated, err = l.Dispatch(t.Context(), terms, 100)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{cheap.ID}, ids(seated))
	require.NotNil(t, accept(t, l, terms, costly(l, 0, "a", ""))[0].Nonce)
}
