package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// State of a delivery.
type State string

// The states.
const (
	Due        State = "due"
	Delivered  State = "delivered"
	DeadLetter State = "dead_letter"
)

// Outbox gives access to the deliveries of one pool, for operators and for writers of events. It is safe for concurrent
// use.
type Outbox struct {
	db    *pgxpool.Pool
	chain uint64
	pool  string
}

// NewOutbox returns the Outbox of a pool on a chain. It does not close db.
func NewOutbox(db *pgxpool.Pool, chain uint64, pool string) *Outbox {
	return &Outbox{db: db, chain: chain, pool: pool}
}

// Delivery is one webhook to one target, in the form that operators and their scripts see.
type Delivery struct {
	ID          uuid.UUID         `json:"id"`
	Transaction *uuid.UUID        `json:"transaction"` // nil for events of a relayer
	Subject     uuid.UUID         `json:"-"`           // orders the deliveries: the transaction's id, or a hash of the relayer's name
	Target      string            `json:"target"`
	Event       string            `json:"event"`
	Revision    int               `json:"revision"`
	State       State             `json:"state"`
	Attempts    int               `json:"attempts"`
	NextAt      relayer.Timestamp `json:"nextAt"` // of a due one: when it may be tried, or when its claim ends
	CreatedAt   relayer.Timestamp `json:"createdAt"`
	DeliveredAt relayer.Timestamp `json:"deliveredAt"`
	LastError   string            `json:"lastError"`
}

// Filter selects deliveries. A zero field selects all.
type Filter struct {
	IDs         []uuid.UUID
	State       State
	Target      string
	Transaction uuid.UUID
	// After is the last delivery of the previous page.
	After *Delivery
	// Limit is 1 to 1,000. Default 100.
	Limit int
}

const (
	defaultPage = 100
	maxPage     = 1000
	// chunk is how many rows one statement for an operator changes.
	chunk = 1000
	// hurryLimit is how many deliveries in backoff become due at once when a target is back; the others keep their
	// times.
	hurryLimit = "1000"
)

// where is the condition for a filter's rows; zero fields match all rows.
const where = `chain_id = $1 AND pool_id = $2
	AND ($3::uuid[] IS NULL OR id = ANY($3)) AND ($4 = '' OR state = $4) AND ($5 = '' OR target = $5)
	AND ($6::uuid IS NULL OR subject = $6)`

func (o *Outbox) args(f Filter) []any {
	var tx *uuid.UUID
	if f.Transaction != uuid.Nil {
		tx = &f.Transaction
	}
	return []any{int64(o.chain), o.pool, f.IDs, string(f.State), f.Target, tx}
}

// List returns the matching deliveries, the oldest first.
func (o *Outbox) List(ctx context.Context, f Filter) ([]Delivery, error) {
	var afterTime *time.Time
	var afterID *uuid.UUID
	if f.After != nil {
		afterTime, afterID = &f.After.CreatedAt.Time, &f.After.ID
	}
	limit := defaultPage
	if f.Limit > 0 {
		limit = min(f.Limit, maxPage)
	}
	rows, err := o.db.Query(ctx, `
		SELECT id, CASE WHEN payload IS NULL THEN subject END, subject, target,
			CASE WHEN payload IS NULL THEN '`+EventTransaction+`' ELSE '`+EventRelayerState+`' END, revision, state, attempts,
			CASE WHEN state = 'due' THEN GREATEST(next_at, claimed_until) END, created_at, delivered_at, last_error
		FROM relayer_deliveries WHERE `+where+` AND ($7::timestamptz IS NULL OR (created_at, id) > ($7, $8::uuid))
		ORDER BY created_at, id LIMIT $9`, append(o.args(f), afterTime, afterID, limit)...)
	if err != nil {
		return nil, fmt.Errorf("list webhook deliveries: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Delivery])
	if err != nil {
		return nil, fmt.Errorf("list webhook deliveries: %w", err)
	}
	return list, nil
}

// Replay makes deliveries due again, with the same ids and the full number of attempts. Of those that match the filter
// it takes the dead letters; if the filter has IDs, the delivered ones too. It returns how many it changed. After an
// error some may have been changed, and another call changes the rest.
func (o *Outbox) Replay(ctx context.Context, f Filter) (int, error) {
	const again = `SET state = 'due', attempts = 0, next_at = now(), retry_until = NULL, claimed_until = '-infinity',
		claimant = NULL, delivered_at = NULL `
	if len(f.IDs) > 0 {
		tag, err := o.db.Exec(ctx, `UPDATE relayer_deliveries `+again+`WHERE `+where+` AND state <> 'due'`, o.args(f)...)
		if err != nil {
			return 0, fmt.Errorf("replay webhook deliveries: %w", err)
		}
		return int(tag.RowsAffected()), nil
	}
	for done := 0; ; {
		tag, err := o.db.Exec(ctx, `UPDATE relayer_deliveries `+again+`WHERE id = ANY(ARRAY(
			SELECT id FROM relayer_deliveries WHERE `+where+` AND state = 'dead_letter'
			ORDER BY created_at LIMIT $7 FOR UPDATE SKIP LOCKED))`, append(o.args(f), chunk)...)
		if err != nil {
			return done, fmt.Errorf("replay webhook deliveries: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return done, nil
		}
		done += int(tag.RowsAffected())
	}
}

// Count is the number of deliveries of a target, by state.
type Count struct {
	Target           string
	Due, DeadLetters int
	OldestDue        time.Duration // since the change; 0 if no delivery is due
}

// Counts returns a Count for every target with due deliveries or dead letters, by name.
func (o *Outbox) Counts(ctx context.Context) ([]Count, error) {
	// Two queries in one, so that each has its partial index.
	rows, err := o.db.Query(ctx, `
		SELECT target, sum(due)::bigint, sum(dead)::bigint, coalesce(extract(epoch FROM now() - min(oldest)), 0)::float8
		FROM (
			SELECT target, count(*) AS due, 0 AS dead, min(created_at) AS oldest FROM relayer_deliveries
			WHERE state = 'due' AND chain_id = $1 AND pool_id = $2 GROUP BY target
			UNION ALL
			SELECT target, 0, count(*), NULL FROM relayer_deliveries
			WHERE state = 'dead_letter' AND chain_id = $1 AND pool_id = $2 GROUP BY target
		) AS each GROUP BY target ORDER BY target`, int64(o.chain), o.pool)
	if err != nil {
		return nil, fmt.Errorf("count webhook deliveries: %w", err)
	}
	counts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Count, err error) {
		var seconds float64
		err = row.Scan(&c.Target, &c.Due, &c.DeadLetters, &seconds)
		c.OldestDue = time.Duration(max(0, seconds) * float64(time.Second))
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("count webhook deliveries: %w", err)
	}
	return counts, nil
}

// Purge deletes delivered rows that are older than given, and returns their number. It scans the ids, which grow with
// time, once. Rows that are deleted and not vacuumed yet are read once, not for each chunk.
func (o *Outbox) Purge(ctx context.Context, older time.Duration) (int, error) {
	done, after := 0, uuid.Nil
	for {
		var seen, deleted int
		err := o.db.QueryRow(ctx, `WITH old AS MATERIALIZED (
				SELECT id, state, chain_id, pool_id FROM relayer_deliveries
				WHERE id > $1 AND id < (lpad(to_hex((extract(epoch FROM now() - $2::interval) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
				ORDER BY id LIMIT $3
			), gone AS (
				DELETE FROM relayer_deliveries d USING old WHERE d.id = old.id AND d.state = 'delivered' AND d.chain_id = $4 AND d.pool_id = $5
				RETURNING 1)
			SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM gone), coalesce((SELECT id FROM old ORDER BY id DESC LIMIT 1), $1)`,
			after, older, chunk, int64(o.chain), o.pool).Scan(&seen, &deleted, &after)
		if err != nil {
			return done, fmt.Errorf("purge webhook deliveries: %w", err)
		}
		done += deleted
		if seen < chunk {
			return done, nil
		}
	}
}

// deadLetterOrphans makes deliveries dead letters that have been due for longer than given and whose target is no longer
// configured. It returns their number.
func (o *Outbox) deadLetterOrphans(ctx context.Context, known []string, older time.Duration) (int, error) {
	for done := 0; ; {
		tag, err := o.db.Exec(ctx, `UPDATE relayer_deliveries
			SET state = 'dead_letter', claimant = NULL, last_error = 'no target has this name'
			WHERE id = ANY(ARRAY(SELECT id FROM relayer_deliveries
				WHERE state = 'due' AND chain_id = $1 AND pool_id = $2 AND target <> ALL($3::text[])
					AND GREATEST(next_at, claimed_until) < now() - $4::interval LIMIT $5 FOR UPDATE SKIP LOCKED))`,
			int64(o.chain), o.pool, known, older, chunk)
		if err != nil {
			return done, fmt.Errorf("park webhook deliveries without a target: %w", err)
		}
		done += int(tag.RowsAffected())
		if tag.RowsAffected() < chunk {
			return done, nil
		}
	}
}

// Announce writes an event of a relayer, a [RelayerDisabled] or a [RelayerEnabled], for each of the targets. The event
// belongs to tx: it is delivered if and when tx commits. Events of one relayer are delivered in their order. For that,
// each call holds a lock of the relayer until tx ends.
func (o *Outbox) Announce(ctx context.Context, tx pgx.Tx, targets []string, relayerID string, payload any) error {
	switch p := payload.(type) {
	case RelayerDisabled:
		p.PayloadType = "relayer_disabled"
		payload = p
	case RelayerEnabled:
		p.PayloadType = "relayer_enabled"
		payload = p
	default:
		return fmt.Errorf("announce %T: it is no event of a relayer", payload)
	}
	encoded, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("announce a relayer's event: %w", err)
	}
	// One address is a relayer on each of several chains.
	subject := uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "%d/%s/%s", o.chain, o.pool, relayerID))
	batch := new(pgx.Batch)
	batch.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('relayer_deliveries ' || $1::uuid, 0))`, subject)
	// A separate statement, because it must see the rows of the transaction that held the lock.
	batch.Queue(`
		INSERT INTO relayer_deliveries (chain_id, pool_id, target, subject, revision, payload)
		SELECT $1, $2, target, $3, 1 + coalesce(
			(SELECT max(d.revision) FROM relayer_deliveries d WHERE d.subject = $3 AND d.target = t.target), 0), $4
		FROM unnest($5::text[]) AS t(target)`, int64(o.chain), o.pool, subject, encoded, targets)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("announce a relayer's event: %w", err)
	}
	return nil
}
