package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// State is the stored state of an entry.
type State string

// The states. A waiting entry may be due, delayed, blocked, sent or claimed.
const (
	Waiting State = "waiting"
	Done    State = "done"
	Dead    State = "dead"
)

// Item is an entry in the form that operators and their scripts see.
type Item struct {
	ID        string            `json:"id"`
	Seq       int64             `json:"seq"`
	Lane      string            `json:"lane"`
	Subject   string            `json:"subject"`
	Partition int               `json:"partition"`
	State     State             `json:"state"`
	Progress  string            `json:"progress"` // of a waiting one: waiting, delayed, blocked, sent or working; otherwise the state
	Attempts  int               `json:"attempts"`
	Failures  int               `json:"failures"`
	Reason    string            `json:"reason"`
	CreatedAt timefmt.Timestamp `json:"createdAt"`
	DueAt     timefmt.Timestamp `json:"dueAt"`     // of a waiting one: when it may be claimed, or when its lease ends; zero while it is blocked
	SettledAt timefmt.Timestamp `json:"settledAt"` // of the latest result
	Payload   []byte            `json:"payload"`   // of Show only
}

// Filter selects entries. A zero field selects all.
type Filter struct {
	IDs     []string
	State   State
	Lane    string
	Prefix  string // of the lane
	Suffix  string // of the lane
	Subject string
	// Since and Until limit the time of insertion: from Since on, and before Until.
	Since, Until time.Time
	// After is the last entry of the previous page.
	After *Item
	// Limit is 1 to MaxPage, for List. Default 100.
	Limit int
}

const (
	defaultPage = 100
	// MaxPage is the most entries that one List returns.
	MaxPage = 1000
	// where is the condition for a filter's rows; zero fields match all rows.
	where = `($1::text[] IS NULL OR id = ANY($1)) AND ($2 = '' OR state = $2) AND ($3 = '' OR lane = $3) AND starts_with(lane, $4)
		AND right(lane, length($5)) = $5 AND ($6 = '' OR subject = $6)
		AND ($7::timestamptz IS NULL OR created_at >= $7) AND ($8::timestamptz IS NULL OR created_at < $8)`
	items = `SELECT id, seq, lane, coalesce(subject, ''), partition, state, CASE WHEN state <> 'waiting' THEN state WHEN claimed_until > now() THEN 'working'
			WHEN due_at = 'infinity' THEN 'blocked' WHEN sent THEN 'sent' WHEN due_at > now() THEN 'delayed' ELSE 'waiting' END,
			attempts, failures, reason, created_at, CASE WHEN state = 'waiting' THEN nullif(GREATEST(due_at, claimed_until), 'infinity') END, settled_at`
)

// args returns the parameters of where, and others.
func (f Filter) args(others ...any) []any {
	var since, until *time.Time
	if !f.Since.IsZero() {
		since = &f.Since
	}
	if !f.Until.IsZero() {
		until = &f.Until
	}
	return append([]any{f.IDs, string(f.State), f.Lane, f.Prefix, f.Suffix, f.Subject, since, until}, others...)
}

// List returns the matching entries without their payloads, in the order of insertion.
func (o *Outbox) List(ctx context.Context, f Filter) ([]Item, error) {
	limit := defaultPage
	if f.Limit > 0 {
		limit = min(f.Limit, MaxPage)
	}
	after := Item{Seq: -1}
	if f.After != nil {
		after = *f.After
	}
	rows, err := o.db.Query(ctx, o.table.named(items+`, NULL::bytea FROM $name WHERE `+where+` AND (created_at, seq) > ($9, $10)
		ORDER BY created_at, seq LIMIT $11`), f.args(after.CreatedAt.Time, after.Seq, limit)...)
	if err != nil {
		return nil, fmt.Errorf("list entries of %s: %w", o.table.Name, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Item])
	if err != nil {
		return nil, fmt.Errorf("list entries of %s: %w", o.table.Name, err)
	}
	return list, nil
}

// Show returns an entry with its payload, or an error that matches pgx.ErrNoRows.
func (o *Outbox) Show(ctx context.Context, id string) (Item, error) {
	rows, err := o.db.Query(ctx, o.table.named(items+`, payload FROM $name WHERE id = $1`), id)
	if err != nil {
		return Item{}, fmt.Errorf("read entry %s of %s: %w", id, o.table.Name, err)
	}
	item, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Item])
	if err != nil {
		return Item{}, fmt.Errorf("read entry %s of %s: %w", id, o.table.Name, err)
	}
	return item, nil
}

// Replay makes entries due again. It keeps their ids and attempts, and resets their failures. Of those that match the filter it takes the dead ones; if the
// filter has IDs, the finished ones too. It returns how many it changed. After an error some may have been changed, and another
// call changes the rest. An entry that dies again meanwhile stays dead.
//
// A dead entry that blocks its subject keeps its place. Any other goes to the end of its subject, so that it is not worked on
// concurrently with a later one. Entries that one call replays keep their order.
func (o *Outbox) Replay(ctx context.Context, f Filter) (int, error) {
	number := `nextval('$name_numbers')`
	if o.table.DeadBlocks {
		number = `CASE state WHEN 'dead' THEN seq ELSE nextval('$name_numbers') END`
	}
	n, err := o.change(ctx, f, `, numbered AS MATERIALIZED (SELECT id, `+number+` AS seq FROM (SELECT * FROM ended ORDER BY seq OFFSET 0) AS sorted)
		UPDATE $name e SET state = 'waiting', failures = 0, failing_since = NULL, reason = '', due_at = now(), seq = n.seq
		FROM numbered n WHERE e.id = ANY(ARRAY(SELECT id FROM ended)) AND e.id = n.id RETURNING coalesce(e.subject, '')`)
	if err != nil {
		return n, fmt.Errorf("replay entries of %s: %w", o.table.Name, err)
	}
	if n > 0 {
		_ = o.notify(ctx) // the poll does the same, later
	}
	return n, nil
}

// Drop deletes the dead entries that match the filter; if it has IDs, the finished ones too. It returns their number. After an
// error some may have been deleted.
func (o *Outbox) Drop(ctx context.Context, f Filter) (int, error) {
	n, err := o.change(ctx, f, ` DELETE FROM $name WHERE id = ANY(ARRAY(SELECT id FROM ended)) RETURNING coalesce(subject, '')`)
	if err != nil {
		return n, fmt.Errorf("drop entries of %s: %w", o.table.Name, err)
	}
	return n, nil
}

// change executes a statement that changes the rows of the CTE "ended": the matching entries that ended before the call.
func (o *Outbox) change(ctx context.Context, f Filter, change string) (int, error) {
	ended := `state = 'dead'` // its own index
	if len(f.IDs) > 0 {
		ended = `state <> 'waiting'`
	}
	ended += ` AND settled_at <= $9 AND ` + where
	var begin time.Time
	if err := o.db.QueryRow(ctx, `SELECT now()`).Scan(&begin); err != nil {
		return 0, err
	}
	for done := 0; ; {
		var ids []string
		var changed int
		err := postgres.InTx(ctx, o.db, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, o.table.named(`SELECT id FROM $name WHERE `+ended+` ORDER BY created_at, seq LIMIT $10`), f.args(begin, chunk)...)
			if err != nil {
				return err
			}
			if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
				return err
			}
			// The order of the ids is that of Table.AgainSQL, which also locks dead entries. The next statement searches by id alone, as
			// sqlPickIDs does.
			slices.Sort(ids)
			if _, err := tx.Exec(ctx, o.sql.lock, ids); err != nil {
				return err
			}
			changed, err = o.changeIn(ctx, tx, `WITH given AS MATERIALIZED (SELECT * FROM $name WHERE id = ANY($10::text[])),
				ended AS MATERIALIZED (SELECT id, state, seq FROM given WHERE `+ended+`)`+change, f.args(begin, ids)...)
			return err
		})
		if err != nil {
			return done, err
		}
		if done += changed; len(ids) < chunk {
			return done, nil
		}
	}
}

// inChunks executes a statement that changes up to chunk entries, and returns their subjects, until none is left. It returns the
// number of changed entries.
func (o *Outbox) inChunks(ctx context.Context, sql string, args ...any) (int, error) {
	for done := 0; ; {
		n, err := o.inChunk(ctx, sql, args...)
		if done += n; err != nil || n < chunk {
			return done, err
		}
	}
}

// inChunk executes a statement once, as changeIn does, in a transaction of its own.
func (o *Outbox) inChunk(ctx context.Context, sql string, args ...any) (n int, err error) {
	err = postgres.InTx(ctx, o.db, func(tx pgx.Tx) error {
		n, err = o.changeIn(ctx, tx, sql, args...)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// changeIn executes a statement that returns the subjects of the entries that it changed, unblocks the next entries of these subjects, and
// returns the number of changed entries.
func (o *Outbox) changeIn(ctx context.Context, tx pgx.Tx, sql string, args ...any) (int, error) {
	rows, err := tx.Query(ctx, o.table.named(sql), args...)
	if err != nil {
		return 0, err
	}
	subjects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, o.sql.promote, subjects, true)
	return len(subjects), err
}

// Purge deletes finished entries of lanes with a prefix that ended longer ago than given, and returns their number. After an error
// some may have been deleted. It reads the old entries once, in the order of their insertion: entries that are deleted and not
// vacuumed yet are read once, not for each chunk.
func (o *Outbox) Purge(ctx context.Context, prefix string, older time.Duration) (int, error) {
	for done, after := 0, (Item{Seq: -1}); ; {
		var seen, deleted int
		err := o.db.QueryRow(ctx, o.table.named(`WITH old AS MATERIALIZED (
				SELECT id, created_at, seq, state = 'done' AND starts_with(lane, $1) AND settled_at < now() - $2::interval AS ended FROM $name
				WHERE created_at < now() - $2::interval AND (created_at, seq) > ($3, $4) ORDER BY created_at, seq LIMIT $5
			), gone AS (
				DELETE FROM $name WHERE id = ANY(ARRAY(SELECT id FROM old WHERE ended)) AND state = 'done' RETURNING 1)
			SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM gone), last.created_at, coalesce(last.seq, 0)
			FROM (SELECT) AS always LEFT JOIN (SELECT created_at, seq FROM old ORDER BY created_at DESC, seq DESC LIMIT 1) AS last ON true`),
			prefix, older, after.CreatedAt.Time, after.Seq, chunk).Scan(&seen, &deleted, &after.CreatedAt, &after.Seq)
		if err != nil {
			return done, fmt.Errorf("purge entries of %s: %w", o.table.Name, err)
		}
		done += deleted
		if seen < chunk {
			return done, nil
		}
	}
}

// KeepPurging calls [Outbox.Purge] at once, and then every ten minutes until ctx ends. It logs failures.
func (o *Outbox) KeepPurging(ctx context.Context, prefix string, older time.Duration, log *slog.Logger) {
	ticker := time.NewTicker(purgeEvery)
	defer ticker.Stop()
	for {
		if n, err := o.Purge(ctx, prefix, older); err != nil && ctx.Err() == nil {
			log.Warn("finished entries not purged", "table", o.table.Name, "count", n, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Abandon makes waiting entries dead that were inserted, tried and replayed longer ago than given, in the lanes that unknown reports,
// such as those of targets that are no longer configured. It leaves out claimed entries. It returns the number of dead ones.
func (o *Outbox) Abandon(ctx context.Context, unknown func(lane string) bool, older time.Duration, reason string) (n int, err error) {
	err = o.eachLane(ctx, unknown, func(k laneKey) error {
		// The statement takes blocked entries before the one that blocks them. If it ended that one in an earlier chunk than the others,
		// the chunk would unblock the next one, which Abandon would then leave out because it became due just now.
		changed, err := o.inChunks(ctx, `UPDATE $name SET state = 'dead', settled_at = now(), reason = $5, sent = false WHERE id = ANY(ARRAY(SELECT id FROM $name
			WHERE state = 'waiting' AND partition = $1 AND lane = $2 AND CASE due_at WHEN 'infinity' THEN created_at
				ELSE GREATEST(created_at, due_at) END < now() - $3::interval AND claimed_until <= now()
			ORDER BY due_at DESC LIMIT $4 FOR UPDATE SKIP LOCKED)) RETURNING coalesce(subject, '')`, k.partition, k.lane, older, chunk, printable(reason))
		n += changed
		return err
	})
	if err != nil {
		return n, fmt.Errorf("abandon entries of %s: %w", o.table.Name, err)
	}
	return n, nil
}

// Hasten makes the first delayed entries of a lane due at once, for example because its target is back, and returns their number.
func (o *Outbox) Hasten(ctx context.Context, lane string) (n int, err error) {
	err = o.eachLane(ctx, func(l string) bool { return l == lane }, func(k laneKey) error {
		changed, err := o.inChunk(ctx, `UPDATE $name SET due_at = now() WHERE id = ANY(ARRAY(SELECT id FROM $name
			WHERE state = 'waiting' AND partition = $1 AND lane = $2 AND due_at > now() AND due_at < 'infinity' AND NOT sent AND claimed_until <= now()
			ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING coalesce(subject, '')`, k.partition, k.lane, MaxPage)
		n += changed
		return err
	})
	if err != nil {
		return n, fmt.Errorf("hasten entries of %s: %w", o.table.Name, err)
	}
	return n, nil
}

// eachLane calls do for each lane with waiting entries that is selected, for at least the first 1,000.
func (o *Outbox) eachLane(ctx context.Context, selected func(lane string) bool, do func(laneKey) error) error {
	all := &lanes{mine: func(laneKey) bool { return true }}
	for found := []laneKey{{}}; len(found) > 0 && len(all.sorted) < maxLanes; {
		found = nil
		var batch pgx.Batch
		o.queueDiscover(&batch, all, &found)
		if err := o.db.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
		for _, k := range found {
			all.add(k, time.Time{})
		}
	}
	for _, l := range all.sorted {
		if selected(l.lane) {
			if err := do(l.laneKey); err != nil {
				return err
			}
		}
	}
	return nil
}
