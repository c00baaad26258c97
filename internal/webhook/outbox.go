package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// State of a delivery.
type State string

// The states.
const (
	Due        State = "due"
	Delivered  State = "delivered"
	DeadLetter State = "dead_letter"
)

// Outbox gives operators access to the deliveries of one [Source]. It is safe for concurrent use.
type Outbox struct {
	db     *pgxpool.Pool
	source Source
	turn   turnStatements
}

// NewOutbox returns the Outbox of a source, which has all its fields (see [New]). It does not close db.
func NewOutbox(db *pgxpool.Pool, source Source) *Outbox {
	return &Outbox{db: db, source: source, turn: newTurnStatements(source)}
}

// Delivery is one webhook to one target, in the form that operators and their scripts see.
type Delivery struct {
	ID          uuid.UUID         `json:"id"`
	Transaction *uuid.UUID        `json:"transaction"` // nil for an event of no transaction
	Subject     uuid.UUID         `json:"-"`           // orders the deliveries; of a transaction's events it is the transaction's id
	Target      string            `json:"target"`
	Event       string            `json:"event"`
	Revision    int               `json:"revision"`
	State       State             `json:"state"`
	Attempts    int               `json:"attempts"`
	NextAt      timefmt.Timestamp `json:"nextAt"` // of a due one: when it may be tried, or when its claim ends
	CreatedAt   timefmt.Timestamp `json:"createdAt"`
	DeliveredAt timefmt.Timestamp `json:"deliveredAt"`
	LastError   string            `json:"lastError"`
}

// Filter selects deliveries. A zero field selects all.
type Filter struct {
	IDs         []uuid.UUID
	State       State
	Target      string
	Transaction uuid.UUID
	// Since and Until limit the time of the change: from Since on, and before Until.
	Since, Until time.Time
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
	// retryNowLimit is how many deliveries in backoff become due at once when a target is back; the others keep their
	// times.
	retryNowLimit = "1000"
)

// where is the condition for a filter's rows; zero fields match all rows.
const where = `($1::uuid[] IS NULL OR id = ANY($1)) AND ($2 = '' OR state = $2) AND ($3 = '' OR target = $3)
	AND ($4::uuid IS NULL OR subject = $4)
	AND ($5::timestamptz IS NULL OR created_at >= $5) AND ($6::timestamptz IS NULL OR created_at < $6)`

// args returns the parameters of where, others, and those of the scope.
func (o *Outbox) args(f Filter, others ...any) []any {
	var tx *uuid.UUID
	if f.Transaction != uuid.Nil {
		tx = &f.Transaction
	}
	var since, until *time.Time
	if !f.Since.IsZero() {
		since = &f.Since
	}
	if !f.Until.IsZero() {
		until = &f.Until
	}
	return o.source.scopeArgs(append([]any{f.IDs, string(f.State), f.Target, tx, since, until}, others...)...)
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
		SELECT id, `+o.source.Transaction+`, subject, target, `+o.source.Event+`, revision, state, attempts,
			CASE WHEN state = 'due' THEN GREATEST(next_at, claimed_until) END, created_at, delivered_at, last_error
		FROM `+o.source.Table+` c WHERE `+o.source.scope("", 9)+where+` AND ($7::timestamptz IS NULL OR (created_at, id) > ($7, $8::uuid))
		ORDER BY created_at, id LIMIT $9`, o.args(f, afterTime, afterID, limit)...)
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
	const again = ` SET state = 'due', attempts = 0, next_at = now(), retry_until = NULL, claimed_until = '-infinity',
		claimant = NULL, delivered_at = NULL `
	if len(f.IDs) > 0 {
		tag, err := o.db.Exec(ctx, `UPDATE `+o.source.Table+again+`WHERE `+o.source.scope("", 6)+where+` AND state <> 'due'`, o.args(f)...)
		if err != nil {
			return 0, fmt.Errorf("replay webhook deliveries: %w", err)
		}
		return int(tag.RowsAffected()), nil
	}
	for done := 0; ; {
		tag, err := o.db.Exec(ctx, `UPDATE `+o.source.Table+again+`WHERE id = ANY(ARRAY(
			SELECT id FROM `+o.source.Table+` WHERE `+o.source.scope("", 7)+where+` AND state = 'dead_letter'
			ORDER BY created_at LIMIT $7 FOR UPDATE SKIP LOCKED))`, o.args(f, chunk)...)
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
			SELECT target, count(*) AS due, 0 AS dead, min(created_at) AS oldest FROM `+o.source.Table+`
			WHERE `+o.source.scope("", 0)+`state = 'due' GROUP BY target
			UNION ALL
			SELECT target, 0, count(*), NULL FROM `+o.source.Table+`
			WHERE `+o.source.scope("", 0)+`state = 'dead_letter' GROUP BY target
		) AS each GROUP BY target ORDER BY target`, o.source.scopeArgs()...)
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
				SELECT id, state FROM `+o.source.Table+`
				WHERE id > $1 AND id < (lpad(to_hex((extract(epoch FROM now() - $2::interval) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
				ORDER BY id LIMIT $3
			), gone AS (
				DELETE FROM `+o.source.Table+` d USING old WHERE d.id = old.id AND `+o.source.scope("d.", 3)+`d.state = 'delivered'
				RETURNING 1)
			SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM gone), coalesce((SELECT id FROM old ORDER BY id DESC LIMIT 1), $1)`,
			o.source.scopeArgs(after, older, chunk)...).Scan(&seen, &deleted, &after)
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
		tag, err := o.db.Exec(ctx, `UPDATE `+o.source.Table+`
			SET state = 'dead_letter', claimant = NULL, last_error = 'no target has this name'
			WHERE id = ANY(ARRAY(SELECT id FROM `+o.source.Table+`
				WHERE state = 'due' AND `+o.source.scope("", 3)+`target <> ALL($1::text[])
					AND GREATEST(next_at, claimed_until) < now() - $2::interval LIMIT $3 FOR UPDATE SKIP LOCKED))`,
			o.source.scopeArgs(known, older, chunk)...)
		if err != nil {
			return done, fmt.Errorf("park webhook deliveries without a target: %w", err)
		}
		done += int(tag.RowsAffected())
		if tag.RowsAffected() < chunk {
			return done, nil
		}
	}
}
