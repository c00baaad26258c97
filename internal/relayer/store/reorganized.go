package store

import (
	"context"
	"fmt"
	"math"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// A reorganization deeper than the anchor removes blocks of final transactions. The chain keeps its genesis block, so all
// signed bytes stay valid and nonces keep their meaning. An operator runs a command that takes the rows back and moves the
// anchor.

// Placed is a transaction with a nonce, and its recorded block.
type Placed struct {
	ID    uuid.UUID
	Pool  string
	Nonce uint64
	Final bool
	Block Block // zero if it is in none
}

// Placed returns transactions of a key, of any pool, in the current generation, with nonces below the given one, the
// highest first; at most limit. It excludes other senders' transactions.
func (s *Store) Placed(ctx context.Context, key common.Address, below uint64, limit int) ([]Placed, error) {
	return collect(ctx, s.db, fmt.Sprintf("list transactions of %s", key), func(row pgx.CollectableRow) (p Placed, err error) {
		var number *uint64
		var hash *string
		err = row.Scan(&p.ID, &p.Pool, &p.Nonce, &p.Final, &number, &hash)
		if number != nil && hash != nil {
			p.Block = Block{Number: *number, Hash: common.HexToHash(*hash)}
		}
		return p, err
	}, `SELECT id, pool_id, nonce, NOT open, block_number, block_hash FROM relayer_txs
		WHERE chain_id = $1 AND relayer_address = $2 AND nonce < $3 AND generation = `+generationSQL("$1")+` AND kind <> 'foreign'
		ORDER BY nonce DESC LIMIT $4`, s.ChainID, hexAddress(key), int64(min(below, math.MaxInt64)), limit)
}

// reopenedBudgets adds charges for reopened transactions: one that was final reserves its maximum cost again, in place of
// its actual cost.
var reopenedBudgets = chargeBudgetSQL(` UNION ALL
		SELECT g.chain_id, g.pool_id, e.day, e.scope, e.subject, g.reserve_wei - coalesce(g.gas_used * g.gas_price_paid, 0)
		FROM gone g CROSS JOIN LATERAL (VALUES (g.budget_day, 'caller', g.caller), (g.budget_day, 'trader', g.trader),
			(g.key_budget_day, 'key', g.relayer_address)) AS e (day, scope, subject)
		WHERE NOT g.open AND g.reserve_wei IS NOT NULL AND e.day IS NOT NULL`)

// TakeBack makes transactions of a key pending again whose blocks the chain has lost, final ones too, and returns how
// many. They keep nonces and bytes. The webhook targets of their pools receive the change. A transaction that is in
// another block by now is unchanged. TakeBack fails with [ErrChainChanged], and changes nothing, if the recorded genesis
// block or generation differs from known's by now.
//
// This is the only change of a final transaction, and only an operator requests it.
func (s *Store) TakeBack(ctx context.Context, known Chain, key common.Address, gone []Placed) (taken int, err error) {
	if len(gone) == 0 {
		return 0, nil
	}
	ids, hashes := make([][16]byte, len(gone)), make([]string, len(gone))
	for i, p := range gone {
		ids[i], hashes[i] = p.ID, p.Block.Hash.Hex()
	}
	counts := statusCounts{}
	err = postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		batch := new(pgx.Batch)
		batch.Queue(`SELECT 1 FROM relayer_keys WHERE chain_id = $1 AND address = $2 FOR UPDATE`, s.ChainID, hexAddress(key))
		batch.Queue(`SELECT (genesis_hash, generation) = ($2, $3) FROM relayer_chains WHERE chain_id = $1 FOR SHARE`,
			s.ChainID, known.Genesis.Hex(), known.Generation).QueryRow(unchanged)
		batch.Queue(`WITH gone AS MATERIALIZED (
			SELECT t.* FROM relayer_txs t JOIN unnest($3::uuid[], $4::text[]) AS g (id, hash) ON t.id = g.id AND t.block_hash = g.hash
			WHERE t.chain_id = $1 AND t.relayer_address = $2 AND t.nonce IS NOT NULL AND t.generation = $5 AND t.kind <> 'foreign'
			ORDER BY t.nonce FOR UPDATE OF t
		), changed AS (
			UPDATE relayer_txs t SET status = 'broadcasted', open = true, taken_back_at = now(), confirmed_at = NULL,
				status_reason = 'its block is no longer part of the chain', block_number = NULL, block_hash = NULL, mined_at = NULL,
				succeeded = NULL, mined_purpose = NULL, gas_used = NULL, gas_price_paid = NULL, revision = t.revision + 1, updated_at = now()
			FROM gone WHERE t.id = gone.id RETURNING t.*
		), counted AS (SELECT relayer_address AS address, count(*)::int AS n FROM changed GROUP BY relayer_address)`+
			s.updatePendingSQL()+reopenedBudgets+enqueueDeliveriesByPoolSQL+statusCountsSQL, s.ChainID, hexAddress(key), ids, hashes, known.Generation).Query(counts.read)
		batch.Queue(forgetFinalBlocksSQL, s.ChainID)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("take back transactions of %s: %w", key, err)
	}
	return s.recordStatusCounts(counts), nil
}

// unchanged fails with [ErrChainChanged] if the recorded chain is not the one that a decision was based on.
func unchanged(row pgx.Row) error {
	var same bool
	err := row.Scan(&same)
	if err == nil && !same {
		return ErrChainChanged
	}
	return err
}

// Reanchor records another anchor block, of the same genesis and in the same generation. It fails with [ErrChainChanged]
// unless known is still recorded.
func (s *Store) Reanchor(ctx context.Context, known Chain, anchor Block) error {
	tag, err := s.db.Exec(ctx, `UPDATE relayer_chains SET anchor_number = $2, anchor_hash = $3
		WHERE chain_id = $1 AND (genesis_hash, anchor_number, anchor_hash, generation) = ($4, $5, $6, $7)`,
		s.ChainID, int64(anchor.Number), anchor.Hash.Hex(), known.Genesis.Hex(), int64(known.Anchor.Number), known.Anchor.Hash.Hex(), known.Generation)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrChainChanged
	}
	if err != nil {
		return fmt.Errorf("move the anchor: %w", err)
	}
	return nil
}
