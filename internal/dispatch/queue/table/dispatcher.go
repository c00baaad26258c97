package table

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// dispatchBatch is how many entries a dispatcher claims at once.
	dispatchBatch = 250
	// dispatchLease is how long a dispatcher's claims last. It is longer than sendTimeout, so that another dispatcher sends
	// an entry only if this one died or was frozen.
	dispatchLease = 30 * time.Second
	// sendTimeout limits one batch.
	sendTimeout = 15 * time.Second
	// idleAfter is after how long without entries an outage of the broker counts as over: another dispatcher has sent the
	// entries that this one could not send. It exceeds sendTimeout and the longest pause of another one that fails.
	idleAfter = 25 * time.Second
)

// Sender sends messages to a broker.
type Sender interface {
	// Send sends messages and returns for each whether the broker has confirmed it. The error is nil if it confirmed all.
	Send(ctx context.Context, messages []queue.Message) (confirmed []bool, err error)
	// Reason returns the text of an error of Send, without secrets.
	Reason(err error) string
}

// Dispatcher moves the entries of the table to a broker, the oldest first. Any number of them share the work. It
// implements [queue.Producer], and [queue.DeadLetters], because dead letters are in the table.
type Dispatcher struct {
	*deadLetters
	db     *pgxpool.Pool
	cfg    queue.Config
	sender Sender
	broker *queue.Outage
	outage *queue.Outage // of the database
	wake   chan struct{}
}

// NewDispatcher returns a Dispatcher. cfg is complete.
func NewDispatcher(db *pgxpool.Pool, cfg queue.Config, sender Sender) *Dispatcher {
	return &Dispatcher{
		deadLetters: &deadLetters{db}, db: db, cfg: cfg, sender: sender, wake: make(chan struct{}, 1),
		broker: cfg.NewOutage("dispatcher", sender.Reason), outage: cfg.NewOutage("outbox", postgres.Reason),
	}
}

// Notify implements [queue.Producer].
func (d *Dispatcher) Notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Health returns nil while the database and the broker answer, and otherwise the cause.
func (d *Dispatcher) Health() error {
	if err := d.outage.Err(); err != nil {
		return err
	}
	return d.broker.Err()
}

// Run implements [queue.Producer]. On a stop it finishes the current batch.
func (d *Dispatcher) Run(ctx context.Context) error {
	var counting sync.WaitGroup
	counting.Go(func() { countOutbox(ctx, d.db, d.cfg) })
	defer counting.Wait()
	working := context.WithoutCancel(ctx)
	claimant := newClaimant(d.db, dispatchLease)
	var results []result
	sent := time.Now() // when it last had entries
	for ctx.Err() == nil {
		claims, err := claimant.turn(working, results, nil, dispatchBatch)
		if err != nil {
			// The results stay for the next turn: without them, confirmed messages would be sent again.
			sleep(ctx, d.outage.Failed(err))
			continue
		}
		d.outage.Succeeded()
		results = nil
		if len(claims) == 0 {
			if time.Since(sent) > idleAfter {
				d.broker.Succeeded()
			}
			select {
			case <-ctx.Done():
			case <-d.wake:
			case <-time.After(poll):
			}
			continue
		}
		sent = time.Now()
		if results, err = d.send(working, claims); err == nil {
			d.broker.Succeeded()
			continue
		}
		pause := d.broker.Failed(err)
		// Another dispatcher may reach the broker, so the entries are given back before the pause.
		if _, err := claimant.turn(working, results, nil, 0); err == nil {
			results = nil
		}
		sleep(ctx, pause)
	}
	if len(results) == 0 {
		return nil
	}
	last, cancel := context.WithTimeout(working, shutdownTimeout)
	defer cancel()
	if _, err := claimant.turn(last, results, nil, 0); err != nil {
		d.cfg.Logger.Warn("messages will be sent again: their outbox entries could not be deleted", "component", "dispatcher",
			"count", len(results), "err", err)
	}
	return nil
}

// send sends the claimed entries. Those that the broker did not confirm are given back.
func (d *Dispatcher) send(ctx context.Context, claims []*claim) ([]result, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	messages := make([]queue.Message, len(claims))
	for i, c := range claims {
		messages[i] = c.Message
	}
	confirmed, err := d.sender.Send(ctx, messages)
	results := make([]result, len(claims))
	for i, c := range claims {
		results[i] = result{claim: c, outcome: returned}
		if i < len(confirmed) && confirmed[i] {
			results[i].outcome = done
			d.cfg.Metrics.Dispatched(c.EnqueuedAt)
		} else if err == nil {
			err = fmt.Errorf("the broker did not confirm transaction %s", c.ID)
		}
	}
	return results, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
