package table

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
)

// replayChunk is how many dead letters one statement replays.
const replayChunk = 1000

// deadLetters implements [queue.DeadLetters]. Dead letters are rows of the table.
type deadLetters struct{ db *pgxpool.Pool }

const sqlReplay = `UPDATE relay_queue SET dead_at = NULL, due_at = now(), claimed_until = '-infinity', claimant = NULL,
	attempts = 0, failures = 0, reason = '' `

// List returns up to limit dead letters, the oldest first.
func (d *deadLetters) List(ctx context.Context, limit int) ([]queue.DeadLetter, error) {
	rows, err := d.db.Query(ctx, `SELECT id, attempts, reason, enqueued_at, dead_at FROM relay_queue WHERE dead_at IS NOT NULL
		ORDER BY dead_at, id LIMIT $1`, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[queue.DeadLetter])
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

// Replay implements [queue.DeadLetters].
func (d *deadLetters) Replay(ctx context.Context, ids ...uuid.UUID) (int, error) {
	tag, err := d.db.Exec(ctx, sqlReplay+`WHERE id = ANY($1) AND dead_at IS NOT NULL`, ids)
	if err != nil {
		return 0, fmt.Errorf("replay dead letters: %w", err)
	}
	d.notify(ctx)
	return int(tag.RowsAffected()), nil
}

// ReplayAll implements [queue.DeadLetters]. A message that becomes a dead letter again meanwhile stays one.
func (d *deadLetters) ReplayAll(ctx context.Context) (int, error) {
	n := 0
	for begin := (*time.Time)(nil); ; {
		var replayed int
		err := d.db.QueryRow(ctx, `WITH replayed AS (`+sqlReplay+`WHERE id = ANY(ARRAY(SELECT id FROM relay_queue
				WHERE dead_at IS NOT NULL AND dead_at <= COALESCE($1, now()) ORDER BY dead_at, id LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1)
			SELECT count(*), COALESCE($1, now()) FROM replayed`, begin, replayChunk).Scan(&replayed, &begin)
		if err != nil {
			return n, fmt.Errorf("replay dead letters: %w", err)
		}
		n += replayed
		if replayed < replayChunk {
			d.notify(ctx)
			return n, nil
		}
	}
}

// Drop implements [queue.DeadLetters].
func (d *deadLetters) Drop(ctx context.Context, ids ...uuid.UUID) (int, error) {
	tag, err := d.db.Exec(ctx, `DELETE FROM relay_queue WHERE id = ANY($1) AND dead_at IS NOT NULL`, ids)
	if err != nil {
		return 0, fmt.Errorf("drop dead letters: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// notify wakes the consumers; if it fails, their poll finds the messages.
func (d *deadLetters) notify(ctx context.Context) { _, _ = d.db.Exec(ctx, sqlNotify) }
