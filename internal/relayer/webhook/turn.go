package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// claim is a delivery that this process may make, until its lease ends.
type claim struct {
	id       uuid.UUID
	target   string
	event    string
	subject  string
	revision int
	attempt  int // 1 for the first; with the claimant it names the claim
	snapshot json.RawMessage
	data     []byte // the transaction's
	created  time.Time
	// until is when the claim ends, by this process's clock and counted from before it was asked for.
	until time.Time
}

// verdict is what became of a claim.
type verdict int

const (
	delivered verdict = iota
	failed            // to be tried again after delay, unless it has been tried for long enough
	hopeless          // to be parked
	returned          // nobody tried
)

// settlement ends a claim.
type settlement struct {
	claim   *claim
	verdict verdict
	delay   time.Duration
	reason  string
}

// want is how many a target may be sent.
type want struct {
	target string
	n      int
	// hurry: it is back, so what waits out its backoff is due.
	hurry bool
}

// parked is a delivery that a turn gave up.
type parked struct {
	id      uuid.UUID
	target  string
	subject string
	reason  string
}

// The statements. Subqueries as arrays and scalars, where joins would read nicer: the planner can't turn these into a walk
// over all that is due, whatever it believes about the table.
const (
	sqlNoWait = `SELECT set_config('synchronous_commit', 'off', true)`

	sqlDelivered = `UPDATE relayer_deliveries SET state = 'delivered', delivered_at = now(), claimant = '', last_error = ''
		WHERE id = ANY($1::uuid[]) AND state <> 'delivered'`

	// The last attempt comes when the time is up, not a backoff earlier.
	sqlFailed = `UPDATE relayer_deliveries d
		SET state = CASE WHEN f.hopeless OR now() >= d.retry_until THEN 'parked' ELSE 'due' END,
			next_at = LEAST(now() + f.delay, GREATEST(d.retry_until, now())), last_error = f.reason, claimant = ''
		FROM unnest($1::uuid[], $2::int[], $3::interval[], $4::bool[], $5::text[]) AS f (id, attempt, delay, hopeless, reason)
		WHERE d.id = f.id AND d.state = 'due' AND d.claimant = $6 AND d.attempts = f.attempt
		RETURNING d.id, d.target, d.subject, d.last_error, d.state = 'parked'`

	// What was never tried has all of its time before it.
	sqlReturned = `UPDATE relayer_deliveries d SET next_at = now(), attempts = d.attempts - 1, claimant = '',
			retry_until = CASE WHEN d.attempts > 1 THEN d.retry_until END
		FROM unnest($1::uuid[], $2::int[]) AS f (id, attempt)
		WHERE d.id = f.id AND d.state = 'due' AND d.claimant = $3 AND d.attempts = f.attempt`

	// Not now(): the oldest shall be the first again, for their later revisions wait for them.
	sqlHurry = `UPDATE relayer_deliveries SET next_at = created_at
		WHERE state = 'due' AND chain_id = $1 AND pool_id = $2 AND target = $3 AND claimant = '' AND next_at > now()`

	// A lower revision that is due keeps a row from being claimed; it stays due while it is claimed. So it does not
	// matter that of several claimers one may not see yet what the other did.
	sqlClaim = `UPDATE relayer_deliveries c
		SET next_at = now() + $5::interval, claimant = $6, attempts = c.attempts + 1,
			retry_until = COALESCE(c.retry_until, now() + $7::interval)
		WHERE c.id = ANY(ARRAY(
			SELECT d.id FROM relayer_deliveries d
			WHERE d.state = 'due' AND d.chain_id = $1 AND d.pool_id = $2 AND d.target = $3 AND d.next_at <= now()
				AND d.revision = (SELECT min(p.revision) FROM relayer_deliveries p
					WHERE p.subject = d.subject AND p.target = d.target AND p.state = 'due')
			ORDER BY d.next_at LIMIT $4 FOR UPDATE SKIP LOCKED))
		RETURNING c.id, c.target, c.event, c.subject, c.revision, c.attempts,
			c.snapshot || coalesce((SELECT jsonb_build_object('offered_fee', a.max_fee, 'offered_tip', a.max_priority)
				FROM relayer_attempts a WHERE a.tx_hash = c.snapshot->>'tx_hash' AND a.tx_id = c.tx_id), '{}'),
			(SELECT t.data FROM relayer_txs t WHERE t.id = c.tx_id), c.created_at`
)

// turn settles, then claims, in one transaction and one round trip. On an error either all of it was done or nothing;
// settling again does no harm, and what was claimed without being known comes back when the claims end.
func (d *Deliverer) turn(ctx context.Context, settled []settlement, wants []want) (claims []*claim, gaveUp []parked, err error) {
	var batch pgx.Batch
	batch.Queue(sqlNoWait)
	d.queueSettlements(&batch, settled, &gaveUp)
	until := time.Now().Add(d.cfg.tuning.lease)
	for _, w := range wants {
		if w.hurry {
			batch.Queue(sqlHurry, int64(d.cfg.ChainID), d.cfg.Pool, w.target)
		}
		if w.n <= 0 {
			continue
		}
		batch.Queue(sqlClaim, int64(d.cfg.ChainID), d.cfg.Pool, w.target, w.n, d.cfg.tuning.lease, d.name, d.cfg.RetryFor).
			Query(func(rows pgx.Rows) error {
				got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*claim, error) {
					c := &claim{until: until}
					return c, row.Scan(&c.id, &c.target, &c.event, &c.subject, &c.revision, &c.attempt, &c.snapshot, &c.data, &c.created)
				})
				claims = append(claims, got...)
				return err
			})
	}
	if err := d.db.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, nil, fmt.Errorf("settle and claim webhook deliveries: %w", err)
	}
	return claims, gaveUp, nil
}

func (d *Deliverer) queueSettlements(batch *pgx.Batch, settled []settlement, gaveUp *[]parked) {
	var done, lost, back []uuid.UUID
	var lostAttempts, backAttempts []int
	var delays []time.Duration
	var vain []bool
	var reasons []string
	for _, s := range settled {
		switch s.verdict {
		case delivered:
			done = append(done, s.claim.id)
		case returned:
			back, backAttempts = append(back, s.claim.id), append(backAttempts, s.claim.attempt)
		case failed, hopeless:
			lost, lostAttempts = append(lost, s.claim.id), append(lostAttempts, s.claim.attempt)
			delays, vain, reasons = append(delays, s.delay), append(vain, s.verdict == hopeless), append(reasons, s.reason)
		}
	}
	if len(done) > 0 {
		batch.Queue(sqlDelivered, done)
	}
	if len(back) > 0 {
		batch.Queue(sqlReturned, back, backAttempts, d.name)
	}
	if len(lost) == 0 {
		return
	}
	batch.Queue(sqlFailed, lost, lostAttempts, delays, vain, reasons, d.name).Query(func(rows pgx.Rows) error {
		var p parked
		var isParked bool
		_, err := pgx.ForEachRow(rows, []any{&p.id, &p.target, &p.subject, &p.reason, &isParked}, func() error {
			if isParked {
				*gaveUp = append(*gaveUp, p)
			}
			return nil
		})
		return err
	})
}

// errStopped ends what still runs when the process has waited for long enough.
var errStopped = errors.New("this process stops")
