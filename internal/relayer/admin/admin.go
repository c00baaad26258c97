// Package admin is what an operator does with a pool of keys from outside, through its store: no relayer has to run, and no
// key is at hand. Admin stores requests for signatures, and the relayer that follows the chain signs them.
package admin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// poll is how often the store is asked whether relayers have done what they were asked for.
const poll = 100 * time.Millisecond

// Admin works on one pool. It is safe for concurrent use.
type Admin struct {
	Store  *store.Store
	Outbox *webhook.Outbox
}

// Open gives the pool of a database, which it does not close. It fails with a [postgres.OlderError], a
// [postgres.NewerError] or a [store.UnknownPoolError].
func Open(ctx context.Context, db *pgxpool.Pool, chainID uint64, pool string) (*Admin, error) {
	if err := postgres.Check(ctx, db, store.Migrations()); err != nil {
		return nil, err
	}
	l, err := store.Attach(ctx, db, chainID, pool)
	if err != nil {
		return nil, err
	}
	return &Admin{Store: l, Outbox: webhook.NewOutbox(db, chainID, pool)}, nil
}

// Outcome of something that was to be changed.
type Outcome string

// The three there are.
const (
	Done    Outcome = "done"
	NotDone Outcome = "not done"
	Unknown Outcome = "unknown" // the connection to the database broke at the wrong moment
)

// OutcomeOf tells what an error of this package, or of the store or the outbox, says of a change.
func OutcomeOf(err error) Outcome {
	_, state := errors.AsType[*relayer.StateError](err)
	switch {
	case err == nil:
		return Done
	case errors.Is(err, relayer.ErrUnknown), errors.Is(err, postgres.ErrUnknown):
		return Unknown
	case state, errors.Is(err, relayer.ErrNotFound), errors.Is(err, store.ErrUnsigned), errors.Is(err, errRefused):
		return NotDone
	case postgres.Uncertain(err):
		return Unknown
	}
	return NotDone
}

// errRefused is within errors of this package that come before any change.
var errRefused = errors.New("nothing was changed")

// refused keeps the text of an error as it is.
type refused struct{ error }

func (r refused) Unwrap() []error { return []error{r.error, errRefused} }

// Ref names a transaction in one of the ways in which people know one.
type Ref struct {
	text string

	id    uuid.UUID
	hash  common.Hash
	key   common.Address
	nonce uint64
}

// ParseRef reads an id, the hash of any attempt, or KEY:NONCE.
func ParseRef(text string) (Ref, error) {
	r := Ref{text: text}
	address, nonce, pair := strings.Cut(text, ":")
	var err error
	switch {
	case pair && common.IsHexAddress(address):
		r.key = common.HexToAddress(address)
		r.nonce, err = strconv.ParseUint(nonce, 10, 63)
	case strings.HasPrefix(text, "0x"):
		err = r.hash.UnmarshalText([]byte(text))
	default:
		r.id, err = uuid.Parse(text)
	}
	if err != nil {
		return r, fmt.Errorf("%q is no transaction's id, nor a hash, nor KEY:NONCE", text)
	}
	return r, nil
}

// String is the reference as it was given.
func (r Ref) String() string { return r.text }

// Find reads the transaction that is meant. It fails with [relayer.ErrNotFound].
func (a *Admin) Find(ctx context.Context, r Ref) (*relayer.Transaction, error) {
	switch {
	case r.hash != common.Hash{}:
		return a.Store.TransactionByHash(ctx, r.hash)
	case r.key != common.Address{}:
		return a.Store.TransactionByNonce(ctx, r.key, r.nonce)
	default:
		return a.Store.Transaction(ctx, r.id)
	}
}

// Cancel asks for a transaction to be taken back, and returns it as it is then: what has no nonce is canceled at once,
// for anything else a relayer signs a no-op that competes with it.
func (a *Admin) Cancel(ctx context.Context, r Ref, by string) (*relayer.Transaction, error) {
	tx, err := a.Find(ctx, r)
	if err != nil {
		return nil, asRefused(err)
	}
	return a.Store.SetIntent(ctx, tx.ID, relayer.IntentCancel, "canceled by "+by)
}

// Bump asks for a higher fee, and returns the transaction's latest attempt as it was before.
func (a *Admin) Bump(ctx context.Context, r Ref) (*relayer.Transaction, *relayer.Attempt, error) {
	tx, err := a.Find(ctx, r)
	if err != nil {
		return nil, nil, asRefused(err)
	}
	attempts, err := a.Store.Attempts(ctx, tx.ID)
	if err != nil {
		return nil, nil, asRefused(err)
	}
	if tx, err = a.Store.RequestBump(ctx, tx.ID); err != nil {
		return nil, nil, err
	}
	if len(attempts) == 0 { // it was signed in between
		return tx, &relayer.Attempt{TxID: tx.ID}, nil
	}
	return tx, attempts[len(attempts)-1], nil
}

// asRefused marks the failure of what only reads.
func asRefused(err error) error {
	if err == nil || errors.Is(err, relayer.ErrNotFound) {
		return err
	}
	return refused{err}
}

// AwaitNoop waits until a no-op was signed for a transaction that is to be canceled, or needs none any more. It is nil when
// ctx ends before.
func (a *Admin) AwaitNoop(ctx context.Context, id uuid.UUID) (*relayer.Transaction, *relayer.Attempt) {
	return a.await(ctx, id, func(tx *relayer.Transaction, last *relayer.Attempt) bool {
		return last.Purpose == relayer.PurposeNoop || tx.Status.Final() || tx.Status == relayer.Mined
	})
}

// AwaitAttempt waits until there is an attempt with a higher number, or the transaction needs none any more. It is nil
// when ctx ends before.
func (a *Admin) AwaitAttempt(ctx context.Context, id uuid.UUID, after int) (*relayer.Transaction, *relayer.Attempt) {
	return a.await(ctx, id, func(tx *relayer.Transaction, last *relayer.Attempt) bool {
		return last.Number > after || tx.Status.Final() || tx.Status == relayer.Mined
	})
}

// await looks until it is enough. That the database is away for a while only means that it looks again.
func (a *Admin) await(ctx context.Context, id uuid.UUID, enough func(*relayer.Transaction, *relayer.Attempt) bool) (*relayer.Transaction, *relayer.Attempt) {
	for {
		tx, err := a.Store.Transaction(ctx, id)
		if err == nil {
			var attempts []*relayer.Attempt
			attempts, err = a.Store.Attempts(ctx, id)
			last := new(relayer.Attempt)
			if len(attempts) > 0 {
				last = attempts[len(attempts)-1]
			}
			if err == nil && enough(tx, last) {
				return tx, last
			}
		}
		if pause(ctx) != nil {
			return nil, nil
		}
	}
}

// pause is between two looks.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(poll):
		return nil
	}
}
