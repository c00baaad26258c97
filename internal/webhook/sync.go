package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// claim is a delivery that this process may make until its lease ends.
type claim struct {
	delivery uuid.UUID
	target   string
	subject  uuid.UUID
	revision int
	number   int       // of the attempt, 1 for the first; with the claimant it identifies the claim
	queuedAt time.Time // when the change was made
	nextAt   time.Time // when it became due
	event    string
	payload  Payload
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

const (
	// sqlPlan restricts the planner to the one index of each query.
	sqlPlan = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),
		set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true)`

	// sqlNoWait is for turns that claim nothing. A turn with a claim waits for the disk, and so for the change that the
	// webhook reports. An owner need not wait for changes that it can derive again, and a crash of the server may lose
	// one. The receiver would then have its revision, and get another change with the same revision.
	sqlNoWait = `SELECT set_config('synchronous_commit', 'off', true)`
)

// turnStatements holds the statements of a turn, for one [Source].
//
// No plan may depend on the planner's estimate of the table's size: Postgres keeps plans, and may have made them when
// the table was empty. So in a turn the planner may not sort, hash or scan a whole table. Rows are updated by an array
// of ids where a join would be shorter. That leaves one index for each query.
type turnStatements struct {
	delivered string
	deleted   string // replaces delivered if delivered rows are not kept
	failed    string
	returned  string
	// follow makes the next revision claimable if a claim has deferred it because of a lower one that is no longer due.
	follow string
	// retryNow makes deliveries in backoff due. Scope follows its parameter.
	retryNow string
	// claim claims up to $2 deliveries that may be tried since $6 or later (see targetQueue.since). Scope follows its
	// parameters. A due lower revision prevents the claim of a row, and stays due while it is claimed. So concurrent
	// claimers need not see each other's changes. The row is deferred to a second after the lower one, so that later
	// claims do not read it again; follow reverts that. If follow and the deferral do not see each other, the row waits
	// for its time. If no row is claimed, the result is one row that has only the number of deferred ones. scan reads
	// the result.
	claim string
}

func newTurnStatements(s Source) turnStatements {
	return turnStatements{
		delivered: `UPDATE ` + s.Table + ` SET state = 'delivered', delivered_at = now(), claimant = NULL, last_error = ''
			WHERE id = ANY($1::uuid[]) AND state <> 'delivered'`,

		deleted: `DELETE FROM ` + s.Table + ` WHERE id = ANY($1::uuid[])`,

		// The last attempt is made at the end of the retry window, not a backoff earlier.
		failed: `UPDATE ` + s.Table + ` d
			SET state = CASE WHEN f.hopeless OR now() >= d.retry_until THEN 'dead_letter' ELSE 'due' END, claimed_until = '-infinity',
				next_at = LEAST(now() + f.delay, GREATEST(d.retry_until, now())), last_error = f.reason, claimant = NULL
			FROM unnest($1::uuid[], $2::int[], $3::interval[], $4::bool[], $5::text[]) AS f (id, attempt, delay, hopeless, reason)
			WHERE d.id = ANY($1) AND d.id = f.id AND d.claimant = $6 AND d.attempts = f.attempt
			RETURNING d.id, d.target, d.subject, d.last_error, d.state = 'dead_letter'`,

		// A delivery that was never tried keeps its full retry window.
		returned: `UPDATE ` + s.Table + ` d SET claimed_until = '-infinity', attempts = d.attempts - 1, claimant = NULL,
				retry_until = CASE WHEN d.attempts > 1 THEN d.retry_until END
			FROM unnest($1::uuid[], $2::int[]) AS f (id, attempt)
			WHERE d.id = ANY($1) AND d.id = f.id AND d.claimant = $3 AND d.attempts = f.attempt`,

		follow: `UPDATE ` + s.Table + ` SET next_at = now() WHERE id = ANY(ARRAY(
			SELECT lowest.id FROM unnest($1::uuid[], $2::text[], $3::int[]) AS f (subject, target, revision)
			CROSS JOIN LATERAL (SELECT n.id, n.revision, n.next_at FROM ` + s.Table + ` n
				WHERE n.subject = f.subject AND n.target = f.target AND n.state = 'due' ORDER BY n.revision LIMIT 1) AS lowest
			WHERE lowest.revision > f.revision AND lowest.next_at > now()))`,

		// created_at instead of now(): the oldest are tried first, because later revisions wait for them.
		retryNow: `UPDATE ` + s.Table + ` SET next_at = created_at WHERE id = ANY(ARRAY(
			SELECT id FROM ` + s.Table + ` WHERE state = 'due' AND ` + s.scope("", 1) + `target = $1
				AND next_at > now() AND claimed_until <= now()
			ORDER BY next_at LIMIT ` + retryNowLimit + ` FOR UPDATE SKIP LOCKED))`,

		claim: `WITH found AS MATERIALIZED (
				SELECT d.id, d.subject, d.revision FROM ` + s.Table + ` d
				WHERE d.state = 'due' AND ` + s.scope("d.", 6) + `d.target = $1 AND d.next_at <= now() AND d.next_at >= $6
					AND d.claimed_until <= now()
				ORDER BY d.next_at LIMIT $2 FOR UPDATE SKIP LOCKED
			), ordered AS MATERIALIZED (
				SELECT f.id, (SELECT p.next_at FROM ` + s.Table + ` p WHERE p.subject = f.subject AND p.target = $1 AND p.revision < f.revision
					AND p.state = 'due' ORDER BY p.revision LIMIT 1) AS lower FROM found f
			), deferred AS (
				UPDATE ` + s.Table + ` d SET next_at = GREATEST((SELECT o.lower FROM ordered o WHERE o.id = d.id), now()) + interval '1 s'
				WHERE d.id = ANY(ARRAY(SELECT o.id FROM ordered o WHERE o.lower IS NOT NULL))
			), claimed AS (
				UPDATE ` + s.Table + ` d SET claimed_until = now() + $3::interval, claimant = $4, attempts = d.attempts + 1,
					retry_until = COALESCE(d.retry_until, now() + $5::interval)
				WHERE d.id = ANY(ARRAY(SELECT o.id FROM ordered o WHERE o.lower IS NULL)) RETURNING d.*
			)
			SELECT (SELECT count(*) FROM ordered WHERE lower IS NOT NULL), c.id, c.target, c.subject, c.revision, c.attempts, c.created_at,
				c.next_at, ` + s.Event + `, ` + s.Columns + `
			FROM (SELECT) AS always LEFT JOIN claimed c ON true ` + s.Joins,
	}
}

// scan reads a row of [turnStatements.claim]: the claim, nil if there is none, and how many other deliveries the statement has
// deferred.
func (s Source) scan(row pgx.CollectableRow) (_ *claim, deferred int, err error) {
	var c claim
	own := [...]any{&deferred, &c.delivery, &c.target, &c.subject, &c.revision, &c.number, &c.queuedAt, &c.nextAt, &c.event}
	fields := make([]any, len(row.FieldDescriptions()))
	copy(fields, own[:])
	if err := (postgres.Sparse{CollectableRow: row}).Scan(fields...); err != nil {
		return nil, 0, err
	}
	if c.delivery == uuid.Nil {
		return nil, deferred, nil
	}
	c.payload, err = s.Scan(rowAfter{row, len(own)})
	return &c, deferred, err
}

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
			batch.Queue(d.turn.retryNow, d.source.scopeArgs(w.target)...)
		}
		if w.n <= 0 {
			continue
		}
		args := d.source.scopeArgs(w.target, w.n, d.cfg.tuning.lease, d.name, d.cfg.RetryFor, w.since)
		batch.Queue(d.turn.claim, args...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				c, deferred, err := d.source.scan(rows)
				if err != nil {
					return err
				}
				if c != nil {
					c.until = until
					claims = append(claims, c)
				}
				more = more || deferred > 0
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
			ended, targets, revisions = append(ended, s.claim.subject), append(targets, s.claim.target), append(revisions, s.claim.revision)
		}
		switch s.verdict {
		case delivered:
			done = append(done, s.claim.delivery)
		case returned:
			back, backAttempts = append(back, s.claim.delivery), append(backAttempts, s.claim.number)
		case failed, permanent:
			lost, lostAttempts = append(lost, s.claim.delivery), append(lostAttempts, s.claim.number)
			delays, vain, reasons = append(delays, s.delay), append(vain, s.verdict == permanent), append(reasons, s.reason)
		}
	}
	if len(done) > 0 {
		sql := d.turn.delivered
		if d.cfg.Retention == KeepNone {
			sql = d.turn.deleted
		}
		batch.Queue(sql, done)
	}
	if len(back) > 0 {
		batch.Queue(d.turn.returned, back, backAttempts, d.name)
	}
	if len(lost) > 0 {
		batch.Queue(d.turn.failed, lost, lostAttempts, delays, vain, reasons, d.name).Query(func(rows pgx.Rows) error {
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
		batch.Queue(d.turn.follow, ended, targets, revisions)
	}
}

// errStopped cancels running attempts after the drain timeout.
var errStopped = errors.New("this process stops")
