package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// poll is the interval at which the store is checked for the result of a request.
const poll = 100 * time.Millisecond

// Admin works on one pool. It is safe for concurrent use.
type Admin struct {
	Store *store.Store
	// Webhooks are the pool's webhooks.
	Webhooks *deadletter.Letters
}

// Migrations returns the parts of the relayers' schema, in the order in which they are migrated.
func Migrations() []postgres.Migrations { return []postgres.Migrations{store.Migrations()} }

// Open returns the Admin of a pool in a database, which it does not close. It fails with a [postgres.OlderError], a
// [postgres.NewerError] or a [store.UnknownPoolError].
func Open(ctx context.Context, db *pgxpool.Pool, chainID uint64, pool string) (*Admin, error) {
	if err := postgres.Check(ctx, db, store.Migrations()); err != nil {
		return nil, err
	}
	s, err := store.Attach(ctx, db, chainID, pool)
	if err != nil {
		return nil, err
	}
	webhooks, err := deadletter.New(db, events.Pool{ChainID: chainID, ID: pool}.Letters())
	if err != nil {
		return nil, err
	}
	return &Admin{Store: s, Webhooks: webhooks}, nil
}

// Outcome is the outcome of a change.
type Outcome string

// The three outcomes.
const (
	Done    Outcome = "done"
	NotDone Outcome = "not done"
	Unknown Outcome = "unknown" // the connection to the database broke during the commit, or only a part is done
)

// OutcomeOf returns the outcome of a change, by its error from this package, the store or the outbox.
func OutcomeOf(err error) Outcome {
	_, state := errors.AsType[*relayer.StateError](err)
	switch {
	case err == nil:
		return Done
	case errors.Is(err, relayer.ErrUnknown), errors.Is(err, postgres.ErrUnknown):
		return Unknown
	case state, errors.Is(err, relayer.ErrNotFound), errors.Is(err, store.ErrUnsigned), errors.Is(err, errRefused),
		errors.Is(err, deadletter.ErrNotFound), errors.Is(err, deadletter.ErrWaiting), errors.Is(err, deadletter.ErrFinished):
		return NotDone
	case postgres.Uncertain(err):
		return Unknown
	}
	return NotDone
}

// errRefused is wrapped by errors of this package that precede any change.
var errRefused = errors.New("nothing was changed")

// refused adds errRefused to an error and keeps its text.
type refused struct{ error }

func (r refused) Unwrap() []error { return []error{r.error, errRefused} }

// partly marks the error of a change that was done in part, and keeps its text.
type partly struct{ error }

func (p partly) Unwrap() []error { return []error{p.error, relayer.ErrUnknown} }

// Ref names a transaction by its id, a hash, or its key and nonce.
type Ref struct {
	text string

	id    uuid.UUID
	hash  common.Hash
	key   common.Address
	nonce uint64
}

// ParseRef parses an id, the hash of any attempt, or KEY:NONCE.
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

// String returns the reference as it was given.
func (r Ref) String() string { return r.text }

// Find returns the transaction that a reference names. It fails with [relayer.ErrNotFound].
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

// Record is a transaction with all that was done about it.
type Record struct {
	*relayer.Transaction
	Attempts []*relayer.Attempt
	Webhooks []deadletter.Letter
}

// Record returns the transaction that a reference names. It fails with [relayer.ErrNotFound].
func (a *Admin) Record(ctx context.Context, ref Ref) (r Record, err error) {
	if r.Transaction, err = a.Find(ctx, ref); err != nil {
		return r, err
	}
	if r.Attempts, err = a.Store.Attempts(ctx, r.ID); err != nil {
		return r, err
	}
	r.Webhooks, err = a.Webhooks.List(ctx, deadletter.Filter{Transaction: r.ID, Limit: deadletter.MaxList})
	return r, err
}

// ParseStatuses parses statuses of transactions, and "open" for all that can still change.
func ParseStatuses(names []string) (statuses []relayer.Status, err error) {
	for _, name := range names {
		if name != "open" && !slices.Contains(relayer.Statuses, relayer.Status(name)) {
			return nil, fmt.Errorf("%q is not a status", name)
		}
	}
	for _, status := range relayer.Statuses {
		if slices.Contains(names, string(status)) || slices.Contains(names, "open") && !status.Final() {
			statuses = append(statuses, status)
		}
	}
	return statuses, nil
}

// Cancel requests the cancellation of a transaction, and returns it as it is then. A transaction without a nonce is
// canceled at once; for any other a relayer signs a no-op that competes with it.
func (a *Admin) Cancel(ctx context.Context, r Ref, by string) (*relayer.Transaction, error) {
	tx, err := a.Find(ctx, r)
	if err != nil {
		return nil, asRefused(err)
	}
	return a.Store.SetIntent(ctx, tx.ID, relayer.IntentCancel, "canceled by "+by)
}

// Bump requests a higher fee, and returns the transaction's latest attempt before that.
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

// asRefused marks an error of an operation that only reads.
func asRefused(err error) error {
	if err == nil || errors.Is(err, relayer.ErrNotFound) {
		return err
	}
	return refused{err}
}

// AwaitNoop waits until a no-op was signed for a transaction that is being canceled, or none is needed any more. It returns
// nil if ctx ends before.
func (a *Admin) AwaitNoop(ctx context.Context, id uuid.UUID) (*relayer.Transaction, *relayer.Attempt) {
	return a.await(ctx, id, func(tx *relayer.Transaction, last *relayer.Attempt) bool {
		return last.Purpose == relayer.PurposeNoop || tx.Status.Final() || tx.Status == relayer.Mined
	})
}

// AwaitAttempt waits until there is an attempt with a higher number, or none is needed any more. It returns nil if ctx ends
// before.
func (a *Admin) AwaitAttempt(ctx context.Context, id uuid.UUID, after int) (*relayer.Transaction, *relayer.Attempt) {
	return a.await(ctx, id, func(tx *relayer.Transaction, last *relayer.Attempt) bool {
		return last.Number > after || tx.Status.Final() || tx.Status == relayer.Mined
	})
}

// await polls until enough returns true. While the database is unavailable it keeps polling.
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
		if pause(ctx, poll) != nil {
			return nil, nil
		}
	}
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
