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
	l, terms := setup(t, 1, "target")
	tx := accept(t, l, terms, draft(l))[0]
	broadcast(t, l, tx)
	got := read(t, l, tx)
	require.Equal(t, relayer.Broadcasted, got.Status)
	require.Equal(t, attempt(tx, 1, relayer.PurposeSend).Hash, *got.Hash)
	require.False(t, got.SentAt.IsZero())
	require.Equal(t, []int{1}, pending(t, l))

	found := mined(tx, 1, relayer.PurposeSend, 7)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{found, found})) // by two receipts
	require.NoError(t, l.RecordMined(t.Context(), []Mined{found}))        // again
	got = read(t, l, tx)
	require.Equal(t, relayer.Mined, got.Status)
	require.Equal(t, uint64(7), got.BlockNumber)
	require.Equal(t, int64(7), got.EffectiveGasPrice.Int64())
	require.Equal(t, []int{0}, pending(t, l))
	blocks, err := l.MinedBlocks(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Block{{7, blockHash(7)}}, blocks)

	n, err := l.MarkReorged(t.Context(), blocks)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, relayer.Broadcasted, read(t, l, tx).Status)
	require.Equal(t, []int{1}, pending(t, l))

	found.BlockHash, found.BlockNumber = blockHash(8), 8
	require.NoError(t, l.RecordMined(t.Context(), []Mined{found}))
	n, err = l.Confirm(t.Context(), []Block{{7, blockHash(7)}})
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = l.Confirm(t.Context(), []Block{{8, blockHash(8)}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	got = read(t, l, tx)
	require.Equal(t, relayer.Confirmed, got.Status)
	require.False(t, got.ConfirmedAt.IsZero())
	require.Equal(t, []int{0}, pending(t, l))
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 9)}))
	require.Equal(t, got, read(t, l, tx)) // final is final

	rows, err := l.db.Query(t.Context(), `SELECT revision, status FROM relayer_deliveries
		WHERE subject = $1 AND target = 'target' ORDER BY revision`, tx.ID)
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
	l, terms := setup(t, 1)
	tx := accept(t, l, terms, draft(l))[0]
	broadcast(t, l, tx)
	found := mined(tx, 1, relayer.PurposeSend, 7)
	found.Succeeded = false
	require.NoError(t, l.RecordMined(t.Context(), []Mined{found}))
	require.Equal(t, relayer.Mined, read(t, l, tx).Status)
	_, err := l.Confirm(t.Context(), []Block{{7, blockHash(7)}})
	require.NoError(t, err)
	require.Equal(t, relayer.Reverted, read(t, l, tx).Status)
}

// Other processes find a row without an attempt, and an unsent one. A second signer's attempt is not stored.
func TestUnsignedAndUnsent_AnotherProcessFindsThem(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	txs := accept(t, l, terms, draft(l), draft(l))
	unsigned, err := l.Unsigned(t.Context(), all(terms), 0, 10)
	require.NoError(t, err)
	require.Len(t, unsigned, 2)
	require.Equal(t, txs[0].ID, unsigned[0].ID)
	unsigned, err = l.Unsigned(t.Context(), all(terms), time.Minute, 10)
	require.NoError(t, err)
	require.Empty(t, unsigned)

	stored, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[0], 1, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
	stored, err = l.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[1], 1, relayer.PurposeSend), attempt(txs[0], 1, relayer.PurposeNoop)})
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, stored)
	unsent, err := l.Unsent(t.Context(), all(terms), 0, Resends{}, 10)
	require.NoError(t, err)
	require.Len(t, unsent, 2)
	require.Equal(t, relayer.PurposeSend, unsent[0].Purpose)
	unmined, err := l.ListUnconfirmed(t.Context(), []KeyNonce{{terms.Held[0], 1}}, 0, nil, 10)
	require.NoError(t, err)
	require.Empty(t, unmined, "Unsent has them")
	accepted(t, l, attempt(txs[1], 1, relayer.PurposeSend))
	unmined, err = l.ListUnconfirmed(t.Context(), []KeyNonce{{terms.Held[0], 1}}, 0, nil, 10)
	require.NoError(t, err)
	require.Len(t, unmined, 1)
	require.Equal(t, uint64(1), unmined[0].Nonce)
	sought, err := l.ListMinedCandidates(t.Context(), []KeyNonce{{terms.Held[0], 1}}, 10)
	require.NoError(t, err)
	require.Equal(t, []MinedCandidate{{txs[0].ID, terms.Held[0], 0, []common.Hash{attempt(txs[0], 1, relayer.PurposeSend).Hash}}}, sought)
}

// A key with many rows leaves the other keys their share, and each key's lowest nonces come first.
func TestLists_KeyHasManyRows_OthersGetTheirShare(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 2)
	one := terms
	one.Held = terms.Held[:1]
	txs := append(accept(t, l, one, drafts(l, 10)...), accept(t, l, AllocationLimits{Held: terms.Held[1:], Cap: 16}, drafts(l, 2)...)...)
	// A key with a long history has higher nonces than a new one.
	_, err := l.db.Exec(t.Context(), `UPDATE relayer_txs SET nonce = nonce + 1000 WHERE relayer_address = $1`, hexAddress(terms.Held[1]))
	require.NoError(t, err)
	for i, tx := range txs {
		txs[i] = read(t, l, tx)
	}
	want := []uuid.UUID{txs[0].ID, txs[10].ID, txs[1].ID, txs[11].ID, txs[2].ID}

	unsigned, err := l.Unsigned(t.Context(), all(terms), 0, 5)
	require.NoError(t, err)
	require.Equal(t, want, ids(unsigned))

	var attempts []*relayer.Attempt
	for _, tx := range txs {
		attempts = append(attempts, attempt(tx, 1, relayer.PurposeSend))
	}
	_, err = l.StoreAttempts(t.Context(), attempts)
	require.NoError(t, err)
	unsent, err := l.Unsent(t.Context(), all(terms), 0, Resends{}, 5)
	require.NoError(t, err)
	var got []uuid.UUID
	for _, a := range unsent {
		got = append(got, a.TxID)
	}
	require.Equal(t, want, got)

	for _, tx := range txs {
		_, err := l.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "asked")
		require.NoError(t, err)
	}
	intended, err := l.ListPendingNoops(t.Context(), all(terms), 5)
	require.NoError(t, err)
	require.Equal(t, want, ids(intended))
}

func TestSetIntent_Cancel(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	terms.Cap = 1
	txs := accept(t, l, terms, draft(l), draft(l))
	waiting, err := l.SetIntent(t.Context(), txs[1].ID, relayer.IntentCancel, "asked")
	require.NoError(t, err)
	require.Equal(t, relayer.Canceled, waiting.Status)
	var state *relayer.StateError
	_, err = l.SetIntent(t.Context(), txs[1].ID, relayer.IntentCancel, "asked")
	require.ErrorAs(t, err, &state)

	broadcast(t, l, txs[0])
	sent, err := l.SetIntent(t.Context(), txs[0].ID, relayer.IntentCancel, "asked")
	require.NoError(t, err)
	require.Equal(t, relayer.Broadcasted, sent.Status)
	again, err := l.SetIntent(t.Context(), txs[0].ID, relayer.IntentCancel, "asked")
	require.NoError(t, err)
	require.Equal(t, sent, again)
	noop := attempt(txs[0], 2, relayer.PurposeNoop)
	_, err = l.StoreAttempts(t.Context(), []*relayer.Attempt{noop})
	require.NoError(t, err)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(txs[0], 2, relayer.PurposeNoop, 3)}))
	_, err = l.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	require.Equal(t, relayer.Canceled, read(t, l, txs[0]).Status)
	_, err = l.SetIntent(t.Context(), txs[0].ID, relayer.IntentExpire, "late")
	require.ErrorAs(t, err, &state)
	_, err = l.SetIntent(t.Context(), uuid.New(), relayer.IntentCancel, "")
	require.ErrorIs(t, err, relayer.ErrNotFound)
}

// Another sender's final transaction takes the nonce of ours, which is queued again and gets another nonce.
func TestRecordNonceConflicts_ForeignIsFinal_QueuesAgain(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	tx := accept(t, l, terms, draft(l))[0]
	broadcast(t, l, tx)
	require.NoError(t, onlyErr(l.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	got := read(t, l, tx)
	require.Nil(t, got.Nonce)
	require.Equal(t, relayer.Allocated, got.Status)
	require.Equal(t, []int{0}, pending(t, l))
	foreign, err := l.TransactionByNonce(t.Context(), tx.From, 0)
	require.NoError(t, err)
	require.Equal(t, relayer.KindForeign, foreign.Kind)
	seated, err := l.Dispatch(t.Context(), terms, 10)
	require.NoError(t, err)
	require.Len(t, seated, 1)
	require.Equal(t, uint64(1), *seated[0].Nonce)
	require.Equal(t, 1, seated[0].Attempts) // the next one signed is the second
	unsigned, err := l.Unsigned(t.Context(), all(terms), 0, 10)
	require.NoError(t, err)
	require.Len(t, unsigned, 1)
	// Repeating it changes nothing.
	require.NoError(t, onlyErr(l.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	require.Equal(t, []int{1}, pending(t, l))
}

// Bytes for a nonce that the transaction has lost, or that came too late, are not stored, and so not broadcasted.
func TestStoreAttempts_NonceWasLost_StoresNothing(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	txs := accept(t, l, terms, draft(l), draft(l))
	late := attempt(txs[0], 5, relayer.PurposeSend)
	broadcast(t, l, txs...)
	require.NoError(t, onlyErr(l.RecordNonceConflicts(t.Context(), txs[0].ID, txs[0].From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(txs[1], 1, relayer.PurposeSend, 3)}))
	_, err := l.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	stored, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{late, attempt(txs[1], 2, relayer.PurposeNoop)})
	require.NoError(t, err)
	require.Equal(t, []bool{false, false}, stored)
}

func TestFillNonceGaps(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	key := terms.Held[0]
	raised, err := l.AdvanceNonce(t.Context(), key, known(t, l).Generation, 3)
	require.NoError(t, err)
	require.True(t, raised)
	accept(t, l, terms, draft(l))
	filled, err := l.FillNonceGaps(t.Context(), key, known(t, l).Generation, 1, 0)
	require.NoError(t, err)
	require.Len(t, filled, 2)
	require.Equal(t, uint64(1), *filled[0].Nonce)
	require.Equal(t, uint64(2), *filled[1].Nonce)
	require.Equal(t, relayer.KindNoop, filled[0].Kind)
	filled, err = l.FillNonceGaps(t.Context(), key, known(t, l).Generation, 1, 0)
	require.NoError(t, err)
	require.Empty(t, filled)
	require.Equal(t, []int{3}, pending(t, l))
}

func TestReplace_ChangesContents(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	tx := accept(t, l, terms, draft(l))[0]
	broadcast(t, l, tx)
	r := &Replacement{ID: tx.ID, Request: draft(l).Request, Attempt: attempt(tx, 2, relayer.PurposeReplace)}
	r.Data = []byte("new")
	require.NoError(t, l.Replace(t.Context(), r))
	require.Equal(t, "new", string(read(t, l, tx).Data))
	require.ErrorIs(t, l.Replace(t.Context(), r), ErrRaced) // the number is taken
	attempts, err := l.Attempts(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Len(t, attempts, 2)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 3)}))
	var state *relayer.StateError
	r.Attempt.Number = 3
	require.ErrorAs(t, l.Replace(t.Context(), r), &state)
}

func TestAcquireTrackerLease_Held_Fails(t *testing.T) {
	t.Parallel()
	l, _ := setup(t, 1)
	ok, first, err := l.AcquireTrackerLease(t.Context(), "a", time.Minute, 0)
	require.NoError(t, err)
	require.True(t, ok)
	ok, _, err = l.AcquireTrackerLease(t.Context(), "b", time.Minute, 0)
	require.NoError(t, err)
	require.False(t, ok)
	ok, again, err := l.AcquireTrackerLease(t.Context(), "a", time.Minute, 0)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, first, again)
	require.NoError(t, l.ReleaseTrackerLease(t.Context(), "a"))
	ok, next, err := l.AcquireTrackerLease(t.Context(), "b", time.Minute, 0)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, first+1, next)
}

// A process whose nodes are away takes the lease only when no other process has wanted it for a while.
func TestAcquireTrackerLease_Yielding_WaitsUntilItWasFree(t *testing.T) {
	t.Parallel()
	l, _ := setup(t, 1)
	acquire := func(holder string, free time.Duration) bool {
		ok, _, err := l.AcquireTrackerLease(t.Context(), holder, time.Minute, free)
		require.NoError(t, err)
		return ok
	}
	freeSince := func(age time.Duration) {
		_, err := l.db.Exec(t.Context(), "UPDATE relayer_pools SET tracker_until = now() - $1::interval", age)
		require.NoError(t, err)
	}
	require.True(t, acquire("a", 0))
	require.False(t, acquire("a", time.Hour), "it would renew its own lease")
	freeSince(59 * time.Minute)
	require.False(t, acquire("a", time.Hour))
	freeSince(61 * time.Minute)
	require.True(t, acquire("a", time.Hour))
	freeSince(time.Second)
	require.True(t, acquire("b", 0), "another process does not yield")
}

func TestAcquireTrackerLease_TwoPools_EachHasItsOwn(t *testing.T) {
	t.Parallel()
	l, _ := setup(t, 1)
	other, _ := pond(t, l.db)
	for _, pool := range []*Store{l, other} {
		ok, epoch, err := pool.AcquireTrackerLease(t.Context(), "of "+pool.Pool, time.Minute, 0)
		require.NoError(t, err)
		require.True(t, ok, pool.Pool)
		require.Equal(t, int64(1), epoch)
	}
	require.NoError(t, other.ReleaseTrackerLease(t.Context(), "of pond"))
	ok, _, err := l.AcquireTrackerLease(t.Context(), "another", time.Minute, 0)
	require.NoError(t, err)
	require.False(t, ok)
	ok, _, err = New(l.db, Config{ChainID: 1337, Pool: "puddle"}).AcquireTrackerLease(t.Context(), "early", time.Minute, 0)
	require.NoError(t, err)
	require.False(t, ok, "it has not registered")
}

// An operator resets the chain through one pool. Dropped transactions of another pool are delivered to that pool's own
// targets.
func TestResetChain_SeveralPools_DeliversToEachPoolsTargets(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1, "a", "b")
	other, otherTerms := pond(t, l.db, "c")
	tx, theirs := accept(t, l, terms, draft(l))[0], accept(t, other, otherTerms, draft(other))[0]
	operator, err := Attach(t.Context(), l.db, l.ChainID, l.Pool)
	require.NoError(t, err)
	n, err := operator.ResetChain(t.Context(), known(t, l), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, nil)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	told := func(tx *relayer.Transaction) (targets []string) {
		require.NoError(t, l.db.QueryRow(t.Context(), `SELECT coalesce(array_agg(pool_id || ' ' || target || ' ' || status ORDER BY 1), '{}')
			FROM relayer_deliveries WHERE subject = $1`, tx.ID).Scan(&targets))
		return targets
	}
	require.ElementsMatch(t, []string{"pool a dropped", "pool b dropped"}, told(tx))
	require.ElementsMatch(t, []string{"pond c dropped"}, told(theirs))
}

func TestResetChain_DropsPendingAndSetsNonces(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 2)
	txs := accept(t, l, terms, draft(l), draft(l), draft(l))
	broadcast(t, l, txs...)
	n, err := l.ResetChain(t.Context(), known(t, l), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, map[common.Address]uint64{terms.Held[0]: 5})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, relayer.Dropped, read(t, l, txs[0]).Status)
	keys, err := l.Keys(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uint64{5, 0}, []uint64{keys[0].NextNonce, keys[1].NextNonce})
	c, err := l.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, Chain{Genesis: common.HexToHash("0x02"), Anchor: Block{0, common.HexToHash("0x02")}, Generation: 1}, c)
	again := accept(t, l, terms, draft(l), draft(l))
	// A decision based on an outdated record changes nothing.
	for _, old := range []Chain{{Genesis: genesis, Anchor: Block{Hash: genesis}}, {Genesis: c.Genesis, Anchor: c.Anchor}, {Genesis: c.Genesis, Anchor: Block{1, c.Anchor.Hash}, Generation: 1}} {
		_, err = l.ResetChain(t.Context(), old, common.HexToHash("0x03"), Block{0, common.HexToHash("0x03")}, nil)
		require.ErrorIs(t, err, ErrChainChanged)
	}
	require.Equal(t, again[0].Nonce, read(t, l, again[0]).Nonce)
	require.Equal(t, relayer.Allocated, read(t, l, again[0]).Status)
	require.Equal(t, c, known(t, l))
}

// On a chain that was reset the same request gets the same nonce, and so the same bytes. They are stored, found and mined
// as those of the new transaction. The history of the previous chain is unchanged.
func TestResetChain_SameRequestAgain_SameBytesAreOfNewTransaction(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	key := terms.Held[0]
	terms.Cap = 3
	old := accept(t, l, terms, draft(l), draft(l), draft(l), draft(l))
	broadcast(t, l, old[:3]...)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(old[0], 1, relayer.PurposeSend, 3)}))
	_, err := l.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	require.NoError(t, onlyErr(l.RecordNonceConflicts(t.Context(), old[1].ID, key, 0, 1, common.HexToHash("0xf0"), Block{3, blockHash(3)})))
	version := func() (xmin string) {
		require.NoError(t, l.db.QueryRow(t.Context(), `SELECT xmin::text FROM relayer_txs WHERE id = $1`, old[0].ID).Scan(&xmin))
		return xmin
	}
	before := version()
	n, err := l.ResetChain(t.Context(), known(t, l), common.HexToHash("0x02"), Block{0, common.HexToHash("0x02")}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, before, version(), "final rows are not written again")
	for nonce := range uint64(3) {
		_, err := l.TransactionByNonce(t.Context(), key, nonce)
		require.ErrorIs(t, err, relayer.ErrNotFound, "on the chain as it is now")
	}

	waited, err := l.Dispatch(t.Context(), terms, 10)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{old[1].ID, old[3].ID}, ids(waited))
	unsigned, err := l.Unsigned(t.Context(), all(terms), 0, 10)
	require.NoError(t, err)
	require.Equal(t, ids(waited), ids(unsigned), "bytes for a nonce of the chain before are not for the new one")
	again := attempt(waited[0], 2, relayer.PurposeSend)
	again.Hash = attempt(old[0], 1, relayer.PurposeSend).Hash
	stored, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{again})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
	found, err := l.TransactionByHash(t.Context(), again.Hash)
	require.NoError(t, err)
	require.Equal(t, waited[0].ID, found.ID)
	sought, err := l.ListMinedCandidates(t.Context(), []KeyNonce{{key, 1}}, 10)
	require.NoError(t, err)
	require.Equal(t, []MinedCandidate{{waited[0].ID, key, 0, []common.Hash{again.Hash}}}, sought)
	block := mined(waited[0], 2, relayer.PurposeSend, 1)
	block.Hash = again.Hash
	require.NoError(t, l.RecordMined(t.Context(), []Mined{block}))
	require.Equal(t, []int{1}, pending(t, l))
	at, err := l.TransactionByNonce(t.Context(), key, 0)
	require.NoError(t, err)
	require.Equal(t, waited[0].ID, at.ID)
	latest, err := l.ListUnconfirmed(t.Context(), []KeyNonce{{key, 0}}, 0, nil, 10)
	require.NoError(t, err)
	require.Len(t, latest, 1, "of the new chain alone")

	// A gap is filled although a transaction of the previous chain had the nonce.
	_, err = l.AdvanceNonce(t.Context(), key, known(t, l).Generation, 3)
	require.NoError(t, err)
	filled, err := l.FillNonceGaps(t.Context(), key, known(t, l).Generation, 0, 0)
	require.NoError(t, err)
	require.Len(t, filled, 1)
	require.Equal(t, uint64(2), *filled[0].Nonce)
	// Another sender's transaction is stored in the new generation.
	require.NoError(t, onlyErr(l.RecordNonceConflicts(t.Context(), filled[0].ID, key, known(t, l).Generation, 2, common.HexToHash("0xf1"), Block{4, blockHash(4)})))
	foreign, err := l.TransactionByNonce(t.Context(), key, 2)
	require.NoError(t, err)
	require.Equal(t, relayer.KindForeign, foreign.Kind)
}

// A purge deletes delivered webhooks along with their transaction, because they cannot be replayed correctly without its
// row.
func TestPurge_DeliveredWebhooks_AreDeletedWithTransaction(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1, "here", "there")
	txs := accept(t, l, terms, draft(l), draft(l))
	broadcast(t, l, txs...)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 3), mined(txs[1], 1, relayer.PurposeSend, 3)}))
	_, err := l.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	_, err = l.db.Exec(t.Context(), `UPDATE relayer_deliveries SET state = 'delivered' WHERE NOT (subject = $1 AND target = 'there' AND revision = 4)`, txs[1].ID)
	require.NoError(t, err)
	n, err := l.Purge(t.Context(), time.Nanosecond, time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	var left []uuid.UUID
	require.NoError(t, l.db.QueryRow(t.Context(), `SELECT array_agg(subject) FROM relayer_deliveries`).Scan(&left))
	require.Equal(t, slices.Repeat([]uuid.UUID{txs[1].ID}, 6), left)
}

func TestPurge(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 1)
	d := draft(l)
	d.IdempotencyKey = "key"
	txs := accept(t, l, terms, d, draft(l))
	broadcast(t, l, txs...)
	require.NoError(t, l.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 3)}))
	_, err := l.Confirm(t.Context(), []Block{{3, blockHash(3)}})
	require.NoError(t, err)
	n, err := l.Purge(t.Context(), 0, time.Hour, 100)
	require.NoError(t, err)
	require.Zero(t, n)
	// One that waited for longer than final ones are kept must not disappear when it becomes final.
	_, err = l.db.Exec(t.Context(), `UPDATE relayer_txs SET created_at = now() - interval '2 hours'`)
	require.NoError(t, err)
	n, err = l.Purge(t.Context(), time.Hour, time.Hour, 100)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = l.Purge(t.Context(), time.Nanosecond, time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = l.Transaction(t.Context(), txs[0].ID)
	require.ErrorIs(t, err, relayer.ErrNotFound)
	read(t, l, txs[1])
	// The idempotency key is kept, and a repetition reports that it was used.
	again := draft(l)
	again.IdempotencyKey = "key"
	verdicts, err := l.Accept(t.Context(), terms, []*NewTransaction{again})
	require.NoError(t, err)
	require.ErrorIs(t, verdicts[0].Err, relayer.ErrForgotten)
	_, err = l.Replay(t.Context(), again.Caller, "key", again.BodyHash)
	require.ErrorIs(t, err, relayer.ErrForgotten)
	_, err = l.Replay(t.Context(), again.Caller, "key", [32]byte{1})
	require.ErrorIs(t, err, relayer.ErrKeyReused)
	_, total, err := l.Transactions(t.Context(), Filter{}, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, total)
}
