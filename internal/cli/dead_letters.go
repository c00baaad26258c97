package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	dispatchadmin "github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	escrowadmin "github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
)

// DeadLettersCmd has the commands for what was given up, by the queue, by both kinds of webhooks, and by the escrow monitor.
type DeadLettersCmd struct {
	List   lettersListCmd   `cmd:"" help:"List what was given up, the oldest first; or other entries."`
	Show   lettersShowCmd   `cmd:"" help:"Show entries in full."`
	Replay lettersReplayCmd `cmd:"" changes:"" help:"Have entries tried again, as often or for as long as new ones."`
	Drop   lettersDropCmd   `cmd:"" changes:"" help:"Delete entries that were given up, or delivered webhooks by their ids."`
}

// lettersFlags are where the entries are.
type lettersFlags struct {
	Of string `enum:"any,queue,relayer-webhooks,client-webhooks,escrow-events" default:"any" help:"Only this kind: queue (transactions between APIs and consumers), relayer-webhooks (of the pool with --chain-id, otherwise of all pools), client-webhooks (of the relay path), or escrow-events (messages of the escrow monitor). any is all that the database has."`
	poolFlags
}

func (f *lettersFlags) check(p *config.Problems) { f.fill(p) }

// open returns the chosen kinds; the context ends with the timeout, and end releases both.
func (f *lettersFlags) open(ctx context.Context) (_ *deadletter.Set, _ context.Context, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	db, err := f.Open(ctx)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	end = func() { db.Close(); cancel() }
	set, err := deadletter.Open(ctx, f.Of, dispatchadmin.DeadLetters(db), admin.DeadLetters(db, f.ChainID, f.PoolID), escrowadmin.DeadLetters(db))
	if err == nil {
		return set, ctx, end, nil
	}
	end()
	return nil, nil, nil, letterError(err)
}

// letterError adds the remedy to an error of dead letters.
func letterError(err error) error {
	switch {
	case errors.Is(err, deadletter.ErrNone):
		return WithFix(errors.New("the database has neither relayers, nor a relay path, nor an escrow monitor"), "Check DATABASE_URL or DATABASE_URL_FILE.")
	case errors.Is(err, deadletter.ErrNoTransaction):
		return WithFix(err, "List them with \"rollcall tx list\", or \"rollcall tx relay\"; a client's own id is neither.")
	case errors.Is(err, admin.ErrNeedsPool):
		return WithFix(err, "Give --chain-id, and --pool-id if the pool has another name than \"pool\".")
	case errors.Is(err, deadletter.ErrNothing):
		return WithFix(err, "\"rollcall dead-letters list\" shows all that was; a delivered webhook is chosen by its id.")
	case errors.Is(err, deadletter.ErrFinished): // of the escrow monitor: all other kinds take finished entries
		return WithFix(err, "\"rollcall escrow replay\" sends the messages of blocks again, in order and marked as replays.")
	case errors.Is(err, deadletter.ErrNotFound):
		return WithFix(err, "\"rollcall dead-letters list\" shows what was given up. Delivered webhooks are kept for RELAYER_WEBHOOK_RETENTION and CLIENT_WEBHOOK_RETENTION; for a whole transaction use --tx.")
	}
	return poolError(err)
}

// letterFlags select entries.
type letterFlags struct {
	Tx    []string  `placeholder:"TX" help:"Those of these transactions, by id; of a relayer's also by the hash of any attempt, or KEY:NONCE."`
	To    string    `placeholder:"NAME" help:"Those for this target of webhooks, or of this client."`
	Since time.Time `placeholder:"TIME" help:"Those that were stored since this time, such as 2026-01-31T12:00:00Z."`
	Until time.Time `placeholder:"TIME" help:"Those that were stored before this time."`
}

func (f *letterFlags) selection() deadletter.Selection {
	return deadletter.Selection{Transactions: f.Tx, To: f.To, Since: f.Since, Until: f.Until}
}

func (f *letterFlags) check(p *config.Problems) {
	for _, tx := range f.Tx {
		if _, err := admin.ParseRef(tx); err != nil {
			p.Addf(&f.Tx, "", "%v", err)
		}
	}
}

// letterList is a list of entries, for scripts.
type letterList struct {
	DeadLetters []deadletter.Letter `json:"deadLetters"`
}

type lettersListCmd struct {
	letterFlags
	State string `enum:"dead,waiting,done,any" default:"dead" help:"Those in this state; dead is what was given up, and done are webhooks that were delivered."`
	Limit int    `default:"100" min:"1" max:"100000" help:"Maximum number of rows of each kind, up to 100000. The list goes on with --since and the time of the last one, createdAt in JSON, which it then shows again."`
	OutputFlags
	lettersFlags
}

func (c *lettersListCmd) Check(p *config.Problems) {
	c.letterFlags.check(p)
	c.lettersFlags.check(p)
}

func (c *lettersListCmd) Run(ctx context.Context, con *Console) error {
	set, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	state := outbox.State(c.State)
	if c.State == "any" {
		state = ""
	}
	found, more, err := set.List(ctx, c.selection(), state, c.Limit)
	if err != nil {
		return letterError(err)
	}
	list := letterList{DeadLetters: append([]deadletter.Letter{}, found...)}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		var rows [][]string
		for _, l := range list.DeadLetters {
			rows = append(rows, []string{
				l.Of, l.ID, l.To, l.Transaction, l.Progress, strconv.Itoa(l.Attempts), age(l.CreatedAt.Time), l.Reason,
			})
		}
		table(w, "KIND ID TO TRANSACTION STATE TRIES AGE REASON", rows)
		if more {
			fmt.Fprint(w, "the oldest ")
		}
		fmt.Fprintln(w, count(len(rows)))
	})
}

// count returns a number of entries in words.
func count(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

type lettersShowCmd struct {
	ID []string `arg:"" name:"id" help:"Entries, by the ids that \"rollcall dead-letters list\" shows."`
	OutputFlags
	lettersFlags
}

func (c *lettersShowCmd) Check(p *config.Problems) { c.check(p) }

func (c *lettersShowCmd) Run(ctx context.Context, con *Console) error {
	set, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	list := letterList{DeadLetters: []deadletter.Letter{}}
	for _, id := range c.ID {
		letter, err := set.Show(ctx, id)
		if err != nil {
			return fmt.Errorf("%s: %w", id, letterError(err))
		}
		list.DeadLetters = append(list.DeadLetters, letter)
	}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		for i := range list.DeadLetters {
			if i > 0 {
				fmt.Fprintln(w)
			}
			letterTable(w, &list.DeadLetters[i])
		}
	})
}

// letterTable prints an entry.
func letterTable(w io.Writer, l *deadletter.Letter) {
	line := fields(w, 12)
	line("kind", l.Of)
	line("id", l.ID)
	line("to", l.To)
	line("transaction", l.Transaction)
	line("event", l.Event)
	if l.Revision > 0 {
		line("revision", strconv.Itoa(l.Revision))
	}
	line("state", l.Progress)
	line("tries", strconv.Itoa(l.Attempts))
	line("reason", l.Reason)
	line("stored", l.CreatedAt.String())
	line("due", l.DueAt.String())
	line("last result", l.SettledAt.String())
	line("payload", l.Payload)
}

// changeFlags select the entries that a command changes.
type changeFlags struct {
	ID []string `arg:"" optional:"" name:"id" help:"Entries that were given up, or delivered webhooks, by the ids that \"rollcall dead-letters list\" shows."`
	letterFlags
	OutputFlags
	lettersFlags
}

// selection returns the selection of a change.
func (c *changeFlags) selection(all bool) deadletter.Selection {
	s := c.letterFlags.selection()
	s.IDs, s.All = c.ID, all
	return s
}

func (c *changeFlags) check(p *config.Problems, all bool) {
	c.letterFlags.check(p)
	c.lettersFlags.check(p)
	err := c.selection(all).Check(c.Of)
	if errors.Is(err, deadletter.ErrSelection) {
		p.Addf(&c.Tx, "\"rollcall dead-letters list\" shows what was given up", "give ids, or --tx, --to, --since, --until, or --all")
	}
	if errors.Is(err, deadletter.ErrSeveral) {
		p.Addf(&c.Of, "give queue, relayer-webhooks, client-webhooks or escrow-events", "any: a replayed queue entry may end its consumers, so that only ids select among several kinds")
	}
}

// change changes the entries. done is the result that it prints.
func (c *changeFlags) change(ctx context.Context, con *Console, done string, all bool,
	change func(*deadletter.Set, context.Context, deadletter.Selection) ([]deadletter.Change, error),
) error {
	set, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	changes, err := change(set, ctx, c.selection(all))
	if err != nil {
		return letterError(err)
	}
	var results []ActionResult
	for _, change := range changes {
		detail, n := done, 0
		if len(c.ID) == 0 {
			detail, n = count(change.Count)+" "+done, change.Count
		}
		result := resultOf(change.Subject, detail, change.Err)
		result.Count, result.err = n, letterError(change.Err)
		results = append(results, result)
	}
	return report(con, c.OutputFlags, results, "rollcall dead-letters list --state any")
}

type lettersReplayCmd struct {
	changeFlags
	All bool `help:"All that was given up."`
}

func (lettersReplayCmd) Help() string {
	return `The queue gives up a transaction that ended its consumers, or failed in another way, 20 times, and one that is not there. A webhook is
given up that could not be delivered for a day. Later webhooks of the same transaction are delivered without it. A message of the escrow monitor that its target refuses for
good holds back the later ones of its escrow, until it is replayed or dropped. Replayed, an entry may fail as
often, or for as long, as a new one, and a webhook has the same id and content: its receiver can tell that it is old. A delivered webhook can be replayed by its id,
for as long as it is kept: see RELAYER_WEBHOOK_RETENTION of "rollcall relayer" and CLIENT_WEBHOOK_RETENTION of "rollcall api". It goes to the
URL that the target has now. A message of the escrow monitor that was published is sent again by "rollcall escrow replay" alone.

  rollcall dead-letters list --of client-webhooks --to shop
  rollcall dead-letters replay --of client-webhooks --to shop --since 2026-01-31T12:00:00Z`
}

func (c *lettersReplayCmd) Check(p *config.Problems) { c.check(p, c.All) }

func (c *lettersReplayCmd) Run(ctx context.Context, con *Console) error {
	return c.change(ctx, con, "to be tried again", c.All, (*deadletter.Set).Replay)
}

type lettersDropCmd struct{ changeFlags }

func (lettersDropCmd) Help() string {
	return `Drop entries of transactions that are final, and webhooks that no receiver needs. Transactions stay as they are. One that no relayer has
is queued again when the consumers next look at it: after five minutes, or hours if it is old. "rollcall tx resolve ID --failed" ends it.
A dropped message of the escrow monitor never reaches its target: the sequence of its escrow has a gap there.`
}

func (c *lettersDropCmd) Check(p *config.Problems) { c.check(p, false) }

func (c *lettersDropCmd) Run(ctx context.Context, con *Console) error {
	return c.change(ctx, con, "dropped", false, (*deadletter.Set).Drop)
}
