package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queueurl"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// txDLQCmd has the commands for the queue's dead letters.
type txDLQCmd struct {
	List   dlqListCmd   `cmd:"" help:"List the messages that were given up."`
	Replay dlqReplayCmd `cmd:"" changes:"" help:"Try messages again, from their first attempt."`
	Drop   dlqDropCmd   `cmd:"" changes:"" help:"Delete messages. Their transactions stay as they are."`
}

// queueFlags are where the queue is.
type queueFlags struct {
	QueueURL  string `env:"QUEUE_URL" default:"postgres" placeholder:"URL" secret:"" help:"Queue between APIs and consumers, as they have it."`
	QueueFile string `name:"queue-url-file" env:"QUEUE_URL_FILE" placeholder:"FILE" help:"File that holds the queue's URL."`
	relayFlags
}

func (f *queueFlags) check(p *config.Problems) {
	f.CheckFlags(p)
	if f.QueueFile != "" && f.QueueURL == queueurl.Postgres {
		f.QueueURL = ""
	}
	ReadSecret(p, &f.QueueURL, &f.QueueFile)
	if err := queueurl.Check(f.QueueURL); err != nil {
		p.Addf(From(&f.QueueURL, &f.QueueFile), "", "%s", OneLine(err))
	}
}

// with calls do with the queue.
func (f *queueFlags) with(ctx context.Context, do func(context.Context, queue.Queue) error) (err error) {
	_, db, ctx, end, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	q, err := queueurl.Open(db, f.QueueURL, queue.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	return do(ctx, q)
}

type dlqListCmd struct {
	Limit int `default:"100" min:"1" max:"1000" help:"Maximum number of rows."`
	OutputFlags
	queueFlags
}

func (c *dlqListCmd) Check(p *config.Problems) { c.check(p) }

func (c *dlqListCmd) Run(ctx context.Context, con *Console) error {
	return c.with(ctx, func(ctx context.Context, q queue.Queue) error {
		letters, err := q.List(ctx, c.Limit)
		if err != nil {
			return err
		}
		list := struct {
			DeadLetters []queue.DeadLetter `json:"deadLetters"`
		}{append([]queue.DeadLetter{}, letters...)}
		return c.Print(con.Stdout, list, func(w io.Writer) {
			var rows [][]string
			for _, l := range list.DeadLetters {
				rows = append(rows, []string{l.ID.String(), strconv.Itoa(l.Attempts), age(l.DeadAt), l.Reason})
			}
			table(w, "TRANSACTION ATTEMPTS AGE REASON", rows)
		})
	})
}

// idArgs are the messages that a command is about.
type idArgs struct {
	ID []uuid.UUID `arg:"" optional:"" name:"id" help:"Transactions whose messages were given up."`
}

type dlqReplayCmd struct {
	idArgs
	All bool `help:"All of them."`
	OutputFlags
	queueFlags
}

func (c *dlqReplayCmd) Check(p *config.Problems) {
	c.check(p)
	if c.All == (len(c.ID) > 0) {
		p.Addf(&c.All, "\"rollcall tx dlq list\" has the ids", "give ids, or --all")
	}
}

func (c *dlqReplayCmd) Run(ctx context.Context, con *Console) error {
	return c.with(ctx, func(ctx context.Context, q queue.Queue) error {
		if c.All {
			n, err := q.ReplayAll(ctx)
			return report(con, c.OutputFlags, []ActionResult{resultOf("all", plural(n, "message")+" queued again", err)}, "rollcall tx dlq list")
		}
		return c.each(con, c.OutputFlags, "queued again", func(id uuid.UUID) (int, error) { return q.Replay(ctx, id) })
	})
}

type dlqDropCmd struct {
	ID []uuid.UUID `arg:"" name:"id" help:"Messages, by the ids of their transactions."`
	OutputFlags
	queueFlags
}

func (dlqDropCmd) Help() string {
	return `Drop messages of transactions that are final. A transaction that no relayer has gets another message within
five minutes; "rollcall tx resolve ID --failed" ends it.`
}

func (c *dlqDropCmd) Check(p *config.Problems) {
	c.check(p)
}

func (c *dlqDropCmd) Run(ctx context.Context, con *Console) error {
	return c.with(ctx, func(ctx context.Context, q queue.Queue) error {
		return idArgs{c.ID}.each(con, c.OutputFlags, "dropped", func(id uuid.UUID) (int, error) { return q.Drop(ctx, id) })
	})
}

// each does something with each message, and reports which were there.
func (a idArgs) each(con *Console, o OutputFlags, done string, do func(uuid.UUID) (int, error)) error {
	slices.SortFunc(a.ID, func(x, y uuid.UUID) int { return strings.Compare(x.String(), y.String()) })
	var results []ActionResult
	for _, id := range slices.Compact(a.ID) {
		n, err := do(id)
		if err == nil && n == 0 {
			results = append(results, refused(id.String(), "no message of it was given up"))
			continue
		}
		results = append(results, resultOf(id.String(), done, err))
	}
	return report(con, o, results, "rollcall tx dlq list")
}
