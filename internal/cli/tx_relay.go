package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// relayFlags are where the relay path's transactions are.
type relayFlags struct {
	databaseFlags
}

// open connects; the context ends with the timeout, and end releases both.
func (f *relayFlags) open(ctx context.Context) (*admin.Admin, context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	db, err := f.Open(ctx)
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	end := func() { db.Close(); cancel() }
	a, err := admin.Open(ctx, db)
	if err != nil {
		end()
		return nil, nil, nil, schemaError(err)
	}
	return a, ctx, end, nil
}

// relayTransaction is a transaction of the relay path with its changes, for scripts.
type relayTransaction struct {
	ID             uuid.UUID       `json:"id"`
	Client         string          `json:"client"`
	ClientID       string          `json:"clientId"`
	Kind           dispatch.Kind   `json:"kind"`
	Status         dispatch.Status `json:"status"`
	Reason         string          `json:"reason"`
	Revision       int             `json:"revision"`
	To             string          `json:"to"`
	Value          string          `json:"value"` // wei
	Relayer        string          `json:"relayer"`
	URL            string          `json:"url"`
	RelayerTx      string          `json:"relayerTransaction"`
	IdempotencyKey string          `json:"relayerIdempotencyKey"`
	Hash           string          `json:"hash"`
	CreatedAt      time.Time       `json:"createdAt"`
	UpdatedAt      time.Time       `json:"updatedAt"`
	// Late are relayers that have accepted it late, and may execute it, too.
	Late    []relayAcceptance `json:"lateAcceptances,omitempty"`
	Changes []relayChange     `json:"changes,omitempty"`
}

type relayAcceptance struct {
	Relayer   string `json:"relayer"`
	URL       string `json:"url"`
	RelayerTx string `json:"relayerTransaction"`
}

type relayChange struct {
	Revision int             `json:"revision"`
	Status   dispatch.Status `json:"status"`
	Reason   string          `json:"reason"`
	Relayer  string          `json:"relayer"`
	At       time.Time       `json:"at"`
}

func relayTransactionOf(r admin.Record) relayTransaction {
	tx := r.Transaction
	t := relayTransaction{
		ID: tx.ID, Client: tx.Client, ClientID: tx.ClientID, Kind: tx.Kind, Status: tx.Status, Reason: tx.Reason, Revision: tx.Revision,
		To: tx.To.Hex(), Value: tx.Value.String(), Relayer: tx.Relayer, URL: tx.URL, RelayerTx: tx.RelayerTx, IdempotencyKey: tx.RelayerKey(),
		Hash: text(tx.Hash), CreatedAt: tx.CreatedAt, UpdatedAt: tx.UpdatedAt,
	}
	for _, c := range r.Changes {
		t.Changes = append(t.Changes, relayChange{c.Revision, c.Status, c.Reason, c.Relayer, c.At})
	}
	for _, l := range r.Late {
		t.Late = append(t.Late, relayAcceptance{l.Relayer, l.URL, l.RelayerTx})
	}
	return t
}

// table prints a transaction with its changes.
func (t *relayTransaction) table(w io.Writer) {
	line := fields(w, 12)
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
	for _, l := range t.Late {
		line("also at", fmt.Sprintf("%s (%s) as %s", l.Relayer, l.URL, l.RelayerTx))
	}
	var rows [][]string
	for _, c := range t.Changes {
		rows = append(rows, []string{strconv.Itoa(c.Revision), string(c.Status), c.Relayer, c.At.UTC().Format(time.RFC3339), c.Reason})
	}
	table(w, "REVISION STATUS RELAYER AT REASON", rows)
}

// readRelayTransaction returns a transaction with its changes.
func readRelayTransaction(ctx context.Context, a *admin.Admin, id uuid.UUID) (admin.Record, error) {
	r, err := a.Record(ctx, id)
	if errors.Is(err, dispatch.ErrNotFound) {
		err = WithFix(fmt.Errorf("%s: %w", id, err), "List them with \"rollcall tx relay\"; a client's own id is not this one.")
	}
	return r, err
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
		if !dispatch.Status(s).Valid() {
			p.Addf(&c.Status, "allowed: "+joined(dispatch.Statuses), "%q is not a status", s)
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
	a, ctx, end, err := c.open(ctx)
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
			f.Statuses = append(f.Statuses, dispatch.Status(status))
		}
		found, err := a.Store.List(ctx, f)
		if err != nil {
			return err
		}
		for _, tx := range found {
			list.Transactions = append(list.Transactions, relayTransactionOf(admin.Record{Transaction: tx}))
		}
	}
	for _, id := range c.ID {
		r, err := readRelayTransaction(ctx, a, id)
		if err != nil {
			return err
		}
		list.Transactions = append(list.Transactions, relayTransactionOf(r))
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
