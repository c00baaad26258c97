package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Purge deletes transactions that have been final for longer than history, unless that is 0. It also deletes idempotency keys
// older than keys whose transactions are final. It deletes at most limit of each. It returns how many it deleted; if that
// is limit or more, there may be others. A transaction with undelivered webhooks is kept. Its delivered webhooks are
// deleted with it, because they could not be replayed correctly without its row. Budgets more than a month old are deleted
// as well.
func (s *Store) Purge(ctx context.Context, history, keys time.Duration, limit int) (deleted int, err error) {
	batch := new(pgx.Batch)
	count := func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		deleted += n
		return err
	}
	if history > 0 {
		batch.Queue(`WITH old AS (
			DELETE FROM relayer_txs WHERE id IN (SELECT id FROM relayer_txs t WHERE chain_id = $1 AND pool_id = $2 AND NOT open
				AND created_at < now() - $3::interval AND updated_at < now() - $3::interval -- the index is of created_at
				AND NOT EXISTS (SELECT FROM relayer_webhooks w
					WHERE w.about = t.id AND w.state <> 'done') LIMIT $4)
			RETURNING id
		), signed AS (DELETE FROM relayer_attempts WHERE tx_id IN (SELECT id FROM old)
		), sent AS (DELETE FROM relayer_webhooks WHERE about IN (SELECT id FROM old) AND state = 'done')
			SELECT count(*) FROM old`, s.ChainID, s.Pool, history, limit).QueryRow(count)
	}
	batch.Queue(`WITH old AS (
		DELETE FROM relayer_idempotency WHERE (chain_id, pool_id, caller, key) IN (SELECT chain_id, pool_id, caller, key
			FROM relayer_idempotency i WHERE chain_id = $1 AND pool_id = $2 AND created_at < now() - $3::interval
				AND NOT EXISTS (SELECT FROM relayer_txs t WHERE t.id = i.tx_id AND t.open) LIMIT $4)
		RETURNING 1)
		SELECT count(*) FROM old`, s.ChainID, s.Pool, keys, limit).QueryRow(count)
	batch.Queue(`DELETE FROM relayer_budgets WHERE chain_id = $1 AND pool_id = $2 AND day < (now() AT TIME ZONE 'utc')::date - 31`, s.ChainID, s.Pool)
	if err := s.db.SendBatch(ctx, batch).Close(); err != nil {
		return deleted, fmt.Errorf("purge: %w", err)
	}
	return deleted, nil
}
