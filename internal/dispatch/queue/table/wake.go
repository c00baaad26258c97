package table

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// listenPing is how often an idle listening connection is checked. It is below the time after which package postgres
	// gives up a server that does not answer.
	listenPing = 5 * time.Second
	// listenRetry is the pause before a lost listening connection is opened again. The poll covers the pause.
	listenRetry = 2 * time.Second
)

// sqlNotify does not wait for the disk: a NOTIFY changes no row.
const sqlNotify = `SELECT set_config('synchronous_commit', 'off', true), pg_notify('relay_queue', '')`

// notifier sends NOTIFYs for the entries that this process has committed. It implements [queue.Producer].
type notifier struct {
	db     *pgxpool.Pool
	outage *queue.Outage
	wake   chan struct{}
}

func newNotifier(db *pgxpool.Pool, cfg queue.Config) *notifier {
	return &notifier{db: db, outage: cfg.NewOutage("producer", postgres.Reason), wake: make(chan struct{}, 1)}
}

// Notify implements [queue.Producer].
func (n *notifier) Notify() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run implements [queue.Producer].
func (n *notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		pause := minInterval
		if err := n.notify(ctx); err == nil {
			n.outage.Succeeded()
		} else if ctx.Err() == nil {
			pause = n.outage.Failed(err)
			n.Notify()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (n *notifier) notify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	if _, err := n.db.Exec(ctx, sqlNotify); err != nil {
		return fmt.Errorf("notify the consumers: %w", err)
	}
	return nil
}

// listen calls wake for each NOTIFY until ctx ends, and after each time that it may have missed some. Its connection is
// not the pool's, so that it takes none from the users of a small pool.
func listen(ctx context.Context, db *pgxpool.Pool, wake func()) {
	for ctx.Err() == nil {
		// The receiver's turns report an unavailable database.
		_ = listenOnce(ctx, db, wake)
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

func listenOnce(ctx context.Context, db *pgxpool.Pool, wake func()) error {
	conn, err := pgx.ConnectConfig(ctx, db.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost
	}()
	if _, err := conn.Exec(ctx, "LISTEN relay_queue"); err != nil {
		return err
	}
	wake()
	for {
		wait, cancel := context.WithTimeout(ctx, listenPing)
		_, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			wake()
		case ctx.Err() != nil:
			return ctx.Err()
		case wait.Err() == nil || conn.IsClosed():
			return err
		default:
			if err := conn.Ping(ctx); err != nil {
				return err
			}
		}
	}
}
