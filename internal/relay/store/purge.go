package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Purge deletes up to limit final transactions that were accepted longer than history ago, with their history and their delivered
// webhooks, and returns their number. If that is limit, there may be others. A transaction with undelivered webhooks is kept. The
// client may use the id and the idempotency key of a deleted one again. Several processes may call it at the same time.
func (s *Store) Purge(ctx context.Context, history time.Duration, limit int) (deleted int, err error) {
	// Ids begin with the time of their creation, so that the primary key finds the oldest ones.
	err = s.db.QueryRow(ctx, `WITH old AS (
			DELETE FROM relay_transactions WHERE id = ANY(ARRAY(SELECT id FROM relay_transactions t WHERE id < $1 AND NOT open
				AND NOT EXISTS (SELECT FROM relay_deliveries d WHERE d.subject = t.id AND d.state <> 'delivered')
				ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id
		), changes AS (DELETE FROM relay_history WHERE tx = ANY(ARRAY(SELECT id FROM old))
		), sent AS (DELETE FROM relay_deliveries WHERE subject = ANY(ARRAY(SELECT id FROM old)))
		SELECT count(*) FROM old`, firstID(time.Now().Add(-history)), limit).Scan(&deleted)
	if err != nil {
		return 0, fmt.Errorf("purge transactions: %w", err)
	}
	return deleted, nil
}

// firstID returns the lowest id of version 7 of a time.
func firstID(at time.Time) (id uuid.UUID) {
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return id
}
