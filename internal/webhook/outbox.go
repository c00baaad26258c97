package webhook

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// State of a delivery.
type State string

// The states, as operators see them.
const (
	Due        State = "due"
	Delivered  State = "delivered"
	DeadLetter State = "dead_letter"
)

// states are the states of entries that those of deliveries stand for.
var states = map[State]outbox.State{Due: outbox.Waiting, Delivered: outbox.Done, DeadLetter: outbox.Dead}

func stateOf(s outbox.State) State {
	for state, entry := range states {
		if entry == s {
			return state
		}
	}
	return State(s)
}

// Outbox gives operators access to the deliveries of one [Source]. It is safe for concurrent use.
type Outbox struct {
	db     *pgxpool.Pool
	box    *outbox.Outbox
	source Source
}

// NewOutbox returns the Outbox of a source. It does not close db.
func NewOutbox(db *pgxpool.Pool, source Source) (*Outbox, error) {
	box, err := outbox.New(db, source.Table)
	if err != nil {
		return nil, err
	}
	return &Outbox{db: db, box: box, source: source}, nil
}

// Delivery is one webhook to one target, in the form that operators and their scripts see.
type Delivery struct {
	ID          uuid.UUID         `json:"id"`
	Transaction *uuid.UUID        `json:"transaction"` // nil for an event of no transaction
	Target      string            `json:"target"`
	Event       string            `json:"event"`
	Revision    int               `json:"revision"`
	State       State             `json:"state"`
	Attempts    int               `json:"attempts"`
	NextAt      timefmt.Timestamp `json:"nextAt"` // of a due one: when it may be tried, or when its claim ends; zero behind a lower revision
	CreatedAt   timefmt.Timestamp `json:"createdAt"`
	DeliveredAt timefmt.Timestamp `json:"deliveredAt"`
	LastError   string            `json:"lastError"`

	seq int64 // its place in a list
}

// Filter selects deliveries. A zero field selects all.
type Filter struct {
	IDs         []uuid.UUID
	State       State
	Target      string
	Transaction uuid.UUID // it replaces IDs
	// Since and Until limit the time of the change: from Since on, and before Until.
	Since, Until time.Time
	// After is the last delivery of the previous page.
	After *Delivery
	// Limit is 1 to 1,000. Default 100.
	Limit int
}

// entries returns the filter for the entries.
func (o *Outbox) entries(ctx context.Context, f Filter) (outbox.Filter, error) {
	e := outbox.Filter{State: states[f.State], Prefix: o.source.Prefix, Since: f.Since, Until: f.Until, Limit: f.Limit}
	if f.Target != "" {
		e.Lane = o.source.Prefix + f.Target
	}
	if f.After != nil {
		e.After = &outbox.Item{CreatedAt: f.After.CreatedAt, Seq: f.After.seq}
	}
	for _, id := range f.IDs {
		e.IDs = append(e.IDs, id.String())
	}
	if f.Transaction != uuid.Nil {
		rows, err := o.db.Query(ctx, `SELECT id FROM `+o.source.Table.Name+` WHERE about = $1`, f.Transaction)
		if err != nil {
			return e, fmt.Errorf("list webhooks of %s: %w", f.Transaction, err)
		}
		if e.IDs, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return e, fmt.Errorf("list webhooks of %s: %w", f.Transaction, err)
		}
	}
	return e, nil
}

// List returns the matching deliveries, the oldest first.
func (o *Outbox) List(ctx context.Context, f Filter) ([]Delivery, error) {
	entries, err := o.entries(ctx, f)
	if err != nil {
		return nil, err
	}
	items, err := o.box.List(ctx, entries)
	if err != nil {
		return nil, err
	}
	list, err := o.deliveries(ctx, items)
	if err != nil {
		return nil, fmt.Errorf("list webhooks: %w", err)
	}
	return list, nil
}

// deliveries returns entries with the owner's columns. It leaves out those that were deleted meanwhile.
func (o *Outbox) deliveries(ctx context.Context, items []outbox.Item) ([]Delivery, error) {
	ids := make([]string, len(items))
	for i, item := range items {
		ids[i] = item.ID
	}
	rows, err := o.db.Query(ctx, `SELECT id, id::uuid, `+o.source.Transaction+`, `+o.source.Event+`, revision FROM `+o.source.Table.Name+` e
		WHERE id = ANY($1)`, ids)
	if err != nil {
		return nil, err
	}
	own := make(map[string]Delivery, len(items))
	var id string
	var d Delivery
	if _, err := pgx.ForEachRow(rows, []any{&id, &d.ID, &d.Transaction, &d.Event, &d.Revision}, func() error {
		own[id] = d
		return nil
	}); err != nil {
		return nil, err
	}
	list := make([]Delivery, 0, len(items))
	for _, item := range items {
		d, there := own[item.ID]
		if !there {
			continue
		}
		d.Target, d.State, d.Attempts, d.seq = strings.TrimPrefix(item.Lane, o.source.Prefix), stateOf(item.State), item.Attempts, item.Seq
		d.NextAt, d.CreatedAt, d.LastError = item.DueAt, item.CreatedAt, item.Reason
		if d.State == Delivered {
			d.DeliveredAt = item.SettledAt
		}
		list = append(list, d)
	}
	return list, nil
}

// Replay makes deliveries due again, with the same ids and the full number of attempts. Of those that match the filter it takes the
// dead letters; if the filter has IDs, the delivered ones too. It returns how many it changed. After an error some may have been
// changed, and another call changes the rest.
func (o *Outbox) Replay(ctx context.Context, f Filter) (int, error) {
	entries, err := o.entries(ctx, f)
	if err != nil {
		return 0, err
	}
	if f.Transaction != uuid.Nil {
		if f.State != "" && f.State != DeadLetter || len(entries.IDs) == 0 {
			return 0, nil
		}
		entries.State = outbox.Dead
	}
	return o.box.Replay(ctx, entries)
}
