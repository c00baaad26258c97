package store

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// An operator's changes are delivered to the webhook targets of the pool's relayers.
func TestAttach_Changes_AreDeliveredToRelayersTargets(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "here", "there")
	var unknown *UnknownPoolError
	_, err := Attach(t.Context(), s.db, 1337, "pond")
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, UnknownPoolError{ChainID: 1337, Pool: "pond", Known: []string{"pool@1337"}}, *unknown)
	require.EqualError(t, err, `no relayer has registered keys for pool "pond" on chain 1337: the database has pool@1337`)
	_, err = Attach(t.Context(), s.db, 1, "pool")
	require.ErrorAs(t, err, &unknown)

	operator, err := Attach(t.Context(), s.db, 1337, "pool")
	require.NoError(t, err)
	require.Equal(t, s.Config, operator.Config)
	limits.Cap = 1
	waiting := accept(t, s, limits, newTx(s), newTx(s))[1]
	require.Nil(t, waiting.Nonce)
	_, err = operator.SetIntent(t.Context(), waiting.ID, relayer.IntentCancel, "an operator")
	require.NoError(t, err)
	var deliveries int
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT count(*) FROM relayer_webhooks WHERE about = $1
		AND status = 'canceled' AND lane ~ '/(here|there)$'`, waiting.ID).Scan(&deliveries))
	require.Equal(t, 2, deliveries)
	require.Equal(t, "an operator", read(t, s, waiting).IntentReason)
	require.Zero(t, read(t, s, waiting).BumpRequestedAt)

	s.Targets = nil // started again, without webhooks
	require.NoError(t, s.Register(t.Context(), []Registration{{Address: limits.Held[0]}}))
	operator, err = Attach(t.Context(), s.db, 1337, "pool")
	require.NoError(t, err)
	require.Empty(t, operator.Targets)
}

func TestTransactionByHash_AnyAttempt(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	second := attempt(tx, 2, relayer.PurposeNoop)
	_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{second})
	require.NoError(t, err)
	for _, a := range []*relayer.Attempt{attempt(tx, 1, relayer.PurposeSend), second} {
		got, err := s.TransactionByHash(t.Context(), a.Hash)
		require.NoError(t, err)
		require.Equal(t, tx.ID, got.ID)
	}
	_, err = s.TransactionByHash(t.Context(), common.HexToHash("0x1234"))
	require.ErrorIs(t, err, relayer.ErrNotFound)

	theirs := common.HexToHash("0x4321")
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, *tx.Nonce, theirs, Block{Number: 3, Hash: blockHash(3)})))
	got, err := s.TransactionByHash(t.Context(), theirs)
	require.NoError(t, err)
	require.Equal(t, relayer.KindForeign, got.Kind)
}

// A bump request is listed until there is a later attempt, however often it is made.
func TestListBumpRequests_ListsUntilLaterAttempt(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTx(s), newTx(s), newTx(s))
	asked := func(want ...*relayer.Transaction) {
		t.Helper()
		list, err := s.ListBumpRequests(t.Context(), 10)
		require.NoError(t, err)
		var got, ids []uuid.UUID
		for _, tx := range list {
			got = append(got, tx.ID)
		}
		for _, tx := range want {
			ids = append(ids, tx.ID)
		}
		require.Equal(t, ids, got)
	}
	_, err := s.RequestBump(t.Context(), uuid.Must(uuid.NewV7()))
	require.ErrorIs(t, err, relayer.ErrNotFound)
	_, err = s.RequestBump(t.Context(), txs[1].ID)
	require.ErrorIs(t, err, ErrUnsigned)
	broadcast(t, s, txs...)
	asked()
	_, err = s.RequestBump(t.Context(), txs[1].ID) // not the lowest
	require.NoError(t, err)
	_, err = s.RequestBump(t.Context(), txs[1].ID)
	require.NoError(t, err)
	asked(txs[1])
	require.False(t, read(t, s, txs[1]).BumpRequestedAt.IsZero())
	_, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[1], 2, relayer.PurposeSend)})
	require.NoError(t, err)
	asked()
	_, err = s.RequestBump(t.Context(), txs[1].ID) // again
	require.NoError(t, err)
	asked(txs[1])

	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[1], 1, relayer.PurposeSend, 7)}))
	asked()
	var state *relayer.StateError
	_, err = s.RequestBump(t.Context(), txs[1].ID)
	require.ErrorAs(t, err, &state)
	require.Equal(t, relayer.StateError{Status: relayer.Mined, Doing: "bump"}, *state)
}

func TestRecount_CountersAreWrong_EqualRows(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Held = limits.Held[:1]
	txs := accept(t, s, limits, newTxs(s, 3)...)
	own := newTx(s)
	own.Target, own.Key = hexAddress(limits.Held[0]), limits.Held[0]
	limits.Cap = 3
	accept(t, s, limits, own, newTx(s))
	broadcast(t, s, txs...)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 7)}))
	load, err := s.LoadOf(t.Context(), limits.Held[0])
	require.NoError(t, err)
	require.Equal(t, Load{Pending: 2, Mined: 1, Waiting: 1}, load)

	_, err = s.db.Exec(t.Context(), `UPDATE relayer_keys SET pending_count = 9`)
	require.NoError(t, err)
	was, is, err := s.Recount(t.Context(), limits.Held[0])
	require.NoError(t, err)
	require.Equal(t, []int{9, 2}, []int{was, is})
	require.Equal(t, []int{2, 9}, pending(t, s))
	_, _, err = s.Recount(t.Context(), common.HexToAddress("0x99"))
	require.ErrorIs(t, err, relayer.ErrNotFound)
	doomed, err := s.PreviewDrop(t.Context())
	require.NoError(t, err)
	require.Equal(t, []DropPreview{{Pool: "pool", Address: limits.Held[0], Pending: 2, Mined: 1}}, doomed)
}
