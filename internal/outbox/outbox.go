package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Outbox gives access to the entries of a [Table]. It is safe for concurrent use.
type Outbox struct {
	db    *pgxpool.Pool
	table Table
	sql   statements
}

// New returns the Outbox of a table, or all problems of the Table. It neither connects nor closes db.
func New(db *pgxpool.Pool, table Table) (*Outbox, error) {
	if err := table.validate(); err != nil {
		return nil, err
	}
	return &Outbox{db: db, table: table, sql: newStatements(table)}, nil
}

// Entry is a piece of work that a domain inserts.
type Entry struct {
	// ID identifies the entry, in the table and at a broker. Default: a random UUID.
	ID string
	// Subject orders entries: of one subject one entry at a time is worked on, in the order of their insertion. Transactions that
	// insert entries of one subject must exclude each other, for example by a lock of the subject's row. Default: none, any order.
	Subject string
	// Lane is the unit of fairness, such as a client or a target. Default: one lane for all.
	Lane string
	// Partition selects the workers that may claim the entry, see [Config]. From 0 to 1,000,000. Default 0.
	Partition int
	Payload   []byte
	// Delay is how long the entry waits at least. Default 0.
	Delay time.Duration
}

// Execer executes a statement: a transaction, a connection or a pool.
type Execer interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}

// Insert inserts entries in the order given, in the caller's transaction. It fails if an id is in the table; see [Outbox.Again].
//
// It sends no NOTIFY: Postgres commits transactions with a NOTIFY one after the other, each with its own flush. The caller calls
// [Notifier.Notify] after the commit. Without that, a worker finds the entries within a second.
func (o *Outbox) Insert(ctx context.Context, tx Execer, entries ...Entry) error {
	return o.insert(ctx, tx, entries, "n", "")
}

// Again is Insert for entries that may be in the table, see [Table.AgainSQL]. It changes neither lane, subject nor payload of
// those.
func (o *Outbox) Again(ctx context.Context, tx Execer, entries ...Entry) error {
	return o.insert(ctx, tx, entries, "id", o.table.AgainSQL())
}

func (o *Outbox) insert(ctx context.Context, tx Execer, entries []Entry, order, conflict string) error {
	if len(entries) == 0 {
		return nil
	}
	n := len(entries)
	ids, subjects, lanes := make([]string, n), make([]string, n), make([]string, n)
	partitions, payloads, delays := make([]int32, n), make([][]byte, n), make([]time.Duration, n)
	for i, e := range entries {
		ids[i], subjects[i], lanes[i] = e.ID, e.Subject, e.Lane
		partitions[i], payloads[i], delays[i] = int32(e.Partition), e.Payload, max(e.Delay, 0)
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+o.table.Name+` (id, subject, lane, partition, payload, due_at, seq)
		SELECT id, subject, lane, partition, payload, due_at, seq FROM (
			SELECT coalesce(nullif(id, ''), gen_random_uuid()::text) COLLATE "C" AS id, nullif(subject, '') AS subject, lane, partition, payload,
				now() + delay AS due_at, nextval('`+o.table.Name+`_numbers') AS seq, n
			FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bytea[], $6::interval[]) WITH ORDINALITY
				AS e (id, subject, lane, partition, payload, delay, n) ORDER BY n OFFSET 0
		) AS numbered ORDER BY `+order+` `+conflict, ids, subjects, lanes, partitions, payloads, delays)
	if err != nil {
		return fmt.Errorf("insert into %s: %w", o.table.Name, err)
	}
	return nil
}
