package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// maxCheckDoublings is how often the pause between two checks of one transaction doubles: from a minute to about an hour.
const maxCheckDoublings = 6

// Due is a transaction that the reconciler has to look at.
type Due struct {
	*dispatch.Transaction
	// Checks is how often it was due since the last report, this time included. A relayer's answer to a check is a report.
	Checks int
	// Silence is how long ago the last report or change was.
	Silence time.Duration
	// AtRelayer is how long ago a relayer accepted it; 0 if none has.
	AtRelayer time.Duration
	// Withdrawing is whether its relayer was to be asked to cancel it.
	Withdrawing bool
}

// TakeDue returns up to limit transactions that nothing was heard of for too long, and postpones their next check. Several
// reconcilers get different ones. One that leaves them to the others gets only those that have been due for the given time. Those at
// the relayers of the URLs in except are left out.
//
// check_at is the time of the last report, change or check. TakeDue alone adds the pause, so that the pauses are settings of the
// reconcilers, and not of each process that stores a report.
func (s *Store) TakeDue(ctx context.Context, limit int, since time.Duration, except []string) ([]Due, error) {
	rows, err := s.db.Query(ctx, `UPDATE relay_transactions t SET checks = checks + 1, check_at = now()
		WHERE id = ANY(ARRAY(SELECT id FROM relay_transactions WHERE open AND check_at + 2 ^ LEAST(GREATEST(checks - 1, 0), $4) *
				(CASE WHEN status IN ('queued', 'submitting') THEN $2::interval ELSE $3::interval END) <= now() - $5::interval
				AND (status IN ('queued', 'submitting') OR relayer_url <> ALL(coalesce($6::text[], '{}')))
			ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
		RETURNING `+columns+`, now() - GREATEST(updated_at, reported_at) AS silence, coalesce(now() - submitted_at, '0') AS at_relayer, withdrawing`,
		limit, s.cfg.Stranded, s.cfg.Silent, maxCheckDoublings, since, except)
	if err != nil {
		return nil, fmt.Errorf("take due transactions: %w", err)
	}
	due, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (d Due, err error) {
		one, err := pgx.RowToStructByName[struct {
			row
			Silence     time.Duration `db:"silence"`
			AtRelayer   time.Duration `db:"at_relayer"`
			Withdrawing bool          `db:"withdrawing"`
		}](r)
		if err != nil {
			return d, err
		}
		d.Checks, d.Silence, d.AtRelayer, d.Withdrawing = one.Checks, one.Silence, one.AtRelayer, one.Withdrawing
		d.Transaction, err = one.transaction()
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("take due transactions: %w", err)
	}
	return due, nil
}

// Enqueue adds a queue entry for each of the transactions that no relayer has accepted, or makes the one that is there due.
func (s *Store) Enqueue(ctx context.Context, ids []uuid.UUID) error {
	if _, err := s.db.Exec(ctx, s.enqueue, ids); err != nil {
		return fmt.Errorf("enqueue transactions: %w", err)
	}
	return nil
}

// Withdraw marks a transaction whose relayer is to be asked to cancel it: once it has, the transaction returns to the queue.
// Withdraw reports whether the transaction is still at that relayer without a hash.
func (s *Store) Withdraw(ctx context.Context, at dispatch.Submission) (bool, error) {
	tag, err := s.db.Exec(ctx, `UPDATE relay_transactions SET withdrawing = true
		WHERE id = $1 AND relayer_tx = $2 AND attempts = $3 AND status = 'submitted' AND tx_hash IS NULL`, at.ID, at.RelayerTx, at.Attempt)
	if err != nil {
		return false, fmt.Errorf("withdraw a transaction: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// StopWithdrawing removes the mark of Withdraw, because the relayer does not cancel the transaction. A later cancellation is an
// operator's.
func (s *Store) StopWithdrawing(ctx context.Context, at dispatch.Submission) error {
	if _, err := s.db.Exec(ctx, `UPDATE relay_transactions SET withdrawing = false WHERE id = $1 AND relayer_tx = $2 AND attempts = $3`,
		at.ID, at.RelayerTx, at.Attempt); err != nil {
		return fmt.Errorf("stop withdrawing a transaction: %w", err)
	}
	return nil
}

// Lose makes a transaction unknown whose relayer had accepted it, and does not have it any more or does not send it. It may have
// been sent. Lose reports whether it did.
func (s *Store) Lose(ctx context.Context, at dispatch.Submission, reason string) (bool, error) {
	var n int
	var webhooks bool
	err := s.db.QueryRow(ctx, `WITH changed AS (
			UPDATE relay_transactions t SET status = 'unknown', status_reason = $3, outstanding = false, revision = revision + 1,
				updated_at = now(), checks = 0, check_at = now()
			WHERE id = $1 AND relayer_tx = $2 AND attempts = $4 AND status IN ('submitted', 'mined') RETURNING t.*
		)`+record+` SELECT count(*), `+webhooksStored+` FROM changed`, at.ID, at.RelayerTx, bounded(reason), at.Attempt).Scan(&n, &webhooks)
	if err != nil {
		return false, fmt.Errorf("lose a transaction: %w", err)
	}
	if webhooks {
		s.cfg.WebhooksStored()
	}
	return n > 0, nil
}

// ResolvableAfter is how long the last request of a transaction that is submitting must be over until an operator can decide about it.
// Before, its relayer may still process the request, and the consumers ask for it. With a CONSUMER_RELAYER_TIMEOUT above 40 s the
// operator has to wait longer: three times the timeout.
const ResolvableAfter = 2 * time.Minute

// Resolve applies an operator's decision to a transaction that is not final, and has not been submitting for less than ResolvableAfter.
// It reports false, and changes nothing, if the row is not as tx any more, a consumer has its lease, or the decision does not fit: a
// queued one cannot be queued again, and RelayerTx needs a relayer that has not given it an id yet.
func (s *Store) Resolve(ctx context.Context, tx *dispatch.Transaction, d dispatch.Resolution, reason string) (done bool, err error) {
	if err = s.inTx(ctx, func(db *dbTx) error {
		locked, err := lockOne(ctx, db, tx.ID, `revision = $2 AND held_until <= now()
			AND (status <> 'submitting' OR GREATEST(updated_at, requested_at, held_until) < now() - $3::interval)`, tx.Revision, ResolvableAfter)
		if err != nil || locked == nil {
			return err
		}
		var next dispatch.Transaction
		if next, done = locked.Resolve(d, bounded(reason)); !done {
			return nil
		}
		batch := new(pgx.Batch)
		db.queueChanges(batch, []change{{locked, next}})
		batch.Queue(forgetCalls, []uuid.UUID{tx.ID})
		if d.Retry {
			if locked.RelayerTx != "" {
				queueAcceptance(batch, tx.ID, &locked.Route, true, false)
			}
			batch.Queue(s.enqueue, []uuid.UUID{tx.ID})
		}
		return db.SendBatch(ctx, batch).Close()
	}); err != nil {
		return false, fmt.Errorf("resolve a transaction: %w", err)
	}
	return done, nil
}
