package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// claim is a delivery that this process may make until its lease ends, and a row of [sqlClaim].
type claim struct {
	Delivery uuid.UUID       `db:"delivery"` // zero if none was claimed
	Name     string          `db:"delivery_target"`
	Subject  uuid.UUID       `db:"subject"`
	Number   int             `db:"delivery_attempt"` // 1 for the first; with the claimant it identifies the claim
	Payload  json.RawMessage `db:"payload"`          // of a relayer's event; nil for a change of a transaction
	QueuedAt time.Time       `db:"delivery_queued_at"`
	NextAt   time.Time       `db:"delivery_next_at"` // when it became due
	Contents json.RawMessage `db:"contents"`         // the transaction's contents at the change; nil if the row still has them
	Deferred int             `db:"deferred"`         // how many other deliveries the statement has deferred
	// TransactionRow is the transaction as it was at the change, but for Contents. CreatedAt is zero if the transaction was
	// deleted.
	relayer.TransactionRow
	// until is when the claim ends, by this process's clock and counted from before the request.
	until time.Time
}

// verdict is the result of a claim.
type verdict int

const (
	delivered verdict = iota
	failed            // retried after delay, unless its retry window is over
	permanent         // a dead letter
	returned          // not tried
)

// deliveryResult ends a claim.
type deliveryResult struct {
	claim   *claim
	verdict verdict
	delay   time.Duration
	reason  string
}

// demand is how many deliveries to claim for a target.
type demand struct {
	target string
	n      int
	since  time.Time
	// retryNow: the target is back, so deliveries in backoff are due.
	retryNow bool
}

// deadLetter is a delivery that became a dead letter in a turn.
type deadLetter struct {
	id      uuid.UUID
	target  string
	subject uuid.UUID
	reason  string
}

// No plan may depend on the planner's estimate of the table's size: Postgres keeps plans, and may have made them when
// the table was empty. So in a turn the planner may not sort, hash or scan a whole table. Rows are updated by an array
// of ids where a join would be shorter. That leaves one index for each query.
const (
	// sqlPlan restricts the planner to the one index of each query.
	sqlPlan = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
		set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true)`

	// sqlNoWait is for turns that claim nothing. A turn with a claim waits for the disk, and so for the change that the
	// webhook reports. The store does not wait for changes that it can derive from the chain again, and a crash of the
	// server may lose one. The receiver would then have its revision, and get another change with the same revision.
	sqlNoWait = `SELECT set_config('synchronous_commit', 'off', true)`

	sqlDelivered = `UPDATE relayer_deliveries SET state = 'delivered', delivered_at = now(), claimant = NULL, last_error = ''
		WHERE id = ANY($1::uuid[]) AND state <> 'delivered'`

	// sqlDelete replaces sqlDelivered if delivered rows are not kept.
	sqlDelete = `DELETE FROM relayer_deliveries WHERE id = ANY($1::uuid[])`

	// The last attempt is made at the end of the retry window, not a backoff earlier.
	sqlFailed = `UPDATE relayer_deliveries d
		SET state = CASE WHEN f.hopeless OR now() >= d.retry_until THEN 'dead_letter' ELSE 'due' END, claimed_until = '-infinity',
			next_at = LEAST(now() + f.delay, GREATEST(d.retry_until, now())), last_error = f.reason, claimant = NULL
		FROM unnest($1::uuid[], $2::int[], $3::interval[], $4::bool[], $5::text[]) AS f (id, attempt, delay, hopeless, reason)
		WHERE d.id = ANY($1) AND d.id = f.id AND d.claimant = $6 AND d.attempts = f.attempt
		RETURNING d.id, d.target, d.subject, d.last_error, d.state = 'dead_letter'`

	// A delivery that was never tried keeps its full retry window.
	sqlReturned = `UPDATE relayer_deliveries d SET claimed_until = '-infinity', attempts = d.attempts - 1, claimant = NULL,
			retry_until = CASE WHEN d.attempts > 1 THEN d.retry_until END
		FROM unnest($1::uuid[], $2::int[]) AS f (id, attempt)
		WHERE d.id = ANY($1) AND d.id = f.id AND d.claimant = $3 AND d.attempts = f.attempt`

	// sqlFollow makes the next revision claimable if a claim has deferred it because of a lower one that is no longer
	// due.
	sqlFollow = `UPDATE relayer_deliveries SET next_at = now() WHERE id = ANY(ARRAY(
		SELECT lowest.id FROM unnest($1::uuid[], $2::text[], $3::int[]) AS f (subject, target, revision)
		CROSS JOIN LATERAL (SELECT n.id, n.revision, n.next_at FROM relayer_deliveries n
			WHERE n.subject = f.subject AND n.target = f.target AND n.state = 'due' ORDER BY n.revision LIMIT 1) AS lowest
		WHERE lowest.revision > f.revision AND lowest.next_at > now()))`

	// created_at instead of now(): the oldest are tried first, because later revisions wait for them.
	sqlHurry = `UPDATE relayer_deliveries SET next_at = created_at WHERE id = ANY(ARRAY(
		SELECT id FROM relayer_deliveries WHERE state = 'due' AND chain_id = $1 AND pool_id = $2 AND target = $3
			AND next_at > now() AND claimed_until <= now()
		ORDER BY next_at LIMIT ` + hurryLimit + ` FOR UPDATE SKIP LOCKED))`
)

// sqlClaim claims up to $4 deliveries that may be tried since $8 or later (see targetQueue.since). A due lower revision
// prevents the claim of a row, and stays due while it is claimed. So concurrent claimers need not see each other's changes.
// The row is deferred to a second after the lower one, so that later claims do not read it again; sqlFollow reverts that. If
// sqlFollow and the deferral do not see each other, the row waits for its time. If no row is claimed, the result is one row
// that has only the number of deferred ones. The result is read as [claim].
var sqlClaim = `WITH found AS MATERIALIZED (
			SELECT d.id, d.subject, d.revision FROM relayer_deliveries d
			WHERE d.state = 'due' AND d.chain_id = $1 AND d.pool_id = $2 AND d.target = $3 AND d.next_at <= now() AND d.next_at >= $8
				AND d.claimed_until <= now()
			ORDER BY d.next_at LIMIT $4 FOR UPDATE SKIP LOCKED
		), ordered AS MATERIALIZED (
			SELECT f.id, (SELECT p.next_at FROM relayer_deliveries p WHERE p.subject = f.subject AND p.target = $3 AND p.revision < f.revision
				AND p.state = 'due' ORDER BY p.revision LIMIT 1) AS lower FROM found f
		), deferred AS (
			UPDATE relayer_deliveries d SET next_at = GREATEST((SELECT o.lower FROM ordered o WHERE o.id = d.id), now()) + interval '1 s'
			WHERE d.id = ANY(ARRAY(SELECT o.id FROM ordered o WHERE o.lower IS NOT NULL))
		), claimed AS (
			UPDATE relayer_deliveries d SET claimed_until = now() + $5::interval, claimant = $6, attempts = d.attempts + 1,
				retry_until = COALESCE(d.retry_until, now() + $7::interval)
			WHERE d.id = ANY(ARRAY(SELECT o.id FROM ordered o WHERE o.lower IS NULL)) RETURNING d.*
		)
		SELECT (SELECT count(*) FROM ordered WHERE lower IS NOT NULL) AS deferred, c.id AS delivery, c.target AS delivery_target, c.subject,
			c.attempts AS delivery_attempt, c.created_at AS delivery_queued_at, c.next_at AS delivery_next_at, c.payload, c.contents,
			a.max_fee::text AS offered_fee, a.max_priority::text AS offered_tip, ` + relayer.SelectList[relayer.TransactionRow]("t", map[string]string{
	"revision": "c.revision", "status": "c.status", "status_reason": "c.status_reason", "intent": "coalesce(c.intent, 'send')",
	"attempts": "c.tx_attempts", "relayer_address": "'0x' || encode(c.relayer_address, 'hex')", "nonce": "c.nonce",
	"tx_hash": "'0x' || encode(c.tx_hash, 'hex')", "sent_at": "c.sent_at", "confirmed_at": "c.confirmed_at",
}) + `
		FROM (SELECT) AS always LEFT JOIN claimed c ON true
		LEFT JOIN LATERAL (SELECT * FROM relayer_txs WHERE id = c.subject LIMIT 1) AS t ON true
		LEFT JOIN LATERAL (SELECT max_fee, max_priority FROM relayer_attempts WHERE tx_hash = '0x' || encode(c.tx_hash, 'hex') AND tx_id = c.subject
			LIMIT 1) AS a ON true`

// syncBatch stores results and then claims, in one transaction and one round trip. An error means that all of it was
// done or nothing. Storing results again is harmless, and rows claimed without an answer are claimable when the claims
// end. more reports that rows were deferred, so that there may be others to claim after them.
func (d *Deliverer) syncBatch(ctx context.Context, settled []deliveryResult, wants []demand) (claims []*claim, gaveUp []deadLetter, more bool, err error) {
	var batch pgx.Batch
	batch.Queue(sqlPlan)
	if !slices.ContainsFunc(wants, func(w demand) bool { return w.n > 0 }) {
		batch.Queue(sqlNoWait)
	}
	d.queueSettlements(&batch, settled, &gaveUp)
	until := time.Now().Add(d.cfg.tuning.lease)
	for _, w := range wants {
		if w.retryNow {
			batch.Queue(sqlHurry, int64(d.cfg.ChainID), d.cfg.Pool, w.target)
		}
		if w.n <= 0 {
			continue
		}
		batch.Queue(sqlClaim, int64(d.cfg.ChainID), d.cfg.Pool, w.target, w.n, d.cfg.tuning.lease, d.name, d.cfg.RetryFor, w.since).
			Query(func(rows pgx.Rows) error {
				for rows.Next() {
					c, err := pgx.RowToAddrOfStructByName[claim](postgres.Sparse{CollectableRow: rows})
					if err != nil {
						return err
					}
					c.until = until
					if c.Delivery != uuid.Nil {
						claims = append(claims, c)
					}
					more = more || c.Deferred > 0
				}
				return rows.Err()
			})
	}
	if err := d.db.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, nil, false, fmt.Errorf("settle and claim webhook deliveries: %w", err)
	}
	return claims, gaveUp, more, nil
}

func (d *Deliverer) queueSettlements(batch *pgx.Batch, settled []deliveryResult, gaveUp *[]deadLetter) {
	var done, lost, back, ended []uuid.UUID
	var targets []string
	var revisions []int
	var lostAttempts, backAttempts []int
	var delays []time.Duration
	var vain []bool
	var reasons []string
	for _, s := range settled {
		if s.verdict != returned {
			ended, targets, revisions = append(ended, s.claim.Subject), append(targets, s.claim.Name), append(revisions, s.claim.Revision)
		}
		switch s.verdict {
		case delivered:
			done = append(done, s.claim.Delivery)
		case returned:
			back, backAttempts = append(back, s.claim.Delivery), append(backAttempts, s.claim.Number)
		case failed, permanent:
			lost, lostAttempts = append(lost, s.claim.Delivery), append(lostAttempts, s.claim.Number)
			delays, vain, reasons = append(delays, s.delay), append(vain, s.verdict == permanent), append(reasons, s.reason)
		}
	}
	if len(done) > 0 {
		sql := sqlDelivered
		if d.cfg.Retention == KeepNone {
			sql = sqlDelete
		}
		batch.Queue(sql, done)
	}
	if len(back) > 0 {
		batch.Queue(sqlReturned, back, backAttempts, d.name)
	}
	if len(lost) > 0 {
		batch.Queue(sqlFailed, lost, lostAttempts, delays, vain, reasons, d.name).Query(func(rows pgx.Rows) error {
			var p deadLetter
			var dead bool
			_, err := pgx.ForEachRow(rows, []any{&p.id, &p.target, &p.subject, &p.reason, &dead}, func() error {
				if dead {
					*gaveUp = append(*gaveUp, p)
				}
				return nil
			})
			return err
		})
	}
	if len(ended) > 0 {
		batch.Queue(sqlFollow, ended, targets, revisions)
	}
}

// errStopped cancels running attempts after the drain timeout.
var errStopped = errors.New("this process stops")
