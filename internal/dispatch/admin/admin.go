// Package admin has the operators' functions for the transactions of the relay path. It works on their store, and no role has to run.
//
// The commands tx relay, tx resolve, dead-letters and migrate call it.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// Admin works on the transactions of a store. It is safe for concurrent use.
type Admin struct {
	Store *store.Store
	// Queue has the transactions that wait for a consumer, and Webhooks those of the clients.
	Queue, Webhooks *deadletter.Letters
}

// Migrations returns the parts of the relay path's schema, in the order in which they are migrated.
func Migrations() []postgres.Migrations {
	return []postgres.Migrations{store.Migrations(), queue.Migrations()}
}

// Open returns the Admin of a database, which it does not close. It fails with a [postgres.OlderError] or a [postgres.NewerError].
func Open(ctx context.Context, db *pgxpool.Pool) (*Admin, error) {
	for _, m := range Migrations() {
		if err := postgres.Check(ctx, db, m); err != nil {
			return nil, err
		}
	}
	entries, err := deadletter.New(db, queue.Letters())
	if err != nil {
		return nil, err
	}
	webhooks, err := deadletter.New(db, store.WebhookLetters())
	if err != nil {
		return nil, err
	}
	return &Admin{Store: store.New(db, store.Config{Enqueue: queue.EnqueueSQL}), Queue: entries, Webhooks: webhooks}, nil
}

// DeadLetters returns the relay path's kinds of entries in a database, which it does not close. Opening them fails as [Open] does, and
// with a [deadletter.AbsentError] if the database has no relay path.
func DeadLetters(db *pgxpool.Pool) deadletter.Domain {
	return deadletter.Domain{Kinds: []string{queue.Letters().Of, store.WebhookLetters().Of}, Open: func(ctx context.Context) ([]deadletter.Kind, error) {
		a, err := Open(ctx, db)
		if older, is := errors.AsType[*postgres.OlderError](err); is && older.Database == 0 {
			return nil, &deadletter.AbsentError{Err: err}
		}
		if err != nil {
			return nil, err
		}
		return []deadletter.Kind{{Letters: a.Queue, Find: a.find}, {Letters: a.Webhooks, Find: a.find}}, nil
	}}
}

// find is [deadletter.Kind.Find]. Only an id names a transaction of the relay path.
func (a *Admin) find(ctx context.Context, tx string) (uuid.UUID, bool, error) {
	id, err := uuid.Parse(tx)
	if err != nil {
		return uuid.Nil, false, nil
	}
	_, err = a.Store.ByID(ctx, id)
	if errors.Is(err, dispatch.ErrNotFound) {
		return id, false, nil
	}
	return id, err == nil, err
}

// Record is a transaction with all that is known about it.
type Record struct {
	*dispatch.Transaction
	Changes []store.Change
	// Late are relayers that have accepted it late, and may execute it, too.
	Late []dispatch.Route
}

// Record returns a transaction. It fails with [dispatch.ErrNotFound].
func (a *Admin) Record(ctx context.Context, id uuid.UUID) (r Record, err error) {
	if r.Transaction, err = a.Store.ByID(ctx, id); err != nil {
		return r, err
	}
	if r.Changes, err = a.Store.History(ctx, id); err != nil {
		return r, err
	}
	r.Late, err = a.Store.LateOf(ctx, id)
	return r, err
}

// Waits reports whether a transaction waits for an operator's decision, or may never end without one.
func Waits(tx *dispatch.Transaction) bool {
	return tx.Status == dispatch.Unknown || tx.Status.AtRelayer() ||
		tx.Status == dispatch.Submitting && time.Since(tx.QuietSince) > store.ResolvableAfter
}

// Fits returns nil if a decision fits a transaction, and otherwise the reason why not. [Admin.Resolve] decides with the locked row;
// this is for a question before.
func Fits(tx *dispatch.Transaction, d dispatch.Resolution) error {
	if _, fits := tx.Resolve(d, ""); fits {
		return nil
	}
	switch {
	case tx.Status.Final():
		return fmt.Errorf("%s is %s, which is final: there is nothing to resolve", tx.ID, tx.Status)
	case d.Retry:
		return fmt.Errorf("%s is queued already: a consumer submits it", tx.ID)
	case tx.Status == dispatch.Queued:
		return fmt.Errorf("%s is queued, so no relayer of its row can have it: it was executed, or failed", tx.ID)
	}
	return fmt.Errorf("its relayer had it as %s: it was executed, failed, or is to be queued again", tx.RelayerTx)
}

// Risk returns the sentence that an operator confirms with a decision, or "" if there is no risk to name.
func Risk(tx *dispatch.Transaction, d dispatch.Resolution) string {
	switch {
	case d.Retry:
		return "If a relayer has it, it is executed twice."
	case d.Failed && tx.Status.AtRelayer():
		return tx.Relayer + " has accepted it as " + tx.RelayerTx + ", and may execute it."
	}
	return ""
}

// ErrChanged means that the row is not as the operator saw it, or that a consumer has its lease. Nothing was changed.
var ErrChanged = errors.New("a consumer submits it now, or has changed it: look at it, and repeat the command after two minutes")

// Resolve applies an operator's decision to a transaction as the operator saw it. by is the operator, for the client's reason.
// It fails with [ErrChanged]. The outcome of another error may be unknown; call [Fits] before. A retry also replays the transaction's
// queue entry, if that was given up.
func (a *Admin) Resolve(ctx context.Context, tx *dispatch.Transaction, d dispatch.Resolution, by string) error {
	done, err := a.Store.Resolve(ctx, tx, d, by+" decided")
	if err == nil && !done {
		return ErrChanged
	}
	if err != nil || !d.Retry {
		return err
	}
	if _, err := a.Queue.Replay(ctx, deadletter.Filter{Transaction: tx.ID}); err != nil {
		return fmt.Errorf("it is queued again, but its entry may be a dead letter: \"rollcall dead-letters replay %s\": %w: %w", tx.ID, postgres.ErrUnknown, err)
	}
	return nil
}
