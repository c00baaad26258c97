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

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/queue"
	"github.com/rollcall-dev/rollcall/internal/relay/queue/queueurl"
	"github.com/rollcall-dev/rollcall/internal/relay/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
)

// relayFlags are where the relay path's transactions are.
type relayFlags struct {
	DatabaseFlags
}

// open connects; the context ends with the timeout, and end releases both.
func (f *relayFlags) open(ctx context.Context) (_ *store.Store, db *pgxpool.Pool, _ context.Context, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	db, err = f.Open(ctx)
	if err != nil {
		cancel()
		return nil, nil, nil, nil, err
	}
	end = func() { db.Close(); cancel() }
	for _, m := range []postgres.Migrations{store.Migrations(), queue.Migrations()} {
		if err := postgres.Check(ctx, db, m); err != nil {
			end()
			return nil, nil, nil, nil, SchemaError(err)
		}
	}
	return store.New(db, store.Config{Enqueue: queue.EnqueueSQL}), db, ctx, end, nil
}

// relayTransaction is a transaction of the relay path with its changes, for scripts.
type relayTransaction struct {
	ID             uuid.UUID     `json:"id"`
	Client         string        `json:"client"`
	ClientID       string        `json:"clientId"`
	Kind           relay.Kind    `json:"kind"`
	Status         relay.Status  `json:"status"`
	Reason         string        `json:"reason"`
	Revision       int           `json:"revision"`
	To             string        `json:"to"`
	Value          string        `json:"value"` // wei
	Relayer        string        `json:"relayer"`
	URL            string        `json:"url"`
	RelayerTx      string        `json:"relayerTransaction"`
	IdempotencyKey string        `json:"relayerIdempotencyKey"`
	Hash           string        `json:"hash"`
	CreatedAt      time.Time     `json:"createdAt"`
	UpdatedAt      time.Time     `json:"updatedAt"`
	Changes        []relayChange `json:"changes,omitempty"`
}

type relayChange struct {
	Revision int          `json:"revision"`
	Status   relay.Status `json:"status"`
	Reason   string       `json:"reason"`
	Relayer  string       `json:"relayer"`
	At       time.Time    `json:"at"`
}

func relayTransactionOf(tx *relay.Transaction) relayTransaction {
	return relayTransaction{
		ID: tx.ID, Client: tx.Client, ClientID: tx.ClientID, Kind: tx.Kind, Status: tx.Status, Reason: tx.Reason, Revision: tx.Revision,
		To: tx.To.Hex(), Value: tx.Value.String(), Relayer: tx.Relayer, URL: tx.URL, RelayerTx: tx.RelayerTx, IdempotencyKey: tx.RelayerKey(),
		Hash: text(tx.Hash), CreatedAt: tx.CreatedAt, UpdatedAt: tx.UpdatedAt,
	}
}

// table prints a transaction with its changes.
func (t *relayTransaction) table(w io.Writer) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, strings.Map(printable, value))
		}
	}
	line("id", t.ID.String())
	line("client", t.Client)
	line("client's id", t.ClientID)
	line("status", string(t.Status))
	line("reason", t.Reason)
	line("call", fmt.Sprintf("%s wei to %s", t.Value, t.To))
	line("relayer", t.Relayer)
	line("at", t.URL)
	line("its id", t.RelayerTx)
	line("its key", t.IdempotencyKey)
	line("hash", t.Hash)
	var rows [][]string
	for _, c := range t.Changes {
		rows = append(rows, []string{strconv.Itoa(c.Revision), string(c.Status), c.Relayer, c.At.UTC().Format(time.RFC3339), c.Reason})
	}
	table(w, "REVISION STATUS RELAYER AT REASON", rows)
}

// readRelayTransaction returns a transaction with its changes.
func readRelayTransaction(ctx context.Context, s *store.Store, id uuid.UUID) (*relay.Transaction, relayTransaction, error) {
	tx, err := s.ByID(ctx, id)
	if errors.Is(err, relay.ErrNotFound) {
		return nil, relayTransaction{}, WithFix(fmt.Errorf("%s: %w", id, err), "List them with \"rollcall tx relay\"; a client's own id is not this one.")
	}
	if err != nil {
		return nil, relayTransaction{}, err
	}
	t := relayTransactionOf(tx)
	changes, err := s.History(ctx, id)
	for _, c := range changes {
		t.Changes = append(t.Changes, relayChange{c.Revision, c.Status, c.Reason, c.Relayer, c.At})
	}
	return tx, t, err
}

// txRelayCmd shows the relay path's transactions.
type txRelayCmd struct {
	ID     []uuid.UUID `arg:"" optional:"" name:"id" help:"Transactions to show in full, by the relay path's ids; without one they are listed."`
	Status []string    `placeholder:"STATUS" help:"List only those with one of these statuses: queued, submitting, unknown, submitted, mined, confirmed, failed, canceled, expired."`
	Client string      `help:"List only this client's."`
	Limit  int         `default:"50" min:"1" max:"100" help:"Maximum number of rows."`
	OutputFlags
	relayFlags
}

func (c *txRelayCmd) Check(p *config.Problems) {
	c.CheckFlags(p)
	for _, s := range c.Status {
		if !relay.Status(s).Valid() {
			p.Addf(&c.Status, "allowed: "+joined(relay.Statuses), "%q is not a status", s)
		}
	}
}

func joined[S ~string](all []S) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, string(s))
	}
	return strings.Join(texts, ", ")
}

func (c *txRelayCmd) Run(ctx context.Context, con *Console) error {
	s, _, ctx, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	list := struct {
		Transactions []relayTransaction `json:"transactions"`
	}{[]relayTransaction{}}
	if len(c.ID) == 0 {
		f := store.Filter{Client: c.Client, Limit: c.Limit}
		for _, status := range c.Status {
			f.Statuses = append(f.Statuses, relay.Status(status))
		}
		found, err := s.List(ctx, f)
		if err != nil {
			return err
		}
		for _, tx := range found {
			list.Transactions = append(list.Transactions, relayTransactionOf(tx))
		}
	}
	for _, id := range c.ID {
		_, t, err := readRelayTransaction(ctx, s, id)
		if err != nil {
			return err
		}
		list.Transactions = append(list.Transactions, t)
	}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		if len(c.ID) > 0 {
			for i := range list.Transactions {
				list.Transactions[i].table(w)
			}
			return
		}
		var rows [][]string
		for _, t := range list.Transactions {
			rows = append(rows, []string{t.ID.String(), t.Client, t.ClientID, string(t.Status), t.Relayer, age(t.CreatedAt), t.Hash, t.Reason})
		}
		table(w, "ID CLIENT CLIENT-ID STATUS RELAYER AGE HASH REASON", rows)
	})
}

// txResolveCmd ends the status unknown, or a submission that no relayer can finish.
type txResolveCmd struct {
	ID        uuid.UUID `arg:"" name:"id" help:"The transaction, by the relay path's id."`
	Retry     bool      `xor:"decision" help:"No relayer has it: queue it again."`
	Failed    bool      `xor:"decision" help:"It is not to be sent: tell the client that it failed. Also for a queued one, which no relayer has."`
	Executed  string    `xor:"decision" placeholder:"HASH" help:"The chain has executed it, under this hash: tell the client that it is confirmed."`
	RelayerTx string    `xor:"decision" name:"relayer-tx" placeholder:"ID" help:"Its relayer has it, under this id."`
	Yes       bool      `help:"Do not ask for a confirmation."`
	OutputFlags
	relayFlags
}

func (txResolveCmd) Help() string {
	return `A transaction is unknown if its relayer may have it, and no lookup can tell. Look for it at the relayer, by receiver, value, data
and time, and on the chain. Without a decision this prints what is known. A transaction stays submitting while no relayer has the
idempotency scope of the one that may have it; if that scope is gone for good, decide likewise, after two minutes.

With --retry it is executed twice if a relayer has it after all. With --failed the client may post it again, which is the same.
Relayers that share idempotency keys find it by the key that is printed; it stays the same with --retry, unless its relayer had
accepted it before.`
}

func (c *txResolveCmd) Check(p *config.Problems) {
	c.CheckFlags(p)
	if c.Executed != "" && new(common.Hash).UnmarshalText([]byte(c.Executed)) != nil {
		p.Addf(&c.Executed, "0x and 64 hex digits", "%q is not a transaction's hash", c.Executed)
	}
}

func (c *txResolveCmd) Run(ctx context.Context, con *Console) error {
	s, _, limited, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	tx, shown, err := readRelayTransaction(limited, s, c.ID)
	if err != nil {
		return err
	}
	if !c.Retry && !c.Failed && c.Executed == "" && c.RelayerTx == "" {
		if err := c.Print(con.Stdout, shown, shown.table); err != nil {
			return err
		}
		if tx.Status == relay.Unknown || tx.Status == relay.Submitting && time.Since(tx.QuietSince) > store.ResolvableAfter {
			fmt.Fprintf(con.Stderr, "decide: rollcall tx resolve %s with --relayer-tx ID, --executed HASH, --retry or --failed\n", c.ID)
		}
		return nil
	}
	switch {
	case tx.Status == relay.Unknown, tx.Status == relay.Submitting, tx.Status == relay.Queued && c.Failed:
	default:
		return fmt.Errorf("%s is %s, not unknown: there is nothing to resolve", c.ID, tx.Status)
	}
	if err := confirm(con, c.OutputFlags, c.Yes, shown.table, c.question()); err != nil {
		return err
	}
	// A person may have taken long.
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return report(con, c.OutputFlags, []ActionResult{c.resolve(limited, s, tx)}, "rollcall tx relay "+c.ID.String())
}

func (c *txResolveCmd) question() string {
	switch {
	case c.Retry:
		return "Queue it again? If a relayer has it, it is executed twice."
	case c.Failed:
		return "Tell the client that it failed?"
	case c.Executed != "":
		return "Tell the client that it is confirmed as " + c.Executed + "?"
	default:
		return "Go on with it as " + c.RelayerTx + " of its relayer?"
	}
}

func (c *txResolveCmd) resolve(ctx context.Context, s *store.Store, tx *relay.Transaction) ActionResult {
	id := tx.ID.String()
	d, detail := store.Resolution{Retry: c.Retry, Failed: c.Failed, RelayerTx: c.RelayerTx}, "failed"
	switch {
	case c.RelayerTx != "" && tx.RelayerTx != "":
		return refused(id, fmt.Sprintf("its relayer had it as %s: use --executed, --retry or --failed", tx.RelayerTx))
	case c.RelayerTx != "":
		detail = "submitted, as " + c.RelayerTx
	case c.Executed != "":
		d.Executed, detail = new(common.HexToHash(c.Executed)), "confirmed, as "+c.Executed
	case c.Retry:
		detail = "queued again"
	}
	done, err := s.Resolve(ctx, tx, d, operatorName()+" decided")
	if err == nil && !done {
		return refused(id, "a consumer submits it now, or has changed it: look at it, and repeat the command after two minutes")
	}
	return resultOf(id, detail, err)
}

// refused is the result of what was certainly not done.
func refused(subject, why string) ActionResult { return unchanged(subject, errors.New(why)) }

// unchanged is the result of an error that preceded any change.
func unchanged(subject string, err error) ActionResult {
	return ActionResult{Subject: subject, Outcome: admin.NotDone, Detail: err.Error(), err: err}
}

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
				dead := "-"
				if !l.DeadAt.IsZero() {
					dead = age(l.DeadAt)
				}
				rows = append(rows, []string{l.ID.String(), strconv.Itoa(l.Attempts), dead, l.Reason})
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
	idArgs
	OutputFlags
	queueFlags
}

func (dlqDropCmd) Help() string {
	return `Drop messages of transactions that are final, and malformed ones. A transaction that no relayer has gets another message within
five minutes; "rollcall tx resolve ID --failed" ends it.`
}

func (c *dlqDropCmd) Check(p *config.Problems) {
	c.check(p)
	if len(c.ID) == 0 {
		p.Addf(&c.ID, "\"rollcall tx dlq list\" has the ids", "give ids")
	}
}

func (c *dlqDropCmd) Run(ctx context.Context, con *Console) error {
	return c.with(ctx, func(ctx context.Context, q queue.Queue) error {
		return c.each(con, c.OutputFlags, "dropped", func(id uuid.UUID) (int, error) { return q.Drop(ctx, id) })
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
