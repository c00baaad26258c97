package table

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

const (
	// sweepEvery is how often a claim begins at the oldest entry. The others begin sweepMargin before the latest entry
	// claimed. An entry is due since the begin of the transaction that stores it, which may commit later than others.
	sweepEvery  = time.Second
	sweepMargin = time.Second
	// sweepShare is how many times longer than a slow sweep the time to the next one is.
	sweepShare = 20
	// chunk is how many entries one statement changes.
	chunk = 256
	// maxTurn limits a turn. It is above the server's statement timeout, and applies if the server is unreachable.
	maxTurn = 20 * time.Second
)

// claim is an entry that this process may handle until the claim ends.
type claim struct {
	queue.Message
	failures int    // with this delivery
	reason   string // of the latest failure
	// until is when the claim ends, by this process's clock and counted from before the request. The claimant's owner
	// guards it.
	until time.Time
}

// outcome is the result of a claim.
type outcome int

const (
	done     outcome = iota // the entry is deleted
	later                   // due again after delay, no failure
	failed                  // due again after delay
	dead                    // a dead letter
	returned                // not handled: as before the claim
)

type result struct {
	claim   *claim
	outcome outcome
	delay   time.Duration
	reason  string
}

// claimant claims entries and stores the results. It is for one goroutine.
type claimant struct {
	db    *pgxpool.Pool
	id    uuid.UUID
	lease time.Duration

	newest  time.Time // the next claim begins sweepMargin before it; zero: at the oldest entry
	sweepAt time.Time
}

func newClaimant(db *pgxpool.Pool, lease time.Duration) *claimant {
	return &claimant{db: db, id: uuid.New(), lease: lease}
}

// No plan may depend on the planner's estimate of the table's size: Postgres keeps plans, and may have made them when
// the table was empty. So in a turn the planner may not sort, hash or scan a whole table. Rows are updated by an array
// of ids where a join would be shorter. That leaves one index for each query.
const (
	sqlPlan = `SELECT set_config('synchronous_commit', 'off', true),
		set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true), set_config('enable_hashjoin', 'off', true),
		set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true)`

	sqlDone = `DELETE FROM relay_queue WHERE id = ANY($1::uuid[]) AND claimant = $3
		AND attempts = ($2::int[])[array_position($1::uuid[], id)]`

	sqlExtend = `UPDATE relay_queue SET claimed_until = now() + $4::interval WHERE id = ANY($1::uuid[]) AND claimant = $3
		AND attempts = ($2::int[])[array_position($1::uuid[], id)]`

	// An entry that was not handled keeps its place.
	sqlSettle = `UPDATE relay_queue q SET claimed_until = '-infinity', claimant = NULL,
			attempts = q.attempts - f.unclaimed, failures = q.failures - f.uncounted,
			reason = COALESCE(f.reason, q.reason), dead_at = CASE WHEN f.dead THEN now() END,
			due_at = CASE WHEN f.dead THEN 'infinity' WHEN f.delay IS NULL THEN q.due_at ELSE now() + f.delay END
		FROM unnest($1::uuid[], $2::int[], $4::int[], $5::int[], $6::interval[], $7::bool[], $8::text[])
			AS f (id, attempt, unclaimed, uncounted, delay, dead, reason)
		WHERE q.id = ANY($1::uuid[]) AND q.id = f.id AND q.claimant = $3 AND q.attempts = f.attempt`

	// sqlClaim returns the time, and the claimed entries in no particular order. If there is none, it returns one row
	// with the time only.
	sqlClaim = `WITH found AS MATERIALIZED (
			SELECT id FROM relay_queue WHERE due_at <= now() AND due_at >= $4 AND claimed_until <= now()
			ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
		), claimed AS (
			UPDATE relay_queue SET claimed_until = now() + $2::interval, claimant = $3, attempts = attempts + 1, failures = failures + 1
			WHERE id = ANY(ARRAY(SELECT id FROM found)) RETURNING id, attempts, failures, reason, enqueued_at, due_at
		)
		SELECT now(), c.id, c.attempts, c.failures, c.reason, c.enqueued_at, c.due_at FROM (SELECT) AS always LEFT JOIN claimed c ON true`
)

// turn stores results, extends claims, and claims up to n entries, in one transaction and one round trip. It returns the
// claims by age. An error means that all of it was done or nothing. Storing results again is harmless, and entries
// claimed without an answer are claimable when the claims end.
func (c *claimant) turn(ctx context.Context, results []result, extend []*claim, n int) ([]*claim, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	var batch pgx.Batch
	batch.Queue(sqlPlan)
	c.queueResults(&batch, results)
	for part := range slices.Chunk(extend, chunk) {
		ids, attempts := keys(part)
		batch.Queue(sqlExtend, ids, attempts, c.id, c.lease)
	}
	var claims []*claim
	begin, sweep := time.Now(), false
	if n > 0 {
		var since time.Time
		if sweep = c.newest.IsZero() || !begin.Before(c.sweepAt); !sweep {
			since = c.newest.Add(-sweepMargin)
		}
		batch.Queue(sqlClaim, n, c.lease, c.id, since).Query(func(rows pgx.Rows) (err error) {
			claims, err = c.collect(rows, begin, n)
			return err
		})
	}
	if err := c.db.SendBatch(ctx, &batch).Close(); err != nil {
		c.newest = time.Time{}
		return nil, fmt.Errorf("settle and claim queue entries: %w", err)
	}
	if sweep {
		c.sweepAt = begin.Add(max(sweepEvery, sweepShare*time.Since(begin)))
	}
	return claims, nil
}

// collect reads the rows of sqlClaim, and moves the begin of the next claim. The claimed entries are the oldest, so none
// before them is claimable; if they are less than n, none at all is.
func (c *claimant) collect(rows pgx.Rows, begin time.Time, n int) (claims []*claim, err error) {
	type aged struct {
		*claim
		due time.Time
	}
	var found []aged
	var now time.Time
	for rows.Next() {
		var id *uuid.UUID
		var attempts, failures *int
		var reason *string
		var enqueued, due *time.Time
		if err := rows.Scan(&now, &id, &attempts, &failures, &reason, &enqueued, &due); err != nil {
			return nil, err
		}
		if id != nil {
			found = append(found, aged{&claim{
				Message:  queue.Message{ID: *id, Attempts: *attempts, EnqueuedAt: *enqueued},
				failures: *failures, reason: *reason, until: begin.Add(c.lease),
			}, *due})
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b aged) int {
		return cmp.Or(a.due.Compare(b.due), slices.Compare(a.ID[:], b.ID[:]))
	})
	c.newest = now
	if len(found) == n {
		c.newest = found[n-1].due
	}
	for _, f := range found {
		claims = append(claims, f.claim)
	}
	return claims, nil
}

func (c *claimant) queueResults(batch *pgx.Batch, results []result) {
	var ended []*claim
	var others []result
	for _, r := range results {
		if r.outcome == done {
			ended = append(ended, r.claim)
		} else {
			others = append(others, r)
		}
	}
	for part := range slices.Chunk(ended, chunk) {
		ids, attempts := keys(part)
		batch.Queue(sqlDone, ids, attempts, c.id)
	}
	for part := range slices.Chunk(others, chunk) {
		var ids []uuid.UUID
		var attempts, unclaimed, uncounted []int
		var delays []*time.Duration
		var deaths []bool
		var reasons []*string
		for _, r := range part {
			ids, attempts, deaths = append(ids, r.claim.ID), append(attempts, r.claim.Attempts), append(deaths, r.outcome == dead)
			claims, counts := 0, 0
			var delay *time.Duration
			var reason *string
			switch r.outcome {
			case returned:
				claims, counts = 1, 1
			case later:
				counts, delay = 1, &r.delay
			default:
				delay, reason = &r.delay, &r.reason
			}
			unclaimed, uncounted = append(unclaimed, claims), append(uncounted, counts)
			delays, reasons = append(delays, delay), append(reasons, reason)
		}
		batch.Queue(sqlSettle, ids, attempts, c.id, unclaimed, uncounted, delays, deaths, reasons)
	}
}

func keys(claims []*claim) (ids []uuid.UUID, attempts []int) {
	for _, c := range claims {
		ids, attempts = append(ids, c.ID), append(attempts, c.Attempts)
	}
	return ids, attempts
}
