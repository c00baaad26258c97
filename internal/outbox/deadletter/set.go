package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// Any stands for all kinds that a database has.
const Any = "any"

// Domain describes the kinds of entries of a domain, which its admin package returns.
type Domain struct {
	// Kinds are their names.
	Kinds []string
	// Open returns them. It fails with an [AbsentError] if the database has nothing of the domain.
	Open func(ctx context.Context) ([]Kind, error)
}

// Kind is one kind of entries.
type Kind struct {
	*Letters
	// Find returns the id of the transaction that a text names, and whether its row exists. The id is uuid.Nil if the text names none.
	// Entries may exist without the row: the queue gives them up.
	Find func(ctx context.Context, tx string) (id uuid.UUID, exists bool, err error)
}

// AbsentError means that a database has nothing of a domain. It has the text of Err.
type AbsentError struct{ Err error }

func (e *AbsentError) Error() string { return e.Err.Error() }
func (e *AbsentError) Unwrap() error { return e.Err }

// Set is the kinds of entries that an operator works on. It is safe for concurrent use.
type Set struct {
	of    string
	kinds []Kind
}

// Open returns the Set of one kind, or with [Any] of all kinds that a database has. It fails with [ErrNone] if there are none, and
// with an [AbsentError] if the one kind's domain is absent.
func Open(ctx context.Context, of string, domains ...Domain) (*Set, error) {
	s := &Set{of: of}
	for _, d := range domains {
		if of != Any && !slices.Contains(d.Kinds, of) {
			continue
		}
		kinds, err := d.Open(ctx)
		if _, absent := errors.AsType[*AbsentError](err); absent && of == Any {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, k := range kinds {
			if of == Any || of == k.Of() {
				s.kinds = append(s.kinds, k)
			}
		}
	}
	if len(s.kinds) == 0 {
		return nil, ErrNone
	}
	return s, nil
}

// Selection selects entries of a [Set] in an operator's terms.
type Selection struct {
	// IDs are the ids of entries. They exclude the other fields.
	IDs []string
	// All selects all that was given up. It excludes the other fields.
	All bool
	// Transactions are ids, or other names that the domains find.
	Transactions []string
	To           string
	// Since and Until limit the time of insertion: from Since on, and before Until.
	Since, Until time.Time
}

var (
	// ErrNone means that a database has no entries of any kind.
	ErrNone = errors.New("the database has no dead letters of any kind")
	// ErrSelection means that a change needs ids, a filter or all, and not two of them.
	ErrSelection = errors.New("select entries by ids, by a filter, or all")
	// ErrSeveral means that a change of several kinds needs ids: a replayed queue entry may end its consumers.
	ErrSeveral = errors.New("only ids select among several kinds")
	// ErrNoTransaction means that there is neither a transaction with a name, nor an entry of one.
	ErrNoTransaction = errors.New("transaction not found")
	// ErrNothing means that a filter matches nothing that was given up.
	ErrNothing = errors.New("nothing of it was given up")
)

// Check returns nil if a [Set] of a kind, or of [Any], may be changed by the selection, and otherwise all of [ErrSelection] and
// [ErrSeveral] that apply.
func (s Selection) Check(of string) (err error) {
	given := 0
	for _, yes := range []bool{len(s.IDs) > 0, s.All, len(s.Transactions) > 0 || s.To != "" || !s.Since.IsZero() || !s.Until.IsZero()} {
		if yes {
			given++
		}
	}
	if given != 1 {
		err = ErrSelection
	}
	if len(s.IDs) == 0 && of == Any {
		err = errors.Join(err, ErrSeveral)
	}
	return err
}

// chosen is what a selection has of one kind, and of one transaction.
type chosen struct {
	*Letters
	Filter
	subject string
}

func (s *Set) choose(ctx context.Context, sel Selection) (all []chosen, err error) {
	filter := Filter{To: sel.To, Since: sel.Since, Until: sel.Until}
	if len(sel.Transactions) == 0 {
		for _, k := range s.kinds {
			all = append(all, chosen{k.Letters, filter, k.Of()})
		}
	}
	for _, tx := range sel.Transactions {
		before := len(all)
		for _, k := range s.kinds {
			id, exists, err := k.Find(ctx, tx)
			if err == nil && id != uuid.Nil && !exists {
				var entries []Letter
				entries, err = k.List(ctx, Filter{Transaction: id, Limit: 1})
				exists = len(entries) > 0
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", tx, err)
			}
			if exists {
				filter.Transaction = id
				all = append(all, chosen{k.Letters, filter, k.Of() + " of " + tx})
			}
		}
		if len(all) == before {
			return nil, fmt.Errorf("%s: %w", tx, ErrNoTransaction)
		}
	}
	return all, nil
}

// List returns up to limit selected entries of each kind, and of each transaction, in a state or in any, the oldest first. IDs do not
// select. more reports that there may be others. It fails with [ErrNoTransaction].
func (s *Set) List(ctx context.Context, sel Selection, state outbox.State, limit int) (list []Letter, more bool, err error) {
	all, err := s.choose(ctx, sel)
	if err != nil {
		return nil, false, err
	}
	for _, c := range all {
		c.State, c.Limit = state, limit
		found, err := c.List(ctx, c.Filter)
		if err != nil {
			return nil, false, err
		}
		list, more = append(list, found...), more || len(found) == limit
	}
	return list, more, nil
}

// Show returns an entry with its payload. It fails with [ErrNotFound].
func (s *Set) Show(ctx context.Context, id string) (letter Letter, err error) {
	err = s.first(func(l *Letters) error {
		letter, err = l.Show(ctx, id)
		return err
	})
	return letter, err
}

// first calls do for the kinds until one has the entry.
func (s *Set) first(do func(*Letters) error) (err error) {
	for _, k := range s.kinds {
		if err = do(k.Letters); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return err
}

// Change is the result for one id, or for one kind, and transaction, of a filter.
type Change struct {
	Subject string
	Count   int // of changed entries
	// Err is nil, or for an id [ErrNotFound], [ErrWaiting] or [ErrFinished]. For a filter it matches [postgres.ErrUnknown] if a part was changed.
	Err error
}

// Replay makes the selected entries due again, as [Letters.Replay] does. It fails as [Selection.Check] does, and with
// [ErrNoTransaction] or [ErrNothing]; then nothing was changed. All changes nothing without an error.
func (s *Set) Replay(ctx context.Context, sel Selection) ([]Change, error) {
	return s.change(ctx, sel, (*Letters).ReplayOne, (*Letters).Replay)
}

// Drop deletes the selected entries, and otherwise does as [Set.Replay].
func (s *Set) Drop(ctx context.Context, sel Selection) ([]Change, error) {
	return s.change(ctx, sel, (*Letters).DropOne, (*Letters).Drop)
}

func (s *Set) change(ctx context.Context, sel Selection,
	one func(*Letters, context.Context, string) error, many func(*Letters, context.Context, Filter) (int, error),
) (changes []Change, err error) {
	if err := sel.Check(s.of); err != nil {
		return nil, err
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(sel.IDs))) {
		c := Change{Subject: id, Err: s.first(func(l *Letters) error { return one(l, ctx, id) })}
		if c.Err == nil {
			c.Count = 1
		}
		changes = append(changes, c)
	}
	if len(sel.IDs) > 0 {
		return changes, nil
	}
	all, err := s.choose(ctx, sel)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		n, err := many(c.Letters, ctx, c.Filter)
		if n > 0 && err != nil {
			err = &partError{n, err}
		}
		if n > 0 || err != nil || sel.All {
			changes = append(changes, Change{c.subject, n, err})
		}
	}
	if len(changes) == 0 {
		return nil, ErrNothing
	}
	return changes, nil
}

// partError is the error of a change that was done in part.
type partError struct {
	done int
	err  error
}

func (e *partError) Error() string   { return fmt.Sprintf("after %d of them: %v", e.done, e.err) }
func (e *partError) Unwrap() []error { return []error{e.err, postgres.ErrUnknown} }
