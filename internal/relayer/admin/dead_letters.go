package admin

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// ErrNeedsPool means that a transaction's name is unique in one pool only.
var ErrNeedsPool = errors.New("a hash, or KEY:NONCE, names a transaction of one pool")

// DeadLetters returns the relayers' kind of entries in a database, which it does not close: the webhooks of a pool, or with chain 0 those
// of all pools. Opening it fails as [Open] does, and with a [deadletter.AbsentError] if the database has no relayers. Without a pool
// transactions are found by their ids only, and by other names it fails with [ErrNeedsPool].
func DeadLetters(db *pgxpool.Pool, chainID uint64, pool string) deadletter.Domain {
	return deadletter.Domain{Kinds: []string{events.Letters().Of}, Open: func(ctx context.Context) ([]deadletter.Kind, error) {
		kind, err := webhooks(ctx, db, chainID, pool)
		older, isOlder := errors.AsType[*postgres.OlderError](err)
		unknown, isUnknown := errors.AsType[*store.UnknownPoolError](err)
		switch {
		case isOlder && older.Database == 0, isUnknown && len(unknown.Known) == 0:
			return nil, &deadletter.AbsentError{Err: err}
		case err != nil:
			return nil, err
		}
		return []deadletter.Kind{kind}, nil
	}}
}

func webhooks(ctx context.Context, db *pgxpool.Pool, chainID uint64, pool string) (kind deadletter.Kind, err error) {
	if chainID != 0 {
		a, err := Open(ctx, db, chainID, pool)
		if err != nil {
			return kind, err
		}
		return deadletter.Kind{Letters: a.Webhooks, Find: a.findID}, nil
	}
	if err := postgres.Check(ctx, db, store.Migrations()); err != nil {
		return kind, err
	}
	kind.Letters, err = deadletter.New(db, events.Letters())
	kind.Find = func(ctx context.Context, tx string) (uuid.UUID, bool, error) {
		id, err := uuid.Parse(tx)
		if err != nil {
			return uuid.Nil, false, ErrNeedsPool
		}
		has, err := store.HasTransaction(ctx, db, id)
		return id, has, err
	}
	return kind, err
}

// findID is [deadletter.Kind.Find].
func (a *Admin) findID(ctx context.Context, tx string) (uuid.UUID, bool, error) {
	ref, err := ParseRef(tx)
	if err != nil {
		return uuid.Nil, false, err
	}
	found, err := a.Find(ctx, ref)
	switch {
	case errors.Is(err, relayer.ErrNotFound):
		return ref.id, false, nil
	case err != nil:
		return uuid.Nil, false, err
	}
	return found.ID, true, nil
}
