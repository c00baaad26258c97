package store

import (
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// A transaction's whole life, with the deliveries to its target.
func TestTransaction_WholeLife_IsDeliveredToTarget(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "target")
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	got := read(t, s, tx)
	require.Equal(t, relayer.Broadcasted, got.Status)
	require.Equal(t, attempt(tx, 1, relayer.PurposeSend).Hash, *got.Hash)
	require.False(t, got.SentAt.IsZero())
	require.Equal(t, []int{1}, pending(t, s))

	found := mined(tx, 1, relayer.PurposeSend, 7)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{found, found})) // by two receipts
	require.NoError(t, s.RecordMined(t.Context(), []Mined{found}))        // again
	got = read(t, s, tx)
	require.Equal(t, relayer.Mined, got.Status)
	require.Equal(t, uint64(7), got.BlockNumber)
	require.Equal(t, int64(7), got.EffectiveGasPrice.Int64())
	require.Equal(t, []int{0}, pending(t, s))
	blocks, err := s.MinedBlocks(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Block{{7, blockHash(7)}}, blocks)

	n, err := s.MarkReorged(t.Context(), blocks)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, relayer.Broadcasted, read(t, s, tx).Status)
	require.Equal(t, []int{1}, pending(t, s))

	found.BlockHash, found.BlockNumber = blockHash(8), 8
	require.NoError(t, s.RecordMined(t.Context(), []Mined{found}))
	n, err = s.Confirm(t.Context(), []Block{{7, blockHash(7)}})
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = s.Confirm(t.Context(), []Block{{8, blockHash(8)}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	got = read(t, s, tx)
	require.Equal(t, relayer.Confirmed, got.Status)
	require.False(t, got.ConfirmedAt.IsZero())
	require.Equal(t, []int{0}, pending(t, s))
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 9)}))
	require.Equal(t, got, read(t, s, tx)) // final is final

	rows, err := s.db.Query(t.Context(), `SELECT revision, status FROM relayer_webhooks
		WHERE about = $1 AND lane LIKE '%/target' ORDER BY revision`, tx.ID)
	require.NoError(t, err)
	type delivery struct {
		Revision int
		Status   relayer.Status
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
	require.NoError(t, err)
	require.Equal(t, []delivery{
		{2, relayer.Broadcasted}, {3, relayer.Mined}, {4, relayer.Broadcasted}, {5, relayer.Mined}, {6, relayer.Confirmed},
	}, all)
}

func TestConfirm_Reverted_IsMinedUntilConfirmed(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	found := mined(tx, 1, relayer.PurposeSend, 7)
	found.Succeeded = false
	require.NoError(t, s.RecordMined(t.Context(), []Mined{found}))
	require.Equal(t, relayer.Mined, read(t, s, tx).Status)
	_, err := s.Confirm(t.Context(), []Block{{7, blockHash(7)}})
	require.NoError(t, err)
	require.Equal(t, relayer.Reverted, read(t, s, tx).Status)
}

// Other processes find a row without an attempt, and an unsent one. A second signer's attempt is not stored.
func TestUnsignedAndUnsent_AnotherProcessFindsThem(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTx(s), newTx(s))
	unsigned, err := s.Unsigned(t.Context(), all(limits), 0, 10)
	require.NoError(t, err)
	require.Len(t, unsigned, 2)
	require.Equal(t, txs[0].ID, unsigned[0].ID)
	unsigned, err = s.Unsigned(t.Context(), all(limits), time.Minute, 10)
	require.NoError(t, err)
	require.Empty(t, unsigned)

	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[0], 1, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
	stored, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[1], 1, relayer.PurposeSend), attempt(txs[0], 1, relayer.PurposeNoop)})
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, stored)
	unsent, err := s.Unsent(t.Context(), all(limits), 0, Resends{}, 10)
	require.NoError(t, err)
	require.Len(t, unsent, 2)
	require.Equal(t, relayer.PurposeSend, unsent[0].Purpose)
	unmined, err := s.ListUnconfirmed(t.Context(), []KeyNonce{{limits.Held[0], 1}}, 0, nil, 10)
	require.NoError(t, err)
	require.Empty(t, unmined, "Unsent has them")
	accepted(t, s, attempt(txs[1], 1, relayer.PurposeSend))
	unmined, err = s.ListUnconfirmed(t.Context(), []KeyNonce{{limits.Held[0], 1}}, 0, nil, 10)
	require.NoError(t, err)
	require.Len(t, unmined, 1)
	require.Equal(t, uint64(1), unmined[0].Nonce)
	sought, err := s.ListMinedCandidates(t.Context(), []KeyNonce{{limits.Held[0], 1}}, 10)
	require.NoError(t, err)
	require.Equal(t, []MinedCandidate{{txs[0].ID, limits.Held[0], 0, []common.Hash{attempt(txs[0], 1, relayer.PurposeSend).Hash}}}, sought)
}

// A key with many rows leaves the other keys their share, and each key's lowest nonces come first.
func TestLists_KeyHasManyRows_OthersGetTheirShare(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	one := limits
	one.Held = limits.Held[:1]
	txs := append(accept(t, s, one, newTxs(s, 10)...), accept(t, s, AllocationLimits{Held: limits.Held[1:], Cap: 16}, newTxs(s, 2)...)...)
	// A key with a long history has higher nonces than a new one.
	_, err := s.db.Exec(t.Context(), `UPDATE relayer_txs SET nonce = nonce + 1000 WHERE relayer_address = $1`, hexAddress(limits.Held[1]))
	require.NoError(t, err)
	for i, tx := range txs {
		txs[i] = read(t, s, tx)
	}
	want := []uuid.UUID{txs[0].ID, txs[10].ID, txs[1].ID, txs[11].ID, txs[2].ID}

	unsigned, err := s.Unsigned(t.Context(), all(limits), 0, 5)
	require.NoError(t, err)
	require.Equal(t, want, ids(unsigned))

	var attempts []*relayer.Attempt
	for _, tx := range txs {
		attempts = append(attempts, attempt(tx, 1, relayer.PurposeSend))
	}
	_, err = s.StoreAttempts(t.Context(), attempts)
	require.NoError(t, err)
	unsent, err := s.Unsent(t.Context(), all(limits), 0, Resends{}, 5)
	require.NoError(t, err)
	var got []uuid.UUID
	for _, a := range unsent {
		got = append(got, a.TxID)
	}
	require.Equal(t, want, got)

	for _, tx := range txs {
		_, err := s.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "asked")
		require.NoError(t, err)
	}
	intended, err := s.ListPendingNoops(t.Context(), all(limits), 5)
	require.NoError(t, err)
	require.Equal(t, want, ids(intended))
}

func TestSetIntent_Cancel(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	limits.Cap = 1
	txs := accept(t, s, limits, newTx(s), newTx(s))
	waiting, err := s.SetIntent(t.Context(), txs[1].ID, relayer.IntentCancel, "asked")
	require.NoError(t, err)
	require.Equal(t, relayer.Canceled, waiting.Status)
	var state *relayer.StateError
	_, err = s.SetIntent(t.Context(), txs[1].ID, relayer.IntentCancel, "asked")
	require.ErrorAs(t, err, &state)

	broadcast(t, s, txs[0])
	sent, err := s.SetIntent(t.Context(), txs[0].ID, relayer.IntentCancel, "asked")
	require.NoError(t, err)
	require.Equal(t, relayer.Broadcasted, sent.Status)
	again, err := s.SetIntent(t.Context(), txs[0].ID, relayer.IntentCancel, "asked")
	require.NoError(t, err)
	require.Equal(t, sent, again)
	noop := attempt(txs[0], 2, relayer.PurposeNoop)
	_, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{noop})
	require.NoError(t, err)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 2, relayer.PurposeNoop, 3)}))
	_, err = s.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	require.Equal(t, relayer.Canceled, read(t, s, txs[0]).Status)
	_, err = s.SetIntent(t.Context(), txs[0].ID, relayer.IntentExpire, "late")
	require.ErrorAs(t, err, &state)
	_, err = s.SetIntent(t.Context(), uuid.New(), relayer.IntentCancel, "")
	require.ErrorIs(t, err, relayer.ErrNotFound)
}

// Another sender's final transaction takes the nonce of ours, which is queued again and gets another nonce.
func TestRecordNonceConflicts_ForeignIsFinal_QueuesAgain(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	got := read(t, s, tx)
	require.Nil(t, got.Nonce)
	require.Equal(t, relayer.Allocated, got.Status)
	require.Equal(t, []int{0}, pending(t, s))
	foreign, err := s.TransactionByNonce(t.Context(), tx.From, 0)
	require.NoError(t, err)
	require.Equal(t, relayer.KindForeign, foreign.Kind)
	dispatched, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, dispatched, 1)
	require.Equal(t, uint64(1), *dispatched[0].Nonce)
	require.Equal(t, 1, dispatched[0].Attempts) // the next one signed is the second
	unsigned, err := s.Unsigned(t.Context(), all(limits), 0, 10)
	require.NoError(t, err)
	require.Len(t, unsigned, 1)
	// Repeating it changes nothing.
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	require.Equal(t, []int{1}, pending(t, s))
}

// Bytes for a nonce that the transaction has lost, or that came too late, are not stored, and so not broadcasted.
func TestStoreAttempts_NonceWasLost_StoresNothing(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTx(s), newTx(s))
	late := attempt(txs[0], 5, relayer.PurposeSend)
	broadcast(t, s, txs...)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), txs[0].ID, txs[0].From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[1], 1, relayer.PurposeSend, 3)}))
	_, err := s.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{late, attempt(txs[1], 2, relayer.PurposeNoop)})
	require.NoError(t, err)
	require.Equal(t, []bool{false, false}, stored)
}

func TestFillNonceGaps(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	raised, err := s.AdvanceNonce(t.Context(), key, known(t, s).Generation, 3)
	require.NoError(t, err)
	require.True(t, raised)
	accept(t, s, limits, newTx(s))
	filled, err := s.FillNonceGaps(t.Context(), key, known(t, s).Generation, 1, 0)
	require.NoError(t, err)
	require.Len(t, filled, 2)
	require.Equal(t, uint64(1), *filled[0].Nonce)
	require.Equal(t, uint64(2), *filled[1].Nonce)
	require.Equal(t, relayer.KindNoop, filled[0].Kind)
	filled, err = s.FillNonceGaps(t.Context(), key, known(t, s).Generation, 1, 0)
	require.NoError(t, err)
	require.Empty(t, filled)
	require.Equal(t, []int{3}, pending(t, s))
}

func TestReplace_ChangesContents(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	r := &Replacement{ID: tx.ID, Request: newTx(s).Request, Attempt: attempt(tx, 2, relayer.PurposeReplace)}
	r.Data = []byte("new")
	require.NoError(t, s.Replace(t.Context(), r))
	require.Equal(t, "new", string(read(t, s, tx).Data))
	require.ErrorIs(t, s.Replace(t.Context(), r), ErrRaced) // the number is taken
	attempts, err := s.Attempts(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Len(t, attempts, 2)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 3)}))
	var state *relayer.StateError
	r.Attempt.Number = 3
	require.ErrorAs(t, s.Replace(t.Context(), r), &state)
}

// An operator resets the chain through one pool. Dropped transactions of another pool are delivered to that pool's own
// targets.
func TestResetChain_SeveralPools_DeliversToEachPoolsTargets(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "a", "b")
	other, otherTerms := pond(t, s.db, "c")
	tx, theirs := accept(t, s, limits, newTx(s))[0], accept(t, other, otherTerms, newTx(other))[0]
	operator, err := Attach(t.Context(), s.db, s.ChainID, s.Pool)
	require.NoError(t, err)
	n, err := operator.ResetChain(t.Context(), known(t, s), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, nil)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	delivered := func(tx *relayer.Transaction) (targets []string) {
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT coalesce(array_agg(split_part(lane, '/', 2) || ' ' || split_part(lane, '/', 3) || ' ' || status ORDER BY 1), '{}')
			FROM relayer_webhooks WHERE about = $1`, tx.ID).Scan(&targets))
		return targets
	}
	require.ElementsMatch(t, []string{"pool a dropped", "pool b dropped"}, delivered(tx))
	require.ElementsMatch(t, []string{"pond c dropped"}, delivered(theirs))
}

func TestResetChain_DropsPendingAndSetsNonces(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	txs := accept(t, s, limits, newTx(s), newTx(s), newTx(s))
	broadcast(t, s, txs...)
	n, err := s.ResetChain(t.Context(), known(t, s), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, map[common.Address]uint64{limits.Held[0]: 5})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, relayer.Dropped, read(t, s, txs[0]).Status)
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uint64{5, 0}, []uint64{keys[0].NextNonce, keys[1].NextNonce})
	c, err := s.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, Chain{Genesis: common.HexToHash("0x02"), Anchor: Block{0, common.HexToHash("0x02")}, Generation: 1}, c)
	again := accept(t, s, limits, newTx(s), newTx(s))
	// A decision based on an outdated record changes nothing.
	for _, old := range []Chain{{Genesis: genesis, Anchor: Block{Hash: genesis}}, {Genesis: c.Genesis, Anchor: c.Anchor}, {Genesis: c.Genesis, Anchor: Block{1, c.Anchor.Hash}, Generation: 1}} {
		_, err = s.ResetChain(t.Context(), old, common.HexToHash("0x03"), Block{0, common.HexToHash("0x03")}, nil)
		require.ErrorIs(t, err, ErrChainChanged)
	}
	require.Equal(t, again[0].Nonce, read(t, s, again[0]).Nonce)
	require.Equal(t, relayer.Allocated, read(t, s, again[0]).Status)
	require.Equal(t, c, known(t, s))
}

// On a chain that was reset the same request gets the same nonce, and so the same bytes. They are stored, found and mined
// as those of the new transaction. The history of the previous chain is unchanged.
func TestResetChain_SameRequestAgain_SameBytesAreOfNewTransaction(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	limits.Cap = 3
	old := accept(t, s, limits, newTx(s), newTx(s), newTx(s), newTx(s))
	broadcast(t, s, old[:3]...)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(old[0], 1, relayer.PurposeSend, 3)}))
	_, err := s.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), old[1].ID, key, 0, 1, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	version := func() (xmin string) {
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT xmin::text FROM relayer_txs WHERE id = $1`, old[0].ID).Scan(&xmin))
		return xmin
	}
	before := version()
	n, err := s.ResetChain(t.Context(), known(t, s), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, before, version(), "final rows are not written again")
	for nonce := range uint64(3) {
		_, err := s.TransactionByNonce(t.Context(), key, nonce)
		require.ErrorIs(t, err, relayer.ErrNotFound, "on the chain as it is now")
	}

	waited, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{old[1].ID, old[3].ID}, ids(waited))
	unsigned, err := s.Unsigned(t.Context(), all(limits), 0, 10)
	require.NoError(t, err)
	require.Equal(t, ids(waited), ids(unsigned), "bytes for a nonce of the chain before are not for the new one")
	again := attempt(waited[0], 2, relayer.PurposeSend)
	again.Hash = attempt(old[0], 1, relayer.PurposeSend).Hash
	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{again})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
	found, err := s.TransactionByHash(t.Context(), again.Hash)
	require.NoError(t, err)
	require.Equal(t, waited[0].ID, found.ID)
	sought, err := s.ListMinedCandidates(t.Context(), []KeyNonce{{key, 1}}, 10)
	require.NoError(t, err)
	require.Equal(t, []MinedCandidate{{waited[0].ID, key, 0, []common.Hash{again.Hash}}}, sought)
	block := mined(waited[0], 2, relayer.PurposeSend, 1)
	block.Hash = again.Hash
	require.NoError(t, s.RecordMined(t.Context(), []Mined{block}))
	require.Equal(t, []int{1}, pending(t, s))
	at, err := s.TransactionByNonce(t.Context(), key, 0)
	require.NoError(t, err)
	require.Equal(t, waited[0].ID, at.ID)
	latest, err := s.ListUnconfirmed(t.Context(), []KeyNonce{{key, 0}}, 0, nil, 10)
	require.NoError(t, err)
	require.Len(t, latest, 1, "of the new chain alone")

	// A gap is filled although a transaction of the previous chain had the nonce.
	_, err = s.AdvanceNonce(t.Context(), key, known(t, s).Generation, 3)
	require.NoError(t, err)
	filled, err := s.FillNonceGaps(t.Context(), key, known(t, s).Generation, 0, 0)
	require.NoError(t, err)
	require.Len(t, filled, 1)
	require.Equal(t, uint64(2), *filled[0].Nonce)
	// Another sender's transaction is stored in the new generation.
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), filled[0].ID, key, known(t, s).Generation, 2, common.HexToHash("0xf1"), Block{4, blockHash(4)})))
	foreign, err := s.TransactionByNonce(t.Context(), key, 2)
	require.NoError(t, err)
	require.Equal(t, relayer.KindForeign, foreign.Kind)
}

// A purge deletes delivered webhooks along with their transaction, because they cannot be replayed correctly without its
// row. A transaction with a webhook that is due or a dead letter stays, until an operator acts.
func TestPurge_DeliveredWebhooks_AreDeletedWithTransaction(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "here", "there")
	txs := accept(t, s, limits, newTx(s), newTx(s), newTx(s))
	broadcast(t, s, txs...)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{
		mined(txs[0], 1, relayer.PurposeSend, 3), mined(txs[1], 1, relayer.PurposeSend, 3), mined(txs[2], 1, relayer.PurposeSend, 3),
	}))
	_, err := s.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	_, err = s.db.Exec(t.Context(), `UPDATE relayer_webhooks SET state = 'done' WHERE NOT (about = $1 AND lane LIKE '%/there' AND revision = 4)`, txs[1].ID)
	require.NoError(t, err)
	becomes := func(state string) {
		_, err := s.db.Exec(t.Context(), `UPDATE relayer_webhooks SET state = $2 WHERE about = $1 AND lane LIKE '%/here' AND revision = 4`, txs[2].ID, state)
		require.NoError(t, err)
	}
	left := func(want ...*relayer.Transaction) {
		t.Helper()
		_, err := s.Purge(t.Context(), time.Nanosecond, time.Hour, 100)
		require.NoError(t, err)
		for _, tx := range txs {
			var webhooks, rows int
			require.NoError(t, s.db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM relayer_webhooks WHERE about = $1),
				(SELECT count(*) FROM relayer_txs WHERE id = $1)`, tx.ID).Scan(&webhooks, &rows))
			kept := slices.Contains(want, tx)
			require.Equal(t, []bool{kept, kept}, []bool{webhooks == 6, rows == 1})
		}
	}
	becomes("dead")
	left(txs[1], txs[2])
	becomes("waiting") // an operator has replayed it
	left(txs[1], txs[2])
	becomes("done")
	left(txs[1])
}

func TestPurge(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	d := newTx(s)
	d.IdempotencyKey = "key"
	txs := accept(t, s, limits, d, newTx(s))
	broadcast(t, s, txs...)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 3)}))
	_, err := s.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	n, err := s.Purge(t.Context(), 0, time.Hour, 100)
	require.NoError(t, err)
	require.Zero(t, n)
	// One that waited for longer than final ones are kept must not disappear when it becomes final.
	_, err = s.db.Exec(t.Context(), `UPDATE relayer_txs SET created_at = now() - interval '2 hours'`)
	require.NoError(t, err)
	n, err = s.Purge(t.Context(), time.Hour, time.Hour, 100)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = s.Purge(t.Context(), time.Nanosecond, time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = s.Transaction(t.Context(), txs[0].ID)
	require.ErrorIs(t, err, relayer.ErrNotFound)
	read(t, s, txs[1])
	// The idempotency key is kept, and a repetition reports that it was used.
	again := newTx(s)
	again.IdempotencyKey = "key"
	results, err := s.Accept(t.Context(), limits, []*NewTransaction{again})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, relayer.ErrForgotten)
	_, err = s.Replay(t.Context(), again.Caller, "key", again.BodyHash)
	require.ErrorIs(t, err, relayer.ErrForgotten)
	_, err = s.Replay(t.Context(), again.Caller, "key", [32]byte{1})
	require.ErrorIs(t, err, relayer.ErrKeyReused)
	_, total, err := s.Transactions(t.Context(), Filter{}, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, total)
}

// Contents are replaced between the search for receipts and the record. The row is left out until a search knows the
// replacement, because its contents were not mined. Another transaction's record does not wait for that.
func TestRecordMined_ReplacedAfterTheSearch_IsLeftOut(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTxs(s, 3)...)
	broadcast(t, s, txs...)
	var found []Mined
	search := func() {
		t.Helper()
		found = nil
		sought, err := s.ListMinedCandidates(t.Context(), []KeyNonce{{limits.Held[0], 3}}, 10)
		require.NoError(t, err)
		for i, c := range sought {
			found = append(found, mined(txs[i], 1, relayer.PurposeSend, 3))
			require.Equal(t, c.ID, found[i].TxID)
			found[i].Newest = c.Hashes[0]
		}
	}
	replace := func(number int) {
		t.Helper()
		r := &Replacement{ID: txs[0].ID, Request: newTx(s).Request, Attempt: attempt(txs[0], number, relayer.PurposeReplace)}
		r.Data = []byte("new")
		require.NoError(t, s.Replace(t.Context(), r))
	}
	search()
	require.Len(t, found, 3)
	replace(2)
	_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[0], 3, relayer.PurposeSend), attempt(txs[1], 2, relayer.PurposeSend)})
	require.NoError(t, err)
	require.ErrorIs(t, s.RecordMined(t.Context(), found), ErrRaced)
	require.NotEqual(t, relayer.Mined, read(t, s, txs[0]).Status)
	require.Equal(t, relayer.Mined, read(t, s, txs[1]).Status, "a higher fee leaves the contents unchanged")
	require.Equal(t, relayer.Mined, read(t, s, txs[2]).Status)
	require.Equal(t, []int{1}, pending(t, s))

	search()
	require.Len(t, found, 1)
	replace(4)
	require.ErrorIs(t, s.RecordMined(t.Context(), found), ErrRaced, "the first replacement is known, the second is not")
	require.NotEqual(t, relayer.Mined, read(t, s, txs[0]).Status)

	search()
	require.NoError(t, s.RecordMined(t.Context(), found))
	require.Equal(t, relayer.Mined, read(t, s, txs[0]).Status)
	require.Equal(t, []int{0}, pending(t, s))
}

// The record waits for a replacement that has not committed yet, and then finds its attempt.
func TestRecordMined_ConcurrentReplacement_IsLeftOut(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, tx)
	found := mined(tx, 1, relayer.PurposeSend, 3)
	found.Newest = found.Hash
	var err error
	beside(t, s, func(other pgx.Tx) {
		_, err := other.Exec(t.Context(), `SELECT FROM relayer_txs WHERE id = $1 FOR UPDATE`, tx.ID)
		require.NoError(t, err)
		stored, err := s.storeAttempts(t.Context(), other, []*relayer.Attempt{attempt(tx, 2, relayer.PurposeReplace)})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, stored)
	}, func() error {
		err = s.RecordMined(t.Context(), []Mined{found})
		return nil
	})
	require.ErrorIs(t, err, ErrRaced)
	require.NotEqual(t, relayer.Mined, read(t, s, tx).Status)
}
