package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// Letter is an entry in the form that operators and their scripts see.
type Letter struct {
	Of          string            `json:"of"` // the kind
	ID          string            `json:"id"`
	Transaction string            `json:"transaction"` // "" if it has none
	To          string            `json:"to"`          // the target of a webhook, or the client of a transaction
	Event       string            `json:"event"`       // of a webhook
	Revision    int               `json:"revision"`    // of a webhook
	State       outbox.State      `json:"state"`
	Progress    string            `json:"progress"` // of a waiting one: waiting, delayed, blocked, sent or working; otherwise the state
	Attempts    int               `json:"attempts"`
	Reason      string            `json:"reason"` // of the latest failure
	CreatedAt   timefmt.Timestamp `json:"createdAt"`
	DueAt       timefmt.Timestamp `json:"dueAt"`             // of a waiting one; zero while it is blocked
	SettledAt   timefmt.Timestamp `json:"settledAt"`         // of the latest result
	Payload     string            `json:"payload,omitempty"` // of Show, if it is stored

	seq int64 // its place in a list
}

// Filter selects entries. A zero field selects all.
type Filter struct {
	IDs         []string
	Transaction uuid.UUID // it replaces IDs
	To          string
	State       outbox.State
	// Since and Until limit the time of insertion: from Since on, and before Until.
	Since, Until time.Time
	// After is the last entry of the previous page.
	After *Letter
	// Limit is 1 to MaxList, for List. Default 100.
	Limit int
}

// MaxList is the most entries that one List returns, which it holds in memory. A caller that wants more gives After, or Since.
const MaxList = 100_000

var (
	// ErrNotFound means that there is no entry with an id.
	ErrNotFound = errors.New("no such entry")
	// ErrWaiting means that an entry has not ended, so there is nothing to replay or to drop.
	ErrWaiting = errors.New("it waits already, and was not given up")
	// ErrFinished means that an entry was sent, and that those of its kind are not sent again: see [Source.DeadOnly].
	ErrFinished = errors.New("it was sent already, and was not given up")
)

// Letters gives access to the entries of one [Source]. It is safe for concurrent use.
type Letters struct {
	db     *pgxpool.Pool
	box    *outbox.Outbox
	source Source
}

// New returns the Letters of a source, or all problems of its table. It does not close db.
func New(db *pgxpool.Pool, source Source) (*Letters, error) {
	box, err := outbox.New(db, source.Table)
	if err != nil {
		return nil, err
	}
	source.Event, source.Revision = cmp.Or(source.Event, `''`), cmp.Or(source.Revision, `0`)
	return &Letters{db: db, box: box, source: source}, nil
}

// Of returns the name of the kind.
func (l *Letters) Of() string { return l.source.Of }

// entries returns the filter for the engine. none reports that nothing can match.
func (l *Letters) entries(ctx context.Context, f Filter) (e outbox.Filter, none bool, err error) {
	e = outbox.Filter{IDs: f.IDs, State: f.State, Prefix: l.source.Prefix, Since: f.Since, Until: f.Until}
	switch {
	case f.To == "":
	case l.source.AnyPrefix && !strings.Contains(f.To, "/"):
		e.Suffix = "/" + f.To
	default:
		e.Lane = l.source.Prefix + f.To
	}
	if f.After != nil {
		e.After = &outbox.Item{CreatedAt: f.After.CreatedAt, Seq: f.After.seq}
	}
	if f.Transaction == uuid.Nil {
		return e, false, nil
	}
	rows, err := l.db.Query(ctx, `SELECT id FROM `+l.source.Table.Name+` e WHERE `+l.source.OfTransaction, f.Transaction)
	if err == nil {
		e.IDs, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return e, false, fmt.Errorf("list entries of transaction %s: %w", f.Transaction, err)
	}
	return e, len(e.IDs) == 0, nil
}

// List returns the matching entries without their payloads, the oldest first.
func (l *Letters) List(ctx context.Context, f Filter) (list []Letter, err error) {
	e, none, err := l.entries(ctx, f)
	if err != nil || none {
		return nil, err
	}
	for left := min(cmp.Or(f.Limit, 100), MaxList); ; {
		e.Limit = min(left, outbox.MaxPage)
		items, err := l.box.List(ctx, e)
		if err != nil {
			return nil, err
		}
		page, err := l.letters(ctx, items)
		if err != nil {
			return nil, err
		}
		list = append(list, page...)
		if left -= len(items); len(items) < e.Limit || left == 0 {
			return list, nil
		}
		e.After = &items[len(items)-1]
	}
}

// Show returns an entry with its payload. It fails with [ErrNotFound].
func (l *Letters) Show(ctx context.Context, id string) (Letter, error) {
	item, err := l.box.Show(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !strings.HasPrefix(item.Lane, l.source.Prefix) {
		return Letter{}, ErrNotFound
	}
	if err != nil {
		return Letter{}, err
	}
	letters, err := l.letters(ctx, []outbox.Item{item})
	if err == nil && len(letters) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Letter{}, err
	}
	letters[0].Payload = string(item.Payload)
	return letters[0], nil
}

// letters adds the domain's columns. It leaves out entries that were deleted meanwhile.
func (l *Letters) letters(ctx context.Context, items []outbox.Item) ([]Letter, error) {
	ids := make([]string, len(items))
	for i, item := range items {
		ids[i] = item.ID
	}
	own := make(map[string]Letter, len(items))
	var d Letter
	rows, err := l.db.Query(ctx, `SELECT id, coalesce(`+l.source.Transaction+`, ''), `+l.source.Event+`, `+l.source.Revision+`
		FROM `+l.source.Table.Name+` e WHERE id = ANY($1)`, ids)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&d.ID, &d.Transaction, &d.Event, &d.Revision}, func() error {
			own[d.ID] = d
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read entries of %s: %w", l.source.Table.Name, err)
	}
	list := make([]Letter, 0, len(items))
	for _, item := range items {
		letter, there := own[item.ID]
		if !there {
			continue
		}
		letter.Of, letter.To, letter.seq = l.source.Of, strings.TrimPrefix(item.Lane, l.source.Prefix), item.Seq
		letter.State, letter.Progress, letter.Attempts, letter.Reason = item.State, item.Progress, item.Attempts, item.Reason
		letter.CreatedAt, letter.DueAt, letter.SettledAt = item.CreatedAt, item.DueAt, item.SettledAt
		list = append(list, letter)
	}
	return list, nil
}

// Replay makes matching entries due again, with the same ids and no failures: the dead ones, and the finished ones whose IDs the filter
// has, unless the source is DeadOnly. It returns their number. After an error some may have been changed, and another call changes the rest.
func (l *Letters) Replay(ctx context.Context, f Filter) (int, error) {
	if l.source.DeadOnly {
		if f.State != "" && f.State != outbox.Dead {
			return 0, nil
		}
		f.State = outbox.Dead
	}
	return l.change(ctx, f, l.box.Replay)
}

// Drop deletes the matching entries: the dead ones, and the finished ones whose IDs the filter has. It returns their number. After an error
// some may have been deleted.
func (l *Letters) Drop(ctx context.Context, f Filter) (int, error) {
	return l.change(ctx, f, l.box.Drop)
}

func (l *Letters) change(ctx context.Context, f Filter, change func(context.Context, outbox.Filter) (int, error)) (int, error) {
	if f.Transaction != uuid.Nil { // the engine gets the ids of its entries
		if f.State != "" && f.State != outbox.Dead {
			return 0, nil
		}
		f.State = outbox.Dead
	}
	e, none, err := l.entries(ctx, f)
	if err != nil || none {
		return 0, err
	}
	return change(ctx, e)
}

// ReplayOne is Replay for one id. It fails with [ErrNotFound], [ErrWaiting] or [ErrFinished].
func (l *Letters) ReplayOne(ctx context.Context, id string) error { return l.one(ctx, id, l.Replay) }

// DropOne is Drop for one id. It fails with [ErrNotFound] or [ErrWaiting].
func (l *Letters) DropOne(ctx context.Context, id string) error { return l.one(ctx, id, l.Drop) }

func (l *Letters) one(ctx context.Context, id string, change func(context.Context, Filter) (int, error)) error {
	n, err := change(ctx, Filter{IDs: []string{id}})
	if err != nil || n > 0 {
		return err
	}
	letter, err := l.Show(ctx, id)
	switch {
	case err != nil:
		return err
	case letter.State == outbox.Done:
		return ErrFinished
	}
	return ErrWaiting
}
