package queuetest

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
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
