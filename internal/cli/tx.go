package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// TxCmd has the commands for a pool's transactions, and for the relay path's.
type TxCmd struct {
	List   txListCmd   `cmd:"" help:"List transactions, the newest first."`
	Get    txGetCmd    `cmd:"" help:"Show transactions in full."`
	Cancel txCancelCmd `cmd:"" changes:"" help:"Cancel transactions."`
	Bump   txBumpCmd   `cmd:"" changes:"" help:"Have transactions sent again with a higher fee, now."`

	Relay   txRelayCmd   `cmd:"" help:"Show the relay path's transactions."`
	Resolve txResolveCmd `cmd:"" changes:"" help:"Decide about a transaction of the relay path that a relayer may have."`
}

// refArgs are transactions as people know them.
type refArgs struct {
	Tx []string `arg:"" name:"tx" help:"Transactions: ids, hashes of any attempt, or KEY:NONCE."`
}

// refs reads them.
func refs(texts []string) ([]admin.Ref, error) {
	var all []admin.Ref
	var errs []error
	for _, text := range texts {
		r, err := admin.ParseRef(text)
		all, errs = append(all, r), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, UsageError{Err: err}
	}
	return all, nil
}

type txListCmd struct {
	Status    []string `placeholder:"STATUS" help:"Only with one of these statuses: allocated, broadcasted, unknown, mined, confirmed, reverted, failed, replaced, dropped, canceled, expired; or open, for all that can still change."`
	Key       string   `placeholder:"ADDRESS" help:"Only those of this key."`
	Trader    string   `help:"Only on behalf of this trader."`
	Method    string   `help:"Only with this method."`
	Orderbook string   `help:"Only of this orderbook."`
	RequestID string   `help:"Only of this request."`
	TraceID   string   `help:"Only of this trace."`
	All       bool     `help:"Also those that no caller asked for: no-ops, top-ups, and what others sent with our keys."`
	Limit     int      `default:"50" min:"1" max:"1000" help:"Maximum number of rows."`
	OutputFlags
	poolFlags
}

func (c *txListCmd) Check(p *config.Problems) {
	c.check(p)
	if _, err := admin.ParseStatuses(c.Status); err != nil {
		p.Addf(&c.Status, "allowed: "+joined(relayer.Statuses)+", open", "%v", err)
	}
	if c.Key != "" {
		if _, err := jsonbody.ParseAddress(c.Key); err != nil {
			p.Addf(&c.Key, "", "%v", err)
		}
	}
}

func (c *txListCmd) filter() store.Filter {
	f := store.Filter{All: c.All, Metadata: relayer.Metadata{
		Method: c.Method, Orderbook: c.Orderbook, Trader: c.Trader, RequestID: c.RequestID, TraceID: c.TraceID,
	}}
	if c.Key != "" {
		f.Key = common.HexToAddress(c.Key)
	}
	f.Statuses, _ = admin.ParseStatuses(c.Status) // Check has parsed them
	return f
}

func (c *txListCmd) Run(ctx context.Context, con *Console) error {
	a, ctx, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	txs, total, err := a.Store.Transactions(ctx, c.filter(), 0, c.Limit)
	if err != nil {
		return err
	}
	list := struct {
		Total        int           `json:"total"`              // that match, shown or not
		AtLeast      bool          `json:"at_least,omitempty"` // there may be more: counting stopped at a limit
		Transactions []Transaction `json:"transactions"`
	}{total, total >= c.Limit+store.CountLimit, []Transaction{}}
	for _, tx := range txs {
		list.Transactions = append(list.Transactions, Transaction{*tx.Row()})
	}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		var rows [][]string
		for _, tx := range list.Transactions {
			rows = append(rows, tx.row())
		}
		table(w, "ID STATUS KEY NONCE HASH AGE METHOD TRADER ATTEMPTS", rows)
		if total > len(rows) {
			fmt.Fprintf(w, "the newest %d of ", len(rows))
		}
		if list.AtLeast {
			fmt.Fprint(w, "at least ")
		}
		fmt.Fprintln(w, plural(total, "transaction"))
	})
}

type txGetCmd struct {
	refArgs
	OutputFlags
	poolFlags
}

func (c *txGetCmd) Check(p *config.Problems) { c.check(p) }

func (c *txGetCmd) Run(ctx context.Context, con *Console) error {
	wanted, err := refs(c.Tx)
	if err != nil {
		return err
	}
	a, ctx, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	list := struct {
		Transactions []History `json:"transactions"`
	}{[]History{}}
	var missing []string
	for _, ref := range wanted {
		record, err := a.Record(ctx, ref)
		if errors.Is(err, relayer.ErrNotFound) {
			missing = append(missing, ref.String())
			continue
		}
		if err != nil {
			return err
		}
		list.Transactions = append(list.Transactions, historyOf(record))
	}
	if len(list.Transactions) > 0 || c.Output != "table" {
		if err := c.Print(con.Stdout, list, func(w io.Writer) {
			for i, h := range list.Transactions {
				if i > 0 {
					fmt.Fprintln(w)
				}
				h.table(w)
			}
		}); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return WithFix(fmt.Errorf("not in pool %q on chain %d: %s", c.PoolID, c.ChainID, strings.Join(missing, ", ")),
			"Check --pool-id and --chain-id; what is final is deleted in time.")
	}
	return nil
}

// waitFlag is how long a command waits for relayers to do what it asked for.
type waitFlag struct {
	Wait time.Duration `default:"5s" min:"0s" max:"10m" help:"How long to wait for a relayer to sign; 0s only asks."`
}

// within is the time that a command waits in, beside the one that it has for the store.
func (w waitFlag) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, w.Wait)
}

type txCancelCmd struct {
	refArgs
	waitFlag
	OutputFlags
	poolFlags
}

func (txCancelCmd) Help() string {
	return `What has no nonce yet is canceled at once. For anything else the relayer that follows the chain signs a no-op with the same
nonce and a higher fee; whichever of the two is mined decides, so "canceled" is said only once that is final. The nonces that
wait below it have to be mined before.`
}

func (c *txCancelCmd) Check(p *config.Problems) { c.check(p) }

func (c *txCancelCmd) Run(ctx context.Context, con *Console) error {
	return c.act(ctx, con, c.waitFlag, c.OutputFlags, &c.poolFlags, func(limited context.Context, a *admin.Admin, ref admin.Ref) (string, await, error) {
		tx, err := a.Cancel(limited, ref, operatorName())
		if err != nil || tx.Status.Final() {
			return "canceled: it had no nonce yet", nil, err
		}
		asked := fmt.Sprintf("a no-op is to take its nonce, %d of %s", *tx.Nonce, tx.From)
		return asked, func(waiting context.Context) string {
			switch tx, last := a.AwaitNoop(waiting, tx.ID); {
			case tx == nil && c.Wait > 0:
				return asked + fmt.Sprintf("; no relayer has signed it within %v: does one run?", c.Wait)
			case tx == nil:
				return asked
			case last.Purpose == relayer.PurposeNoop:
				return asked + fmt.Sprintf("; it was signed, as attempt %d", last.Number)
			default:
				return asked + fmt.Sprintf("; the transaction is %s meanwhile", tx.Status)
			}
		}, nil
	})
}

// await waits for what a relayer does about an order, and tells what is known of it then.
type await func(waiting context.Context) string

// act gives an order for each transaction, and then waits for all of them. order returns what was done, and, unless there is
// nothing to wait for, how to wait.
func (r refArgs) act(ctx context.Context, con *Console, w waitFlag, o OutputFlags, pool *poolFlags,
	order func(limited context.Context, a *admin.Admin, ref admin.Ref) (string, await, error),
) error {
	wanted, err := refs(r.Tx)
	if err != nil {
		return err
	}
	a, limited, end, err := pool.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	results := make([]ActionResult, len(wanted))
	open := map[int]await{}
	for i, ref := range wanted {
		detail, wait, err := order(limited, a, ref)
		if err == nil && wait != nil {
			open[i] = wait
		}
		results[i] = resultOf(ref.String(), detail, err)
	}
	waiting, cancel := w.within(ctx)
	defer cancel()
	for i, wait := range open {
		results[i].Detail = wait(waiting)
	}
	return report(con, o, results, "rollcall tx get ID")
}

// operatorName names the operator in a transaction's reason.
func operatorName() string {
	if u, err := user.Current(); err == nil {
		return "operator " + u.Username
	}
	return "operator"
}

// report prints what was done, and fails with what was not. look is the command that shows unknown outcomes.
func report(con *Console, o OutputFlags, results []ActionResult, look string) error {
	if err := o.Print(con.Stdout, results, func(w io.Writer) {
		for _, d := range results {
			if d.Outcome == admin.Done {
				fmt.Fprintln(w, strings.Map(printable, d.Subject+": "+d.Detail))
			}
		}
	}); err != nil {
		return err
	}
	return failure(results, look)
}

type txBumpCmd struct {
	refArgs
	waitFlag
	OutputFlags
	poolFlags
}

func (txBumpCmd) Help() string {
	return `A relayer bumps by itself what holds its key up. This asks for it now, for any pending transaction. Nodes take a replacement
that offers a tenth more; where that is above the relayer's cap, it stays asked for and is done once the cap allows it.`
}

func (c *txBumpCmd) Check(p *config.Problems) { c.check(p) }

func (c *txBumpCmd) Run(ctx context.Context, con *Console) error {
	return c.act(ctx, con, c.waitFlag, c.OutputFlags, &c.poolFlags, func(limited context.Context, a *admin.Admin, ref admin.Ref) (string, await, error) {
		const asked = "a higher fee is asked for"
		_, was, err := a.Bump(limited, ref)
		if errors.Is(err, store.ErrUnsigned) {
			err = WithFix(err, "It waits for a key, or for a relayer: \"rollcall keys list\" shows them.")
		}
		return asked, func(waiting context.Context) string {
			switch tx, last := a.AwaitAttempt(waiting, was.TxID, was.Number); {
			case tx == nil && c.Wait > 0:
				return asked + fmt.Sprintf("; no relayer has signed within %v: does one run, or is the fee of %s wei near its cap?", c.Wait, was.MaxFee)
			case tx == nil:
				return asked
			case last.Number > was.Number:
				return fmt.Sprintf("attempt %d offers %s wei for a unit of gas, attempt %d did %s", last.Number, last.MaxFee, was.Number, was.MaxFee)
			default:
				return fmt.Sprintf("it is %s meanwhile", tx.Status)
			}
		}, err
	})
}
