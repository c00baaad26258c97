package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	dispatchadmin "github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// DeadLettersCmd has the commands for what was given up, by the queue and by both kinds of webhooks.
type DeadLettersCmd struct {
	List   lettersListCmd   `cmd:"" help:"List what was given up, the oldest first; or other entries."`
	Show   lettersShowCmd   `cmd:"" help:"Show entries in full."`
	Replay lettersReplayCmd `cmd:"" changes:"" help:"Have entries tried again, as often or for as long as new ones."`
	Drop   lettersDropCmd   `cmd:"" changes:"" help:"Delete entries that were given up, or delivered webhooks by their ids."`
}

// Values of --of. The others are the names that the domains give their entries.
const (
	anyKind         = "any"
	relayerWebhooks = "relayer-webhooks"
)

// lettersFlags are where the entries are.
type lettersFlags struct {
	Of string `enum:"any,queue,relayer-webhooks,client-webhooks" default:"any" help:"Only this kind: queue (transactions between APIs and consumers), relayer-webhooks (of the pool with --chain-id, otherwise of all pools), or client-webhooks (of the relay path). any is all that the database has."`
	poolFlags
}

func (f *lettersFlags) check(p *config.Problems) { f.fill(p) }

// letters are the entries of one kind. find returns the id of the transaction that a text names, and whether its row exists. The id is
// uuid.Nil if the text names none. Entries may exist without the row: the queue gives them up.
type letters struct {
	*deadletter.Letters
	find func(ctx context.Context, tx string) (id uuid.UUID, exists bool, err error)
}

// open returns the chosen kinds; the context ends with the timeout, and end releases both.
func (f *lettersFlags) open(ctx context.Context) (all []letters, _ context.Context, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	db, err := f.Open(ctx)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	end = func() { db.Close(); cancel() }
	if all, err = f.kinds(ctx, db); err != nil {
		end()
		return nil, nil, nil, err
	}
	return all, ctx, end, nil
}

func (f *lettersFlags) kinds(ctx context.Context, db *pgxpool.Pool) (all []letters, err error) {
	if f.Of != relayerWebhooks {
		path, err := dispatchadmin.Open(ctx, db)
		switch {
		case err == nil:
			for _, l := range []*deadletter.Letters{path.Queue, path.Webhooks} {
				if f.Of == anyKind || f.Of == l.Of() {
					all = append(all, letters{l, func(ctx context.Context, tx string) (uuid.UUID, bool, error) { return findRelayed(ctx, path, tx) }})
				}
			}
		case f.Of != anyKind || !absent(err):
			return nil, schemaError(err)
		}
	}
	if f.Of == anyKind || f.Of == relayerWebhooks {
		webhooks, err := f.ofRelayers(ctx, db)
		switch {
		case err == nil:
			all = append(all, webhooks)
		case f.Of != anyKind || !absent(err):
			return nil, poolError(err)
		}
	}
	if len(all) == 0 {
		return nil, WithFix(errors.New("the database has neither relayers nor a relay path"), "Check DATABASE_URL or DATABASE_URL_FILE.")
	}
	return all, nil
}

// ofRelayers returns the webhooks of the pool, or of all pools if no chain is given.
func (f *lettersFlags) ofRelayers(ctx context.Context, db *pgxpool.Pool) (letters, error) {
	if f.ChainID == 0 {
		all, err := admin.AllWebhooks(ctx, db)
		return letters{all, func(ctx context.Context, tx string) (uuid.UUID, bool, error) {
			id, err := uuid.Parse(tx)
			if err != nil {
				return id, false, WithFix(errors.New("a hash, or KEY:NONCE, names a transaction of one pool"), "Give --chain-id, and --pool-id if the pool has another name than \"pool\".")
			}
			exists, err := store.HasTransaction(ctx, db, id)
			return id, exists, err
		}}, err
	}
	pool, err := admin.Open(ctx, db, f.ChainID, f.PoolID)
	if err != nil {
		return letters{}, err
	}
	return letters{pool.Webhooks, func(ctx context.Context, tx string) (uuid.UUID, bool, error) { return findInPool(ctx, pool, tx) }}, nil
}

// absent reports whether a database has nothing of a domain.
func absent(err error) bool {
	older, isOlder := errors.AsType[*postgres.OlderError](err)
	unknown, isUnknown := errors.AsType[*store.UnknownPoolError](err)
	return isOlder && older.Database == 0 || isUnknown && len(unknown.Known) == 0
}

func findRelayed(ctx context.Context, a *dispatchadmin.Admin, tx string) (uuid.UUID, bool, error) {
	id, err := uuid.Parse(tx)
	if err != nil { // a relayer's hash, or KEY:NONCE
		return uuid.Nil, false, nil
	}
	_, err = a.Store.ByID(ctx, id)
	if errors.Is(err, dispatch.ErrNotFound) {
		return id, false, nil
	}
	return id, err == nil, err
}

func findInPool(ctx context.Context, a *admin.Admin, tx string) (uuid.UUID, bool, error) {
	ref, err := admin.ParseRef(tx)
	if err != nil {
		return uuid.Nil, false, err
	}
	found, err := a.Find(ctx, ref)
	if errors.Is(err, relayer.ErrNotFound) {
		id, _ := uuid.Parse(tx)
		return id, false, nil
	}
	if err != nil {
		return uuid.Nil, false, err
	}
	return found.ID, true, nil
}

// letterFlags select entries.
type letterFlags struct {
	Tx    []string  `placeholder:"TX" help:"Those of these transactions, by id; of a relayer's also by the hash of any attempt, or KEY:NONCE."`
	To    string    `placeholder:"NAME" help:"Those for this target of webhooks, or of this client."`
	Since time.Time `placeholder:"TIME" help:"Those that were stored since this time, such as 2026-01-31T12:00:00Z."`
	Until time.Time `placeholder:"TIME" help:"Those that were stored before this time."`
}

func (f *letterFlags) given() bool {
	return len(f.Tx) > 0 || f.To != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

func (f *letterFlags) check(p *config.Problems) {
	for _, tx := range f.Tx {
		if _, err := admin.ParseRef(tx); err != nil {
			p.Addf(&f.Tx, "", "%v", err)
		}
	}
}

// selection is what is chosen of one kind.
type selection struct {
	letters
	deadletter.Filter
	subject string
}

// choose returns the selection of each kind, and of each transaction.
func (f *letterFlags) choose(ctx context.Context, all []letters) (chosen []selection, err error) {
	filter := deadletter.Filter{To: f.To, Since: f.Since, Until: f.Until}
	if len(f.Tx) == 0 {
		for _, l := range all {
			chosen = append(chosen, selection{l, filter, l.Of()})
		}
	}
	for _, tx := range f.Tx {
		before := len(chosen)
		for _, l := range all {
			id, exists, err := l.find(ctx, tx)
			if err == nil && id != uuid.Nil && !exists {
				var entries []deadletter.Letter
				entries, err = l.List(ctx, deadletter.Filter{Transaction: id, Limit: 1})
				exists = len(entries) > 0
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", tx, err)
			}
			if !exists {
				continue
			}
			filter.Transaction = id
			chosen = append(chosen, selection{l, filter, l.Of() + " of " + tx})
		}
		if len(chosen) == before {
			return nil, WithFix(fmt.Errorf("%s: transaction not found", tx),
				"List them with \"rollcall tx list\", or \"rollcall tx relay\"; a client's own id is neither.")
		}
	}
	return chosen, nil
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
	all, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	chosen, err := c.choose(ctx, all)
	if err != nil {
		return err
	}
	list, more := letterList{DeadLetters: []deadletter.Letter{}}, false
	for _, s := range chosen {
		s.Limit = c.Limit
		if c.State != "any" {
			s.State = outbox.State(c.State)
		}
		found, err := s.List(ctx, s.Filter)
		if err != nil {
			return err
		}
		list.DeadLetters, more = append(list.DeadLetters, found...), more || len(found) == c.Limit
	}
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

// notFound adds the remedy to the error of an unknown id.
func notFound(err error) error {
	if !errors.Is(err, deadletter.ErrNotFound) {
		return err
	}
	return WithFix(err, "\"rollcall dead-letters list\" shows what was given up. Delivered webhooks are kept for RELAYER_WEBHOOK_RETENTION and CLIENT_WEBHOOK_RETENTION; for a whole transaction use --tx.")
}

// first calls do for the kinds until one has the entry.
func first(all []letters, do func(letters) error) (err error) {
	for _, l := range all {
		if err = do(l); !errors.Is(err, deadletter.ErrNotFound) {
			return err
		}
	}
	return notFound(err)
}

type lettersShowCmd struct {
	ID []uuid.UUID `arg:"" name:"id" help:"Entries, by the ids that \"rollcall dead-letters list\" shows."`
	OutputFlags
	lettersFlags
}

func (c *lettersShowCmd) Check(p *config.Problems) { c.check(p) }

func (c *lettersShowCmd) Run(ctx context.Context, con *Console) error {
	all, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	list := letterList{DeadLetters: []deadletter.Letter{}}
	for _, id := range c.ID {
		err := first(all, func(l letters) error {
			letter, err := l.Show(ctx, id.String())
			if err == nil {
				list.DeadLetters = append(list.DeadLetters, letter)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
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
	ID []uuid.UUID `arg:"" optional:"" name:"id" help:"Entries that were given up, or delivered webhooks, by the ids that \"rollcall dead-letters list\" shows."`
	letterFlags
	OutputFlags
	lettersFlags
}

func (c *changeFlags) check(p *config.Problems, all bool) {
	c.letterFlags.check(p)
	c.lettersFlags.check(p)
	given := 0
	for _, yes := range []bool{len(c.ID) > 0, c.given(), all} {
		if yes {
			given++
		}
	}
	if given != 1 {
		p.Addf(&c.Tx, "\"rollcall dead-letters list\" shows what was given up", "give ids, or --tx, --to, --since, --until, or --all")
	}
	if len(c.ID) == 0 && c.Of == anyKind {
		p.Addf(&c.Of, "give queue, relayer-webhooks or client-webhooks", "any: a replayed queue entry may end its consumers, so that only ids select among several kinds")
	}
}

// change changes the entries. done is what became of them.
func (c *changeFlags) change(ctx context.Context, con *Console, done string, all bool,
	one func(letters, context.Context, string) error, many func(letters, context.Context, deadletter.Filter) (int, error),
) error {
	kinds, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	var results []ActionResult
	slices.SortFunc(c.ID, func(x, y uuid.UUID) int { return strings.Compare(x.String(), y.String()) })
	for _, unique := range slices.Compact(c.ID) {
		id := unique.String()
		err := first(kinds, func(l letters) error { return one(l, ctx, id) })
		if errors.Is(err, deadletter.ErrNotFound) || errors.Is(err, deadletter.ErrWaiting) {
			results = append(results, unchanged(id, err))
			continue
		}
		results = append(results, resultOf(id, done, err))
	}
	if len(c.ID) == 0 {
		chosen, err := c.choose(ctx, kinds)
		if err != nil {
			return err
		}
		for _, s := range chosen {
			n, err := many(s.letters, ctx, s.Filter)
			if n > 0 && err != nil {
				err = admin.Partly(fmt.Errorf("after %s: %w", count(n), err))
			}
			if n > 0 || err != nil || all {
				result := resultOf(s.subject, count(n)+" "+done, err)
				result.Count = n
				results = append(results, result)
			}
		}
		if len(results) == 0 {
			return WithFix(errors.New("nothing of it was given up"), "\"rollcall dead-letters list\" shows all that was; a delivered webhook is chosen by its id.")
		}
	}
	return report(con, c.OutputFlags, results, "rollcall dead-letters list --state any")
}

type lettersReplayCmd struct {
	changeFlags
	All bool `help:"All that was given up."`
}

func (lettersReplayCmd) Help() string {
	return `The queue gives up a transaction that ended its consumers, or failed in another way, 20 times, and one that is not there. A webhook is
given up that could not be delivered for a day. Later webhooks of the same transaction are delivered without it. Replayed, an entry may fail as
often, or for as long, as a new one, and a webhook has the same id and content: its receiver can tell that it is old. A delivered webhook can be replayed by its id,
for as long as it is kept: see RELAYER_WEBHOOK_RETENTION of "rollcall relayer" and CLIENT_WEBHOOK_RETENTION of "rollcall api". It goes to the
URL that the target has now.

  rollcall dead-letters list --of client-webhooks --to shop
  rollcall dead-letters replay --of client-webhooks --to shop --since 2026-01-31T12:00:00Z`
}

func (c *lettersReplayCmd) Check(p *config.Problems) { c.check(p, c.All) }

func (c *lettersReplayCmd) Run(ctx context.Context, con *Console) error {
	return c.change(ctx, con, "to be tried again", c.All,
		func(l letters, ctx context.Context, id string) error { return l.ReplayOne(ctx, id) },
		func(l letters, ctx context.Context, f deadletter.Filter) (int, error) { return l.Replay(ctx, f) })
}

type lettersDropCmd struct{ changeFlags }

func (lettersDropCmd) Help() string {
	return `Drop entries of transactions that are final, and webhooks that no receiver needs. Transactions stay as they are. One that no relayer has
is queued again when the consumers next look at it: after five minutes, or hours if it is old. "rollcall tx resolve ID --failed" ends it.`
}

func (c *lettersDropCmd) Check(p *config.Problems) { c.check(p, false) }

func (c *lettersDropCmd) Run(ctx context.Context, con *Console) error {
	return c.change(ctx, con, "dropped", false,
		func(l letters, ctx context.Context, id string) error { return l.DropOne(ctx, id) },
		func(l letters, ctx context.Context, f deadletter.Filter) (int, error) { return l.Drop(ctx, f) })
}
