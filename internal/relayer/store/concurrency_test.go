package store

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// beside runs do while another database transaction has done its work and not committed. That one commits once do waits for
// it, or is over. look runs before that.
func beside(t *testing.T, s *Store, other func(pgx.Tx), do func() error, look ...func()) {
	t.Helper()
	tx, err := s.db.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it has committed
	other(tx)
	done := make(chan error, 1)
	go func() { done <- do() }()
	require.Eventually(t, func() bool {
		var waits bool
		err := s.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		require.NoError(t, err)
		return waits || len(done) > 0
	}, 2*time.Minute, 5*time.Millisecond)
	for _, f := range look {
		f()
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
}

// No bytes are stored for a transaction that is dropped concurrently, because no process may broadcast them.
func TestStoreAttempts_BesideADrop_StoresNothing(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTx(s), newTx(s))
	var stored []bool
	beside(t, s, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `UPDATE relayer_txs SET status = 'dropped', open = false WHERE id = $1`, txs[0].ID)
		require.NoError(t, err)
	}, func() (err error) {
		stored, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(txs[0], 1, relayer.PurposeSend), attempt(txs[1], 1, relayer.PurposeSend)})
		return err
	})
	require.Equal(t, []bool{false, true}, stored)
}

// An attempt that is stored while its transaction loses the nonce is counted when the next one is signed.
func TestStoreAttempts_ConcurrentNonceConflict_IsCounted(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	ours := accept(t, s, limits, newTx(s))[0]
	beside(t, s, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `SELECT FROM relayer_txs WHERE id = $1 FOR SHARE`, ours.ID)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `INSERT INTO relayer_attempts (chain_id, tx_id, attempt, address, nonce, purpose, tx_hash, raw, max_fee)
			VALUES (1337, $1, 1, $2, 0, 'send', '0x01', '', 1)`, ours.ID, hexAddress(ours.From))
		require.NoError(t, err)
	}, func() error {
		return onlyErr(s.RecordNonceConflicts(t.Context(), ours.ID, ours.From, 0, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)}))
	})
	require.Nil(t, read(t, s, ours).Nonce)
	again, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, again, 1)
	unsigned, err := s.Unsigned(t.Context(), all(limits), -time.Minute, 10)
	require.NoError(t, err)
	require.Len(t, unsigned, 1)
	require.Equal(t, 1, unsigned[0].Attempts)
	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(unsigned[0], unsigned[0].Attempts+1, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, stored)
}

// Recording broadcasts does not wait for rows that were mined meanwhile.
func TestRecordBroadcasts_MinedRowLocked_DoesNotWait(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTx(s), newTx(s))
	broadcast(t, s, txs...)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 3)}))
	holder, err := s.db.Begin(t.Context())
	require.NoError(t, err)
	defer holder.Rollback(t.Context()) //nolint:errcheck // at the end
	_, err = holder.Exec(t.Context(), `SELECT FROM relayer_txs WHERE id = $1 FOR UPDATE`, txs[0].ID)
	require.NoError(t, err)
	var broadcasts []Broadcast
	for _, tx := range txs {
		a := attempt(tx, 1, relayer.PurposeSend)
		broadcasts = append(broadcasts, Broadcast{TxID: a.TxID, Number: 1, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Broadcasted, Error: "again"})
	}
	done := make(chan error, 1)
	go func() { done <- s.RecordBroadcasts(t.Context(), broadcasts) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.NoError(t, holder.Rollback(t.Context()))
		require.NoError(t, <-done)
		require.Fail(t, "it has waited")
	}
}

// A process that was frozen while an operator reset the chain writes nothing of the previous chain into the new generation.
func TestStore_GenerationHasChanged_WritesOfPreviousGenerationAreIgnored(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	before := known(t, s)
	_, err := s.ResetChain(t.Context(), before, genesis, Block{Hash: genesis}, nil)
	require.NoError(t, err)
	begun := known(t, s)
	require.NoError(t, s.MoveAnchor(t.Context(), before.Generation, Block{100, common.Hash{1}}))
	require.Equal(t, begun, known(t, s))
	raised, err := s.AdvanceNonce(t.Context(), key, before.Generation, 5)
	require.NoError(t, err)
	require.False(t, raised)
	require.NoError(t, s.Reconcile(t.Context(), before.Generation, map[common.Address]uint64{key: 5}))
	raised, err = s.AdvanceNonce(t.Context(), key, begun.Generation, 3)
	require.NoError(t, err)
	require.True(t, raised)
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	require.Equal(t, []uint64{3}, []uint64{keys[0].NextNonce})
	require.Equal(t, begun.Generation, keys[0].Generation)
	filled, err := s.FillNonceGaps(t.Context(), key, before.Generation, 0, 0)
	require.NoError(t, err)
	require.Empty(t, filled)
	filled, err = s.FillNonceGaps(t.Context(), key, begun.Generation, 0, 0)
	require.NoError(t, err)
	require.Len(t, filled, 3)
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), filled[2].ID, key, begun.Generation, 2, common.HexToHash("0xf1"), Block{4, blockHash(4)})))
	require.NoError(t, s.DropForeignTransactions(t.Context(), key, before.Generation, 0, 10))
	_, err = s.TransactionByNonce(t.Context(), key, 2)
	require.NoError(t, err)
	require.NoError(t, s.DropForeignTransactions(t.Context(), key, begun.Generation, 0, 10))
	_, err = s.TransactionByNonce(t.Context(), key, 2)
	require.ErrorIs(t, err, relayer.ErrNotFound)
	require.NoError(t, s.MoveAnchor(t.Context(), begun.Generation, Block{100, common.Hash{1}}))
	require.Equal(t, uint64(100), known(t, s).Anchor.Number)
}

// A transaction that lost its nonce on the previous chain may have the same nonce in the new generation. A nonce conflict found on
// the previous chain is not recorded for it.
func TestRecordNonceConflicts_PreviousEra_IsIgnored(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key, before := limits.Held[0], known(t, s)
	tx := accept(t, s, limits, newTx(s))[0]
	displace := func(generation int, is bool) *relayer.Transaction {
		was, err := s.RecordNonceConflicts(t.Context(), tx.ID, key, generation, 0, common.HexToHash("0xf0"), Block{3, blockHash(3)})
		require.NoError(t, err)
		require.Equal(t, is, was)
		return read(t, s, tx)
	}
	require.Nil(t, displace(before.Generation, true).Nonce)
	_, err := s.ResetChain(t.Context(), before, genesis, Block{Hash: genesis}, nil)
	require.NoError(t, err)
	dispatched, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, dispatched, 1)
	require.Zero(t, *dispatched[0].Nonce)
	require.NotNil(t, displace(before.Generation, false).Nonce)
	require.Equal(t, []int{1}, pending(t, s))
	require.Nil(t, displace(known(t, s).Generation, true).Nonce)
	require.Equal(t, []int{0}, pending(t, s))
}

// AdvanceNonce waits for a concurrent reset to commit, and then changes nothing, because the generation has changed.
func TestAdvanceNonce_ConcurrentReset_ChangesNothing(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	raised := true
	beside(t, s, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `UPDATE relayer_keys SET next_nonce = 0`)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `UPDATE relayer_chains SET generation = generation + 1`)
		require.NoError(t, err)
	}, func() (err error) {
		raised, err = s.AdvanceNonce(t.Context(), limits.Held[0], 0, 5)
		return err
	})
	require.False(t, raised)
}

// A transaction with two receipts decrements its key's pending count once, whatever plan Postgres makes.
func TestRecordMined_TwoReceipts_CountsOnce(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTxs(s, 3)...)
	broadcast(t, s, txs...)
	_, err := s.db.Exec(t.Context(), `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' SET enable_nestloop = off'; END $$`)
	require.NoError(t, err)
	s.db.Reset()
	found := mined(txs[0], 1, relayer.PurposeSend, 7)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{found, found}))
	require.Equal(t, []int{2}, pending(t, s))
}

// Rows are locked in the order of their nonces, however they are stored, so that two concurrent statements wait for each
// other without a deadlock.
func TestRows_AreLockedInNonceOrder(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*Store) error{
		"unmine": func(s *Store) error {
			_, err := s.MarkReorged(t.Context(), []Block{{3, blockHash(3)}})
			return err
		},
		"start over": func(s *Store) error {
			_, err := s.ResetChain(t.Context(), Chain{Genesis: genesis, Anchor: Block{Hash: genesis}}, genesis, Block{Hash: genesis}, nil)
			return err
		},
	} {
		s, limits := setup(t, 1)
		txs := accept(t, s, limits, newTxs(s, 2)...)
		broadcast(t, s, txs...)
		require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(txs[0], 1, relayer.PurposeSend, 3), mined(txs[1], 1, relayer.PurposeSend, 3)}))
		_, err := s.db.Exec(t.Context(), `UPDATE relayer_txs SET nonce = 5 WHERE nonce = 0`)
		require.NoError(t, err)
		_, err = s.db.Exec(t.Context(), `UPDATE relayer_txs SET updated_at = now() WHERE nonce = 1`) // behind the other
		require.NoError(t, err)
		_, err = s.db.Exec(t.Context(), `VACUUM FULL relayer_txs`)
		require.NoError(t, err)
		_, err = s.db.Exec(t.Context(), `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' SET enable_indexscan = off';
			EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' SET enable_bitmapscan = off'; END $$`)
		require.NoError(t, err)
		s.db.Reset()
		holder, err := s.db.Begin(t.Context())
		require.NoError(t, err)
		_, err = holder.Exec(t.Context(), `SELECT FROM relayer_txs WHERE nonce = 1 FOR UPDATE`)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- do(s) }()
		require.Eventually(t, func() bool {
			var waits bool
			err := s.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
			require.NoError(t, err)
			return waits
		}, 2*time.Minute, 5*time.Millisecond)
		var free int
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT FROM relayer_txs WHERE nonce = 5 FOR UPDATE SKIP LOCKED) AS free`).Scan(&free))
		require.NoError(t, holder.Rollback(t.Context()))
		require.NoError(t, <-done, name)
		require.Equal(t, 1, free, name)
	}
}
