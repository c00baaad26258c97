package store

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// rowsRead returns how many rows of relayer_txs scans have read so far.
func rowsRead(t *testing.T, s *Store) (n int) {
	t.Helper()
	s.db.Reset() // a session reports its counts when it ends
	require.Eventually(t, func() bool {
		var others int
		err := s.db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`).Scan(&others)
		return err == nil && others == 0
	}, 2*time.Minute, 5*time.Millisecond)
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'relayer_txs'`).Scan(&n))
	return n
}

// Accept and Dispatch read only the rows of a long queue that they need.
func TestClaims_LongQueue_ReadFewRows(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap, limits.Queue = 1, 10_000
	const waiting = 4000
	for range waiting / 500 {
		accept(t, s, limits, newTxs(s, 500)...)
	}
	before := rowsRead(t, s)
	for range 5 {
		require.Nil(t, accept(t, s, limits, newTx(s))[0].Nonce)
	}
	require.Less(t, rowsRead(t, s)-before, 1000, "accepting where no key has room")

	limits.Cap = 3
	before = rowsRead(t, s)
	for range 2 {
		dispatched, err := s.Dispatch(t.Context(), limits, 2)
		require.NoError(t, err)
		require.Len(t, dispatched, 2)
	}
	require.Less(t, rowsRead(t, s)-before, 1000, "dispatching")

	limits.Cap = 10
	before = rowsRead(t, s)
	for range 5 {
		require.Nil(t, accept(t, s, limits, newTx(s))[0].Nonce)
	}
	require.Less(t, rowsRead(t, s)-before, 1000, "accepting while other transactions are queued for the room")

	_, err := s.db.Exec(t.Context(), `UPDATE relayer_keys SET balance_wei = 0, balance_at = now()`)
	require.NoError(t, err)
	before = rowsRead(t, s)
	for range 5 {
		dispatched, err := s.Dispatch(t.Context(), limits, 2)
		require.NoError(t, err)
		require.Empty(t, dispatched)
	}
	require.Less(t, rowsRead(t, s)-before, 1000, "dispatching while all queued transactions lack ether")
}

// Dispatch takes the keys' locks only if a key could take a transaction, because callers that post wait for them.
func TestDispatch_NothingToDispatch_LocksNoKey(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	_, err := s.db.Exec(t.Context(), `UPDATE relayer_keys SET balance_wei = 10, balance_at = now()`)
	require.NoError(t, err)
	accept(t, s, limits, worth(s, 7))
	require.Nil(t, accept(t, s, limits, worth(s, 9))[0].Nonce, "it is queued for lack of ether")
	holder, err := s.db.Begin(t.Context())
	require.NoError(t, err)
	defer holder.Rollback(t.Context()) //nolint:errcheck // at the end
	_, err = holder.Exec(t.Context(), `SELECT FROM relayer_keys FOR UPDATE`)
	require.NoError(t, err)
	dispatched, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err, "it has waited for a key")
	require.Empty(t, dispatched)
}

// counters compares the counter of each target's queue with the rows.
func counters(t *testing.T, s *Store, after string) {
	t.Helper()
	var stored, rows string
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT
		(SELECT coalesce(string_agg(concat_ws(' ', chain_id, pool_id, target, waiting), ', ' ORDER BY chain_id, pool_id, target), '') FROM relayer_queues WHERE waiting <> 0),
		(SELECT coalesce(string_agg(concat_ws(' ', chain_id, pool_id, target, n), ', ' ORDER BY chain_id, pool_id, target), '') FROM (
			SELECT chain_id, pool_id, target, count(*) AS n FROM relayer_txs WHERE open AND nonce IS NULL GROUP BY 1, 2, 3) AS q)`).Scan(&stored, &rows))
	require.Equal(t, rows, stored, after)
}

// RecountQueues finds and corrects a counter that differs from its rows, and leaves the others unchanged.
func TestRecountQueues_WrongCounters(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	other, otherTerms := pond(t, s.db)
	otherTerms.Cap = 1
	limits.Cap = 1
	accept(t, other, otherTerms, newTxs(other, 3)...)
	accept(t, s, limits, newTxs(s, 4)...)
	corrected, err := s.RecountQueues(t.Context())
	require.NoError(t, err)
	require.Empty(t, corrected)
	for name, damage := range map[string]string{
		"too many": `UPDATE relayer_queues SET waiting = waiting + 90 WHERE pool_id = 'pool'`,
		"too few":  `UPDATE relayer_queues SET waiting = -5 WHERE pool_id = 'pool'`,
		"missing":  `DELETE FROM relayer_queues WHERE pool_id = 'pool'`,
	} {
		_, err := s.db.Exec(t.Context(), damage)
		require.NoError(t, err)
		corrected, err := s.RecountQueues(t.Context())
		require.NoError(t, err, name)
		require.Equal(t, []string{"pool"}, corrected, name)
		counters(t, s, name)
	}
	n, err := s.Queued(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n)
}

// A correction waits for concurrent changes of a queue, and counts them.
func TestRecountQueues_BesideAChange(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	limits.Cap = 1
	txs := accept(t, s, limits, newTxs(s, 4)...)
	_, err := s.db.Exec(t.Context(), `UPDATE relayer_queues SET waiting = 50`)
	require.NoError(t, err)
	beside(t, s, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `UPDATE relayer_txs SET open = false, status = 'canceled' WHERE id = $1`, txs[3].ID)
		require.NoError(t, err)
	}, func() error {
		_, err := s.RecountQueues(t.Context())
		return err
	})
	counters(t, s, "a cancellation that committed meanwhile")
}

// Expired transactions do not block new ones; the cheapest unexpired one does.
func TestAccept_BehindExpired(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	full := limits
	full.Cap = 1
	accept(t, s, full, newTx(s))
	late := newTxs(s, expiredPassed-1)
	for _, d := range late {
		d.ValidUntil = time.Now().Add(-time.Minute)
	}
	accept(t, s, full, late...)
	require.NotNil(t, accept(t, s, limits, newTx(s))[0].Nonce)
	full.Cap = 2
	accept(t, s, full, worth(s, 5))
	require.Nil(t, accept(t, s, limits, newTx(s))[0].Nonce)
}

// The counters of the queues equal the numbers of rows after random operations.
func TestQueues_RandomOperations_CountersAreExact(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, limits := setup(t, 2, "target")
	other, otherTerms := pond(t, s.db)
	limits.Cap, limits.Queue = 4, 40
	s.Budgets = Budgets{Key: big.NewInt(1_000_000), Caller: big.NewInt(10_000_000)}
	block, anchor := uint64(1), genesis
	one := func(where string) (tx *relayer.Transaction) {
		var id uuid.UUID
		if err := s.db.QueryRow(t.Context(), `SELECT id FROM relayer_txs WHERE pool_id = 'pool' AND `+where+` ORDER BY random() LIMIT 1`).Scan(&id); err != nil {
			return nil
		}
		tx, err := s.Transaction(t.Context(), id)
		require.NoError(t, err)
		return tx
	}
	operations := []struct {
		name string
		do   func() error
	}{
		{"accept", func() error {
			all := newTxs(s, 1+random.IntN(8))
			for _, d := range all {
				d.Reserve = big.NewInt(random.Int64N(100))
				if random.IntN(3) == 0 {
					d.Key = limits.Held[random.IntN(2)]
					d.Target = hexAddress(d.Key)
				}
				if random.IntN(3) == 0 {
					d.ValidUntil = time.Now().Add(-time.Minute)
				}
			}
			_, err := s.Accept(t.Context(), limits, all)
			return err
		}},
		{"accept for the other pool", func() error {
			_, err := other.Accept(t.Context(), otherTerms, newTxs(other, 12))
			return err
		}},
		{"dispatch", func() error { _, err := s.Dispatch(t.Context(), limits, 1+random.IntN(5)); return err }},
		{"cancel", func() error {
			if tx := one(`open AND status <> 'mined' AND intent = 'send'`); tx != nil {
				_, err := s.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "test")
				return err
			}
			return nil
		}},
		{"expire", func() error {
			due, err := s.ListExpired(t.Context(), 3)
			for _, tx := range due {
				if _, err := s.SetIntent(t.Context(), tx.ID, relayer.IntentExpire, "test"); err != nil {
					return err
				}
			}
			return err
		}},
		{"cancel what is pending", func() error {
			_, err := s.CancelPending(t.Context(), []common.Address{{}, limits.Held[0]}[random.IntN(2)], time.Now().Add(time.Hour), "test", 3)
			return err
		}},
		{"replace", func() error {
			if tx := one(`open AND nonce IS NULL AND intent = 'send'`); tx != nil {
				return s.Replace(t.Context(), &Replacement{ID: tx.ID, Request: tx.Request, Reserve: big.NewInt(random.Int64N(100))})
			}
			return nil
		}},
		{"displace", func() error {
			if tx := one(`open AND nonce IS NOT NULL AND status <> 'mined' AND kind = 'transaction'`); tx != nil {
				return onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, known(t, s).Generation, *tx.Nonce, common.BigToHash(big.NewInt(random.Int64())), Block{block, blockHash(block)}))
			}
			return nil
		}},
		{"mine and confirm", func() error {
			for range 4 {
				tx := one(`open AND nonce IS NOT NULL AND status <> 'mined' AND intent = 'send'
					AND NOT EXISTS (SELECT FROM relayer_attempts a WHERE a.tx_id = relayer_txs.id)`)
				if tx == nil {
					break
				}
				broadcast(t, s, tx)
				if err := s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, block)}); err != nil {
					return err
				}
			}
			block++
			if random.IntN(2) == 0 {
				_, err := s.MarkReorged(t.Context(), []Block{{block - 1, blockHash(block - 1)}})
				return err
			}
			_, err := s.Confirm(t.Context(), []Block{{block - 1, blockHash(block - 1)}})
			return err
		}},
		{"start over", func() error {
			if random.IntN(5) > 0 {
				return nil
			}
			anchor = common.BigToHash(big.NewInt(random.Int64()))
			_, err := s.ResetChain(t.Context(), known(t, s), anchor, Block{Hash: anchor}, nil)
			return err
		}},
		{"purge", func() error { _, err := s.Purge(t.Context(), time.Nanosecond, time.Hour, 5); return err }},
		{"delete by hand", func() error {
			_, err := s.db.Exec(t.Context(), `DELETE FROM relayer_txs WHERE id = (SELECT id FROM relayer_txs WHERE open AND nonce IS NULL ORDER BY random() LIMIT 1)`)
			return err
		}},
	}
	for i := range 150 {
		o := operations[random.IntN(len(operations))]
		if i%3 == 0 {
			o = operations[0]
		}
		require.NoError(t, o.do(), o.name)
		counters(t, s, fmt.Sprintf("operation %d: %s", i, o.name))
	}
}
