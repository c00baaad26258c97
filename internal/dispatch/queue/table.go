package queue

import (
	"embed"
	"io/fs"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations that create relay_queue, in the database of the transactions. Those of the transactions come
// before.
func Migrations() postgres.Migrations {
	folder, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return postgres.Migrations{FS: folder, Table: "relay_queue_migrations"}
}

// Table is the queue's table. An entry's id is that of the transaction, so a transaction has at most one.
var Table = outbox.Table{Name: "relay_queue"}

// Letters returns the queue as operators see it.
func Letters() deadletter.Source {
	return deadletter.Source{Of: "queue", Table: Table, Transaction: `e.id`, OfTransaction: `e.id = $1::uuid::text`}
}

// EnqueueSQL returns an INSERT that enqueues the rows of a relation with the columns id and client, each id once. It is for a CTE of the
// statement that stores the transactions:
//
//	WITH stored AS (INSERT INTO … RETURNING id, client), queued AS (` + queue.EnqueueSQL("stored") + `) SELECT id FROM stored
//
// [outbox.Table.AgainSQL] documents the effect on ids that are in the table. The process calls [Queue.Notify] after the commit.
func EnqueueSQL(relation string) string {
	return `INSERT INTO relay_queue (id, lane) SELECT tx.id::text, tx.client FROM ` + relation + ` AS tx ORDER BY tx.id ` + Table.AgainSQL()
}
