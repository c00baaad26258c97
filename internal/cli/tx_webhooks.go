package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// txWebhooksCmd has the commands for the webhooks of the relay path's clients.
type txWebhooksCmd struct {
	List   webhooksListCmd   `cmd:"" help:"List webhooks, the oldest first: those that were given up, or others."`
	Replay webhooksReplayCmd `cmd:"" changes:"" help:"Have webhooks delivered again."`
}

// webhookFlags select webhooks of clients.
type webhookFlags struct {
	Tx     []uuid.UUID `placeholder:"ID" help:"Those of these transactions, by the relay path's ids."`
	Client string      `placeholder:"NAME" help:"Those for this client."`
	Since  time.Time   `placeholder:"TIME" help:"Those of changes since this time, such as 2026-01-31T12:00:00Z."`
	Until  time.Time   `placeholder:"TIME" help:"Those of changes before this time."`
}

// filter returns the selection without its transactions.
func (f *webhookFlags) filter(state webhook.State) webhook.Filter {
	return webhook.Filter{Target: f.Client, State: state, Since: f.Since, Until: f.Until}
}

// openWebhooks connects; the context ends with the timeout, and end releases both.
func (f *relayFlags) openWebhooks(ctx context.Context) (*store.Store, *webhook.Outbox, context.Context, func(), error) {
	a, db, ctx, end, err := f.open(ctx)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	box, err := webhook.NewOutbox(db, store.Webhooks())
	if err != nil {
		end()
		return nil, nil, nil, nil, err
	}
	return a.Store, box, ctx, end, nil
}

// checkTransaction returns an error if there is no such transaction.
func checkTransaction(ctx context.Context, s *store.Store, id uuid.UUID) error {
	_, err := s.ByID(ctx, id)
	if errors.Is(err, dispatch.ErrNotFound) {
		return WithFix(err, "List them with \"rollcall tx relay\"; a client's own id is not this one.")
	}
	return err
}

type webhooksListCmd struct {
	webhookFlags
	State string `enum:"dead_letter,due,delivered,any" default:"dead_letter" help:"Those in this state; dead_letter is what was given up."`
	Limit int    `default:"100" min:"1" max:"1000" help:"Maximum number of rows."`
	OutputFlags
	relayFlags
}

func (c *webhooksListCmd) Check(p *config.Problems) { c.CheckFlags(p) }

func (c *webhooksListCmd) Run(ctx context.Context, con *Console) error {
	s, outbox, ctx, end, err := c.openWebhooks(ctx)
	if err != nil {
		return err
	}
	defer end()
	f := c.filter(webhook.State(c.State))
	if c.State == "any" {
		f.State = ""
	}
	f.Limit = c.Limit
	list := deliveryList{Deliveries: []webhook.Delivery{}}
	for _, id := range allIfNone(c.Tx) {
		if f.Transaction = id; id != uuid.Nil {
			if err := checkTransaction(ctx, s, id); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
		}
		found, err := outbox.List(ctx, f)
		if err != nil {
			return err
		}
		list.Deliveries = append(list.Deliveries, found...)
	}
	return list.print(con, c.OutputFlags, c.Limit)
}

// allIfNone returns the ids, or one zero id, which selects all transactions.
func allIfNone(ids []uuid.UUID) []uuid.UUID {
	if len(ids) == 0 {
		return []uuid.UUID{uuid.Nil}
	}
	return ids
}

// deliveryList is a list of webhooks, for scripts.
type deliveryList struct {
	Deliveries []webhook.Delivery `json:"deliveries"`
}

func (l deliveryList) print(con *Console, o OutputFlags, limit int) error {
	return o.Print(con.Stdout, l, func(w io.Writer) {
		deliveries(w, l.Deliveries)
		if len(l.Deliveries) >= limit {
			fmt.Fprint(w, "the oldest ")
		}
		fmt.Fprintln(w, plural(len(l.Deliveries), "webhook"))
	})
}

type webhooksReplayCmd struct {
	ID []uuid.UUID `arg:"" optional:"" name:"id" help:"Webhooks, given up or delivered, by the ids that \"rollcall tx webhooks list\" shows."`
	webhookFlags
	All bool `help:"All that were given up."`
	OutputFlags
	relayFlags
}

func (webhooksReplayCmd) Help() string {
	return `A webhook that could not be delivered for a day is given up (a dead letter), and later ones of the same transaction are delivered
without it. Replayed, it is tried for a day again, with the same id, payload and revision; the client can tell by the revision that
it is old. By transaction, client or time only those are replayed that were given up. A delivered one can be replayed by its id, for
as long as it is kept: see CLIENT_WEBHOOK_RETENTION of "rollcall api". The APIs send it to the URL that CLIENT_WEBHOOKS_JSON has now.

  rollcall tx webhooks list --client shop
  rollcall tx webhooks replay --client shop --since 2026-01-31T12:00:00Z`
}

func (c *webhooksReplayCmd) Check(p *config.Problems) {
	c.CheckFlags(p)
	narrowed := len(c.Tx) > 0 || c.Client != "" || !c.Since.IsZero() || !c.Until.IsZero()
	given := 0
	for _, yes := range []bool{len(c.ID) > 0, narrowed, c.All} {
		if yes {
			given++
		}
	}
	if given != 1 {
		p.Addf(&c.All, "\"rollcall tx webhooks list\" shows those that were given up", "give webhooks' ids, or --tx, --client, --since, --until, or --all")
	}
}

func (c *webhooksReplayCmd) Run(ctx context.Context, con *Console) error {
	s, outbox, ctx, end, err := c.openWebhooks(ctx)
	if err != nil {
		return err
	}
	defer end()
	var results []ActionResult
	for _, id := range unique(c.ID) {
		results = append(results, replayOne(ctx, outbox, id))
	}
	if len(c.ID) == 0 {
		for _, id := range allIfNone(unique(c.Tx)) {
			results = append(results, c.replayDead(ctx, s, outbox, id))
		}
	}
	return report(con, c.OutputFlags, results, "rollcall tx webhooks list --state any")
}

func unique(ids []uuid.UUID) []uuid.UUID {
	slices.SortFunc(ids, func(x, y uuid.UUID) int { return strings.Compare(x.String(), y.String()) })
	return slices.Compact(ids)
}

// replayOne replays a webhook by its id.
func replayOne(ctx context.Context, outbox *webhook.Outbox, id uuid.UUID) ActionResult {
	f := webhook.Filter{IDs: []uuid.UUID{id}}
	n, err := outbox.Replay(ctx, f)
	if err != nil || n > 0 {
		return resultOf(id.String(), "to be delivered again", err)
	}
	switch there, err := outbox.List(ctx, f); {
	case err != nil:
		return unchanged(id.String(), err)
	case len(there) > 0:
		return refused(id.String(), "it is due already")
	}
	return unchanged(id.String(), WithFix(errors.New("no such webhook"),
		"\"rollcall tx webhooks list\" shows those that were given up. Delivered ones are kept for CLIENT_WEBHOOK_RETENTION; for a whole transaction use --tx."))
}

// replayDead replays the selected dead letters, of one transaction unless its id is zero.
func (c *webhooksReplayCmd) replayDead(ctx context.Context, s *store.Store, outbox *webhook.Outbox, tx uuid.UUID) ActionResult {
	f := c.filter(webhook.DeadLetter)
	subject := "all"
	switch {
	case tx != uuid.Nil:
		f.Transaction, subject = tx, tx.String()
		if err := checkTransaction(ctx, s, tx); err != nil {
			return unchanged(subject, err)
		}
	case c.Client != "":
		subject = c.Client
	}
	n, err := outbox.Replay(ctx, f)
	if n > 0 && err != nil {
		err = fmt.Errorf("after %s: %w", plural(n, "webhook"), err)
	}
	if err == nil && n == 0 && !c.All {
		return unchanged(subject, WithFix(errors.New("no such webhook was given up"),
			"\"rollcall tx webhooks list\" shows all that were; a delivered one is replayed by its id."))
	}
	return resultOf(subject, plural(n, "webhook")+" to be delivered again", err)
}
