package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// listenPing is how often an idle listening connection is checked. It is below the time after which package postgres gives up a
	// server that does not answer.
	listenPing = 5 * time.Second
	// listenRetry is the pause before a lost listening connection is opened again. The poll covers the pause.
	listenRetry = 2 * time.Second
)

// Notifier wakes the workers of all processes for the entries that this process has committed.
type Notifier struct {
	*Outbox
	outage *outage
	wake   chan struct{}
}

// NewNotifier returns a Notifier. log and observer may be nil.
func (o *Outbox) NewNotifier(log *slog.Logger, observer Observer) *Notifier {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if observer == nil {
		observer = Unobserved{}
	}
	return &Notifier{Outbox: o, outage: newOutage("notifier", log, observer, postgres.Reason), wake: make(chan struct{}, 1)}
}

// Notify reports that entries were committed. It never blocks. Without it, a worker finds the entries within a second.
func (n *Notifier) Notify() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Health returns nil while the database answers, and otherwise the cause.
func (n *Notifier) Health() error { return n.outage.health() }

// Run sends NOTIFYs, at most one every 5 ms, until ctx ends, and returns nil then.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		pause := minInterval
		if err := n.notify(ctx); err == nil {
			n.outage.succeeded()
		} else if ctx.Err() == nil {
			pause = n.outage.failed(err)
			n.Notify()
		}
		wait(ctx, pause)
	}
}

// notify wakes the workers. It does not wait for the disk, because it changes no row.
func (o *Outbox) notify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	if _, err := o.db.Exec(ctx, `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')`, o.table.Name); err != nil {
		return fmt.Errorf("notify the workers of %s: %w", o.table.Name, err)
	}
	return nil
}

// listen calls wake for each NOTIFY until ctx ends, and after each time that it may have missed some. Its connection is not the
// pool's, so that it takes none from the users of a small pool.
func (o *Outbox) listen(ctx context.Context, wake func()) {
	for ctx.Err() == nil {
		_ = o.listenOnce(ctx, wake) // the turns report an unavailable database
		wait(ctx, listenRetry)
	}
}

func (o *Outbox) listenOnce(ctx context.Context, wake func()) error {
	conn, err := pgx.ConnectConfig(ctx, o.db.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+o.table.Name); err != nil {
		return err
	}
	wake()
	for {
		idle, cancel := context.WithTimeout(ctx, listenPing)
		_, err := conn.WaitForNotification(idle)
		cancel()
		switch {
		case err == nil:
			wake()
		case ctx.Err() != nil:
			return ctx.Err()
		case idle.Err() == nil || conn.IsClosed():
			return err
		default:
			if err := conn.Ping(ctx); err != nil {
				return err
			}
		}
	}
}
