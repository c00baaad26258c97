package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Mined is a transaction found in a block.
type Mined struct {
	TxID        uuid.UUID
	Hash        common.Hash
	BlockNumber uint64
	BlockHash   common.Hash
	BlockTime   time.Time
	Succeeded   bool
	GasUsed     uint64
	GasPrice    *big.Int // wei, paid for each unit of gas
	Reason      string   // why it reverted, if that is available
	// Newest is the newest attempt that the caller knew when it read the block; zero: contents are not compared.
	Newest common.Hash
}

// settleLimit bounds how many rows one database transaction settles. Callers that post wait for the keys and budgets that
// it locks at its end.
const settleLimit = 50

// relaxed begins a batch whose commit does not wait for the disk. Use it for changes that the chain or the nodes can report
// again. A server crash may lose such a change completely, and the tracker repeats it. Attempts and intents must never be
// relaxed. An allocation of nonces waits for the disk with a second commit, see [Store.transaction]. A webhook about a
// relaxed change is sent only after a later commit, the claim of the delivery, has waited for the disk. That wait covers
// all commits before it.
func relaxed() *pgx.Batch {
	batch := new(pgx.Batch)
	batch.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	return batch
}

// RecordMined records the blocks of mined transactions. Repeating it changes nothing; another block replaces the first.
//
// It leaves out a transaction whose contents were replaced after Newest, because its row may have contents that were not
// mined. It records the others then, and fails with [ErrRaced]: the caller lists the candidates again. Other attempts after
// Newest do not matter, because they have the same contents.
func (s *Store) RecordMined(ctx context.Context, mined []Mined) error {
	var raced error
	for part := range slices.Chunk(mined, settleLimit) {
		err := s.recordMined(ctx, part)
		switch {
		case errors.Is(err, ErrRaced):
			raced = err
		case err != nil:
			return err
		}
	}
	return raced
}

// replacedSQL is the condition for the contents of row t to be replaced after attempt v.newest.
const replacedSQL = `EXISTS (SELECT FROM relayer_attempts n JOIN relayer_attempts r ON r.tx_id = n.tx_id AND r.attempt > n.attempt
	WHERE n.tx_id = v.id AND n.tx_hash = v.newest AND r.purpose = 'replace' AND r.nonce = t.nonce AND r.address = t.relayer_address)`

func (s *Store) recordMined(ctx context.Context, mined []Mined) error {
	n := len(mined)
	ids, hashes, blocks, numbers := make([][16]byte, n), make([]string, n), make([]string, n), make([]int64, n)
	times, succeeded, used, prices, reasons := make([]time.Time, n), make([]bool, n), make([]int64, n), make([]string, n), make([]string, n)
	newest, replaced := make([]string, n), 0
	for i, m := range mined {
		ids[i], hashes[i], blocks[i], numbers[i] = m.TxID, m.Hash.Hex(), m.BlockHash.Hex(), int64(m.BlockNumber)
		times[i], succeeded[i], used[i], prices[i] = m.BlockTime, m.Succeeded, int64(m.GasUsed), m.GasPrice.String()
		reasons[i], newest[i] = m.Reason, m.Newest.Hex()
	}
	counts := statusCounts{}
	batch := relaxed()
	// The rows are locked by a separate statement, because the next ones must see the attempts of a replacement that this one
	// waited for.
	batch.Queue(`SELECT FROM relayer_txs WHERE id = ANY($1) AND open ORDER BY relayer_address, nonce FOR UPDATE`, ids)
	batch.Queue(`SELECT count(*) FROM unnest($1::uuid[], $2::text[]) AS v (id, newest) JOIN relayer_txs t ON t.id = v.id
		WHERE t.open AND t.status <> 'mined' AND `+replacedSQL, ids, newest).QueryRow(func(row pgx.Row) error { return row.Scan(&replaced) })
	// The keys are locked last and only for the end of this statement, because every accepted transaction waits for them.
	batch.Queue(`WITH found AS (
		SELECT v.*, a.purpose, t.status AS was, t.relayer_address AS address FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::timestamptz[],
			$7::boolean[], $8::bigint[], $9::text[], $10::text[], $11::text[]) AS v (id, hash, block, number, mined, succeeded, used, price, reason, newest)
		JOIN relayer_txs t ON t.id = v.id JOIN relayer_attempts a ON a.tx_id = v.id AND a.tx_hash = v.hash AND a.nonce = t.nonce AND a.address = t.relayer_address
		WHERE t.open AND (t.status <> 'mined' OR t.block_hash <> v.block) AND NOT `+replacedSQL+` ORDER BY t.relayer_address, t.nonce FOR UPDATE OF t
	), changed AS (
		UPDATE relayer_txs t SET status = 'mined', status_reason = v.reason, tx_hash = v.hash, block_number = v.number, block_hash = v.block,
			mined_at = v.mined, succeeded = v.succeeded, mined_purpose = v.purpose, gas_used = v.used, gas_price_paid = v.price::numeric,
			sent_at = coalesce(t.sent_at, now()), revision = revision + 1, updated_at = now()
		FROM found v WHERE t.id = v.id RETURNING t.*
	), counted AS (SELECT address, -count(DISTINCT id)::int AS n FROM found WHERE was <> 'mined' GROUP BY address)`+
		s.updatePendingSQL()+enqueueDeliveriesSQL+statusCountsSQL, s.targets(), ids, hashes, blocks, numbers, times, succeeded, used, prices, reasons, newest).Query(counts.read)
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("record what was mined: %w", err)
	}
	s.notifyDeliveries()
	s.recordStatusCounts(counts)
	if replaced > 0 {
		return fmt.Errorf("record what was mined: contents of %d transactions were replaced: %w", replaced, ErrRaced)
	}
	return nil
}

// updatePendingSQL is a CTE suffix. It adds the per-key changes that the CTE "counted" returns to the keys' pending counts.
func (s *Store) updatePendingSQL() string {
	return `, locked AS (
		SELECT k.chain_id, k.address, c.n FROM counted c JOIN relayer_keys k ON k.chain_id = ` + fmt.Sprint(s.ChainID) + ` AND k.address = c.address
		WHERE c.n <> 0 ORDER BY k.address FOR UPDATE OF k
	), kept AS (
		UPDATE relayer_keys k SET pending_count = k.pending_count + c.n, updated_at = now()
		FROM locked c WHERE (k.chain_id, k.address) = (c.chain_id, c.address))`
}

// withLockedKeys locks the rows of the pool's keys, then runs a statement whose CTE "counted" returns the change of each
// key's pending count. It returns how many rows changed.
func (s *Store) withLockedKeys(ctx context.Context, doing, statement string, args ...any) (changed int, err error) {
	counts := statusCounts{}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		batch.Queue(`SELECT 1 FROM relayer_keys WHERE chain_id = $1 AND pool_id = $2 ORDER BY address FOR UPDATE`, s.ChainID, s.Pool)
		batch.Queue(statement+s.updatePendingSQL()+enqueueDeliveriesSQL+statusCountsSQL, args...).Query(counts.read)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	s.notifyDeliveries()
	return s.recordStatusCounts(counts), nil
}

// Block names a block.
type Block struct {
	Number uint64
	Hash   common.Hash
}

// MinedBlocks returns the blocks of mined transactions that are not final yet, the lowest first.
func (s *Store) MinedBlocks(ctx context.Context) ([]Block, error) {
	return collect(ctx, s.db, "list mined blocks", func(row pgx.CollectableRow) (b Block, err error) {
		var hash string
		err = row.Scan(&b.Number, &hash)
		b.Hash = common.HexToHash(hash)
		return b, err
	}, `SELECT DISTINCT block_number, block_hash FROM relayer_txs
		WHERE chain_id = $1 AND open AND nonce IS NOT NULL AND status = 'mined' AND pool_id = $2 ORDER BY block_number`, s.ChainID, s.Pool)
}

// MarkReorged sets transactions in blocks that left the chain back to broadcasted, and returns how many.
func (s *Store) MarkReorged(ctx context.Context, gone []Block) (int, error) {
	hashes := make([]string, len(gone))
	for i, b := range gone {
		hashes[i] = b.Hash.Hex()
	}
	return s.withLockedKeys(ctx, "put reorganized transactions back", `WITH gone AS MATERIALIZED (
		SELECT id FROM relayer_txs WHERE chain_id = $2 AND pool_id = $3 AND open AND nonce IS NOT NULL AND status = 'mined'
			AND block_hash = ANY($4) ORDER BY relayer_address, nonce FOR UPDATE
	), changed AS (
		UPDATE relayer_txs t SET status = 'broadcasted', status_reason = 'its block is no longer part of the chain',
			block_number = NULL, block_hash = NULL, mined_at = NULL, succeeded = NULL, mined_purpose = NULL, gas_used = NULL,
			gas_price_paid = NULL, revision = revision + 1, updated_at = now()
		FROM gone WHERE t.id = gone.id RETURNING t.*
	), counted AS (SELECT relayer_address AS address, count(*)::int AS n FROM changed GROUP BY relayer_address)`,
		s.targets(), s.ChainID, s.Pool, hashes)
}

// Confirm makes the transactions in the given blocks final. The caller has checked that these are deep enough and part of
// the chain. It returns how many became final.
func (s *Store) Confirm(ctx context.Context, blocks []Block) (int, error) {
	hashes := make([]string, len(blocks))
	for i, b := range blocks {
		hashes[i] = b.Hash.Hex()
	}
	var newest Block
	if len(blocks) > 0 {
		newest = slices.MaxFunc(blocks, func(a, b Block) int { return cmp.Compare(a.Number, b.Number) })
	}
	// The rows are found once: there is no index of blocks, and each query reads all open rows.
	ids, err := collect(ctx, s.db, "find what is to be confirmed", pgx.RowTo[[16]byte], `SELECT id FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NOT NULL
		AND status = 'mined' AND block_hash = ANY($3) ORDER BY relayer_address, nonce`, s.ChainID, s.Pool, hashes)
	if err != nil {
		return 0, err
	}
	confirmed, keys := 0, map[string]bool{}
	for part := range slices.Chunk(ids, settleLimit) {
		n, of, err := s.confirm(ctx, part, hashes, newest)
		confirmed += n
		for _, key := range of {
			keys[key] = true
		}
		if err != nil {
			return confirmed, err
		}
	}
	return confirmed, s.noteConfirmed(ctx, slices.Collect(maps.Keys(keys)))
}

// noteConfirmed stores that keys had a transaction confirmed now. It is a separate database transaction, because keys are
// locked before budgets everywhere. It does not wait for the disk while it holds the keys' locks.
func (s *Store) noteConfirmed(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	batch := relaxed()
	batch.Queue(`UPDATE relayer_keys k SET last_confirmed_at = now()
		FROM (SELECT address FROM relayer_keys WHERE chain_id = $1 AND address = ANY($2) ORDER BY address FOR UPDATE) AS locked
		WHERE k.chain_id = $1 AND k.address = locked.address`, s.ChainID, keys)
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("confirm: %w", err)
	}
	return nil
}

// confirm makes those of ids final that are in one of the blocks, and records the newest block. It returns how many, and the
// keys of the confirmed ones.
func (s *Store) confirm(ctx context.Context, ids [][16]byte, hashes []string, newest Block) (int, []string, error) {
	batch, counts := relaxed(), statusCounts{}
	// A mined no-op gets the status of its intent. If a caller's own bytes were mined after all, that overrides any intent.
	batch.Queue(`WITH deep AS MATERIALIZED (
		SELECT id FROM relayer_txs WHERE id = ANY($2) AND open AND status = 'mined' AND block_hash = ANY($3)
			ORDER BY relayer_address, nonce FOR UPDATE
	), changed AS (
		UPDATE relayer_txs t SET open = false, confirmed_at = now(), revision = revision + 1, updated_at = now(),
			status = CASE
				WHEN t.mined_purpose = 'noop' AND t.intent = 'cancel' THEN 'canceled'
				WHEN t.mined_purpose = 'noop' AND t.intent = 'expire' THEN 'expired'
				WHEN t.mined_purpose = 'noop' AND t.intent = 'fail' THEN 'failed'
				WHEN t.succeeded THEN 'confirmed' ELSE 'reverted' END,
			status_reason = CASE WHEN t.mined_purpose = 'noop' THEN t.intent_reason WHEN t.succeeded THEN ''
				WHEN t.status_reason <> '' THEN t.status_reason ELSE 'execution reverted' END
		FROM deep WHERE t.id = deep.id AND t.open AND t.status = 'mined' AND t.block_hash = ANY($3)
		RETURNING t.*
	)`+settleBudgetSQL+enqueueDeliveriesSQL+statusCountsSQL, s.targets(), ids, hashes).Query(counts.read)
	batch.Queue(`UPDATE relayer_pools SET final_number = $3, final_hash = $4 WHERE chain_id = $1 AND pool_id = $2 AND final_number <= $3`,
		s.ChainID, s.Pool, int64(newest.Number), newest.Hash.Hex())
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return 0, nil, fmt.Errorf("confirm: %w", err)
	}
	s.notifyDeliveries()
	return s.recordStatusCounts(counts), counts[string(relayer.Confirmed)].keys, nil
}
