package queue

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations that create relay_queue, in the database of the transactions.
func Migrations() postgres.Migrations {
	folder, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return postgres.Migrations{FS: folder, Table: "relay_queue_migrations"}
}

// EnqueueSQL returns an INSERT that enqueues the ids of a relation with a column id. It is for a CTE of the statement that
// stores the transactions:
//
//	WITH stored AS (INSERT INTO … RETURNING id), queued AS (` + queue.EnqueueSQL("stored") + `) SELECT id FROM stored
//
// An entry that is already waiting becomes due at once. An entry that is being handled is delivered again, because its
// handler may have read the row before this statement changed it. A dead letter stays one. The relation must not contain
// an id twice.
//
// It sends no NOTIFY: Postgres commits transactions with a NOTIFY one after the other, each with its own flush. The
// process calls [Producer.Notify] after the commit instead.
func EnqueueSQL(relation string) string {
	return `INSERT INTO relay_queue AS q (id) SELECT id FROM ` + relation + ` ON CONFLICT (id) DO UPDATE
		SET due_at = LEAST(q.due_at, now()), claimed_until = '-infinity', claimant = NULL WHERE q.dead_at IS NULL`
}

// Executor executes a statement: a pool, a connection, or a transaction.
type Executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

var enqueueSQL = EnqueueSQL(`(SELECT DISTINCT unnest($1::uuid[]) AS id) AS given`)

// Enqueue enqueues transactions as [EnqueueSQL] does. With a transaction, the entries exist if and when that commits.
func Enqueue(ctx context.Context, db Executor, ids ...uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := db.Exec(ctx, enqueueSQL, ids); err != nil {
		return fmt.Errorf("enqueue transactions: %w", err)
	}
	return nil
}
