package queue

import (
	"embed"
	"io/fs"

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
