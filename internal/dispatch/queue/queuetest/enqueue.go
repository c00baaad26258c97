package queuetest

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// Executor executes a statement: a pool, a connection, or a transaction.
type Executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

var enqueueSQL = queue.EnqueueSQL(`(SELECT DISTINCT unnest($1::uuid[]) AS id) AS given`)

// Enqueue enqueues transactions as [queue.EnqueueSQL] does. With a transaction, the entries exist if and when that commits.
func Enqueue(ctx context.Context, db Executor, ids ...uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := db.Exec(ctx, enqueueSQL, ids); err != nil {
		return fmt.Errorf("enqueue transactions: %w", err)
	}
	return nil
}

// Transactions stores transactions of the API in a database that has only the queue's migrations. Of their table it has what the queue reads.
func Transactions(ctx context.Context, db Executor, ids ...uuid.UUID) error {
	if _, err := db.Exec(ctx, `CREATE TABLE IF NOT EXISTS relay_transactions (id uuid PRIMARY KEY)`); err != nil {
		return fmt.Errorf("create the table of transactions: %w", err)
	}
	if _, err := db.Exec(ctx, `INSERT INTO relay_transactions (id) SELECT unnest($1::uuid[])`, ids); err != nil {
		return fmt.Errorf("store transactions: %w", err)
	}
	return nil
}
