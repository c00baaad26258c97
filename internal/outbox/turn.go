package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// chunk is how many entries one statement changes.
	chunk = 256
	// maxTurn limits a turn. It is above the server's statement timeout, and applies if the server is unreachable.
	maxTurn = 20 * time.Second
)

// Work is a claimed entry.
type Work struct {
	Entry
	// Attempts is the number of claims so far, with this one: 1 for the first.
	Attempts int
	// Failures is the number of claims so far, with this one, that count towards Config.MaxFailures.
	Failures int
	// Reason is that of the latest failure.
	Reason string
	// Data is the value that Table.Scan returned; nil without Table.Columns.
	Data any

	inserted time.Time // by this process's monotonic clock: the turn has converted the database's time
}

// Age returns how long ago the entry was inserted. The offset between the clocks of the database and of this process does not count.
func (w *Work) Age() time.Duration { return max(0, time.Since(w.inserted)) }

// claim is an entry that this process may work on until its lease ends.
type claim struct {
	Work
	number int64 // identifies the claim, in all processes and for ever
	due    time.Time
	watch  *time.Timer // ends the context of the handler when the lease ends; nil before it runs
	// until is when the lease ends, by this process's monotonic clock and counted from before the request.
	until time.Time
}

func (c *claim) key() laneKey { return laneKey{int32(c.Partition), c.Lane} }

// settlement is a result of a claim that is not stored yet.
type settlement struct {
	claim *claim
	Result
}

// turn is one use of the database: it stores results, extends claims, and claims entries. It is one transaction and one round trip.
// After an error all of it was done or nothing. Storing results again is harmless, and entries that were claimed without an answer
// are claimable when their leases end.
type turn struct {
	settle []settlement
	extend []*claim
	// lanes and most claim up to most entries of the lanes; ids claims entries that a broker delivered.
	lanes *lanes
	most  int
	ids   []string
	// allowed returns how many entries of a lane may be claimed.
	allowed  func(lane string) int
	lease    time.Duration
	retryFor time.Duration
	notify   bool // of unblocked entries, because a dispatcher sends them; a worker that claims from the table does so in this turn

	claims []*claim
	dead   map[int64]bool // numbers of the claims whose entries became dead
	kept   map[int64]bool // numbers of the extended claims that were still this worker's
	more   bool           // there may be more to claim
}

// forever replaces a retry window of 0.
const forever = 100 * 365 * 24 * time.Hour

// run executes the turn.
func (o *Outbox) run(ctx context.Context, t *turn) error {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	begin := time.Now()
	claiming := t.lanes != nil && t.most > 0
	t.claims, t.more, t.dead, t.kept = nil, false, map[int64]bool{}, map[int64]bool{}
	var batch pgx.Batch
	var now time.Time
	o.queuePlan(&batch, &now)
	if !o.table.ClaimsWaitForDisk || !claiming && len(t.ids) == 0 {
		batch.Queue(sqlNoWait)
	}
	if changed := t.changed(); len(changed) > 0 && (!o.table.KeepDone || !t.onlyFinished()) {
		batch.Queue(o.sql.lock, changed)
	}
	o.queueResults(&batch, t)
	for part := range slices.Chunk(t.extend, chunk) {
		ids, numbers := keys(part)
		batch.Queue(o.sql.extend, ids, numbers, t.lease).Query(collectInto(t.kept))
	}
	var found []laneKey
	var discovers bool
	var d demand
	var picked, blocked int
	read := func(rows pgx.Rows) (err error) {
		t.claims, picked, blocked, err = o.readClaims(rows, begin, now, t.lease)
		return err
	}
	switch {
	case claiming:
		if discovers = t.lanes.discovers(begin); discovers {
			o.queueDiscover(&batch, t.lanes, &found)
		}
		d = t.lanes.demand(t.most, begin, t.allowed)
		if len(d.lanes) > 0 {
			batch.Queue(o.sql.claim, d.partitions, d.lanes, d.since, d.shares, d.most, t.lease).Query(read)
		}
	case len(t.ids) > 0:
		batch.Queue(o.sql.claimIDs, t.ids, t.lease).Query(read)
	}
	if err := o.db.SendBatch(ctx, &batch).Close(); err != nil {
		if t.lanes != nil {
			t.lanes.sweepAt = time.Time{} // entries may have been claimed without an answer
		}
		t.claims = nil
		return fmt.Errorf("settle and claim entries of %s: %w", o.table.Name, err)
	}
	if claiming {
		for _, c := range t.claims {
			t.lanes.got(c.key(), c.due, begin)
		}
		t.more = t.lanes.end(d, picked, blocked, len(t.claims), now, begin)
		if discovers {
			t.lanes.discovered(found, begin)
			t.more = t.more || len(found) > 0
		}
	}
	return nil
}

func (o *Outbox) queuePlan(batch *pgx.Batch, now *time.Time) {
	batch.Queue(sqlPlan).QueryRow(func(row pgx.Row) error {
		return row.Scan(now, nil, nil, nil, nil, nil)
	})
}

func (o *Outbox) queueDiscover(batch *pgx.Batch, l *lanes, found *[]laneKey) {
	g := l.gaps()
	batch.Queue(o.sql.discover, g.partitions, g.fromLanes, g.whole, g.uptoPartitions, g.uptoLanes, chunk).Query(func(rows pgx.Rows) error {
		var k laneKey
		_, err := pgx.ForEachRow(rows, []any{&k.partition, &k.lane}, func() error {
			*found = append(*found, k)
			return nil
		})
		return err
	})
}

// changed returns the ids of the entries whose results or extensions the turn stores, in order.
func (t *turn) changed() (ids []string) {
	for _, s := range t.settle {
		ids = append(ids, s.claim.ID)
	}
	for _, c := range t.extend {
		ids = append(ids, c.ID)
	}
	slices.Sort(ids)
	return ids
}

// onlyFinished reports whether all results are of one statement, for a table with KeepDone. That statement locks the entries in the
// order of their ids by itself, because it searches them by an index. A lock is a record in Postgres's log: without this, the row
// "written to Postgres' log for each transaction" of the benchmark fails.
func (t *turn) onlyFinished() bool {
	return len(t.extend) == 0 && len(t.settle) <= chunk && !slices.ContainsFunc(t.settle, func(s settlement) bool { return s.Kind != KindFinished })
}

// queueResults queues the statements that store results, and unblocks the next entries of their subjects.
func (o *Outbox) queueResults(batch *pgx.Batch, t *turn) {
	retryFor := cmp.Or(t.retryFor, forever)
	for part := range slices.Chunk(t.settle, chunk) {
		var finished []*claim
		var ids, subjects []string
		var numbers []int64
		var untried, uncounted []int32
		var delays []*time.Duration
		var dead []bool
		var reasons []*string
		for _, s := range part {
			var tries, counts int32
			var delay *time.Duration
			var reason *string
			if s.claim.Subject != "" && (s.Kind == KindFinished || s.Kind == KindRetry || s.Kind == KindGiveUp) {
				subjects = append(subjects, s.claim.Subject)
			}
			switch s.Kind {
			case KindFinished:
				finished = append(finished, s.claim)
				if o.table.KeepDone { // sqlKeep ends also a claim of an entry that was enqueued again
					continue
				}
			case KindReturned:
				tries, counts = 1, 1
				if s.Delay > 0 {
					delay = &s.Delay
				}
			case KindLater:
				counts, delay = 1, &s.Delay
			default:
				delay, reason = &s.Delay, &s.Reason
			}
			ids, numbers = append(ids, s.claim.ID), append(numbers, s.claim.number)
			untried, uncounted, delays = append(untried, tries), append(uncounted, counts), append(delays, delay)
			dead, reasons = append(dead, s.Kind == KindGiveUp), append(reasons, reason)
		}
		if len(finished) > 0 {
			ids, numbers := keys(finished)
			batch.Queue(o.sql.done, ids, numbers)
		}
		if len(ids) > 0 {
			batch.Queue(o.sql.settle, ids, numbers, untried, uncounted, delays, dead, reasons, retryFor).Query(collectInto(t.dead))
		}
		if len(subjects) > 0 {
			batch.Queue(o.sql.promote, subjects, t.notify)
		}
	}
}

// collectInto returns a function that adds numbers of claims to a set.
func collectInto(set map[int64]bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var number int64
		_, err := pgx.ForEachRow(rows, []any{&number}, func() error {
			set[number] = true
			return nil
		})
		return err
	}
}

func keys(claims []*claim) (ids []string, numbers []int64) {
	for _, c := range claims {
		ids, numbers = append(ids, c.ID), append(numbers, c.number)
	}
	return ids, numbers
}

// readClaims reads the result of a claim of a turn, the oldest entries first. The turn began at begin by this process's clock, and at now
// by the database's.
func (o *Outbox) readClaims(rows pgx.Rows, begin, now time.Time, lease time.Duration) (claims []*claim, picked, blocked int, err error) {
	for rows.Next() {
		var id, subject, lane, reason *string
		var partition, attempts, failures *int
		var number *int64
		var payload []byte
		var created, due *time.Time
		own := []any{&picked, &blocked, &id, &subject, &lane, &partition, &payload, &number, &attempts, &failures, &reason, &created, &due}
		fields := make([]any, len(rows.FieldDescriptions()))
		copy(fields, own)
		if err := rows.Scan(fields...); err != nil {
			return nil, 0, 0, err
		}
		if id == nil {
			continue
		}
		c := &claim{number: *number, due: *due, until: begin.Add(lease), Work: Work{
			Entry:    Entry{ID: *id, Lane: *lane, Partition: *partition, Payload: payload},
			Attempts: *attempts, Failures: *failures, Reason: *reason, inserted: begin.Add(created.Sub(now)),
		}}
		if subject != nil {
			c.Subject = *subject
		}
		if o.table.Scan != nil {
			if c.Data, err = o.table.Scan(rowAfter{rows, len(own)}); err != nil {
				return nil, 0, 0, fmt.Errorf("read the columns of entry %s: %w", *id, err)
			}
		}
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b *claim) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.ID, b.ID)) })
	return claims, picked, blocked, rows.Err()
}

// rowAfter is a row without its first columns.
type rowAfter struct {
	pgx.CollectableRow
	first int
}

// FieldDescriptions returns those of the remaining columns.
func (r rowAfter) FieldDescriptions() []pgconn.FieldDescription {
	return r.CollectableRow.FieldDescriptions()[r.first:]
}

// RawValues returns those of the remaining columns.
func (r rowAfter) RawValues() [][]byte { return r.CollectableRow.RawValues()[r.first:] }

// Values returns those of the remaining columns.
func (r rowAfter) Values() ([]any, error) {
	values, err := r.CollectableRow.Values()
	if err != nil {
		return nil, err
	}
	return values[r.first:], nil
}

// Scan reads the remaining columns.
func (r rowAfter) Scan(fields ...any) error {
	all := make([]any, r.first+len(fields))
	copy(all[r.first:], fields)
	return r.CollectableRow.Scan(all...)
}
