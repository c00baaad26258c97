package table

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// replayChunk is how many dead letters one statement replays.
const replayChunk = 1000

var (
	// ErrDeadLetters means that the database stored no dead letters.
	ErrDeadLetters = errors.New("dead letters cannot be stored")
	// ErrForeign means that a message is no transaction of this database.
	ErrForeign = errors.New("the dead-letter queue has messages of other programs, or of transactions that this database does not have")
)

// deadLetters implements [queue.DeadLetters]. Dead letters are rows of the table, also if the messages are in a broker.
type deadLetters struct{ db *pgxpool.Pool }

// Ready returns nil if Collect can store messages. It executes the statements of Collect without a message, because a database that
// answers may be read-only.
func (d *deadLetters) Ready(ctx context.Context) error {
	if _, err := d.known(ctx, uuid.Nil); err != nil {
		return err
	}
	if err := d.Return(ctx); err != nil {
		return err
	}
	return d.Bury(ctx)
}

// storeTimeout limits a statement that stores what a broker has delivered.
const storeTimeout = 10 * time.Second

// Collect stores a message that is in a broker's dead-letter queue. A dead letter of an earlier version has a time, and the broker moved any
// other message because of a limit of its own. Collect returns ErrForeign for a message that is not this database's. The caller leaves it
// where it is, because queues may share a dead-letter queue.
func (d *deadLetters) Collect(ctx context.Context, l queue.DeadLetter) error {
	switch known, err := d.known(ctx, l.ID); {
	case err != nil:
		return err
	case !known:
		return ErrForeign
	case l.DeadAt.IsZero():
		return d.Return(ctx, l.ID)
	default:
		return d.Bury(ctx, l)
	}
}

// known reports whether the database has a transaction.
func (d *deadLetters) known(ctx context.Context, id uuid.UUID) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err = d.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relay_transactions WHERE id = $1)`, id).Scan(&known); err != nil {
		return false, fmt.Errorf("%w: %w", ErrDeadLetters, err)
	}
	return known, nil
}

// Bury stores dead letters of messages that a broker delivered; the caller acknowledges them afterwards. A transaction that has an entry
// keeps it: the message was enqueued again, or is a dead letter already. The exception is the message's own entry, which its dispatcher
// has not deleted yet. It becomes the dead letter, and without its claimant the dispatcher does not delete it. Reasons and times may be
// those of another program, so they are replaced where Postgres would reject the statement.
func (d *deadLetters) Bury(ctx context.Context, letters ...queue.DeadLetter) error {
	n := len(letters)
	ids, attempts, reasons, enqueued := make([]uuid.UUID, n), make([]int32, n), make([]string, n), make([]time.Time, n)
	died := make([]*time.Time, n)
	latest := time.Now().Add(24 * time.Hour) // more than the clocks of two hosts differ
	for i, l := range letters {
		ids[i], attempts[i], reasons[i], enqueued[i] = l.ID, int32(l.Attempts), queue.Dead(l.Reason).Reason, l.EnqueuedAt
		if l.EnqueuedAt.IsZero() || l.EnqueuedAt.After(latest) {
			enqueued[i] = time.Now()
		}
		if !l.DeadAt.IsZero() && l.DeadAt.Before(latest) {
			died[i] = &l.DeadAt
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	// A broker's copy of the time has milliseconds.
	_, err := d.db.Exec(ctx, `INSERT INTO relay_queue AS q (id, attempts, reason, enqueued_at, dead_at, due_at)
		SELECT DISTINCT ON (id) id, attempts, reason, enqueued_at, LEAST(dead_at, now()), 'infinity'
			FROM unnest($1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::timestamptz[]) AS l (id, attempts, reason, enqueued_at, dead_at)
		ON CONFLICT (id) DO UPDATE SET attempts = EXCLUDED.attempts, reason = EXCLUDED.reason, dead_at = EXCLUDED.dead_at, due_at = 'infinity',
			claimed_until = '-infinity', claimant = NULL
		WHERE q.dead_at IS NULL AND q.claimant IS NOT NULL
			AND date_trunc('milliseconds', q.enqueued_at) = date_trunc('milliseconds', EXCLUDED.enqueued_at)`, ids, attempts, reasons, enqueued, died)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDeadLetters, err)
	}
	return nil
}

// Return makes transactions' messages entries again that a broker gave up because of a limit of its own.
func (d *deadLetters) Return(ctx context.Context, ids ...uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if _, err := d.db.Exec(ctx, queue.EnqueueSQL("(SELECT DISTINCT unnest($1::uuid[]) AS id) AS returned"), ids); err != nil {
		return fmt.Errorf("%w: enqueue messages again: %w", ErrDeadLetters, err)
	}
	return nil
}

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
