package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Purge deletes up to limit transactions that have been final for longer than history, with their history and their webhooks, and
// returns their number. If that is limit, there may be others. A transaction is kept while its webhooks are being delivered, and
// while one of them is a dead letter, which an operator may replay. The client may use the id and the idempotency key of a deleted one
// again. Several processes may call it at the same time.
func (s *Store) Purge(ctx context.Context, history time.Duration, limit int) (deleted int, err error) {
	// Ids begin with the time of their creation, by the clock of an API, so that the primary key finds the oldest ones. The database's
	// clock decides.
	err = s.db.QueryRow(ctx, `WITH old AS (
			DELETE FROM relay_transactions WHERE id = ANY(ARRAY(SELECT id FROM relay_transactions t WHERE id < $1 AND NOT open AND updated_at < now() - $3::interval
				AND NOT EXISTS (SELECT FROM relay_webhooks w WHERE w.about = t.id AND w.state <> 'done')
				ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id
		), changes AS (DELETE FROM relay_history WHERE tx = ANY(ARRAY(SELECT id FROM old))
		), sent AS (DELETE FROM relay_webhooks WHERE about = ANY(ARRAY(SELECT id FROM old)) AND state = 'done') -- not one replayed meanwhile
		SELECT count(*) FROM old`, firstID(time.Now().Add(-history)), limit, history).Scan(&deleted)
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
