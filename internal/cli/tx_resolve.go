package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// txResolveCmd ends a transaction, or gives it another course, by an operator's decision.
type txResolveCmd struct {
	ID        uuid.UUID `arg:"" name:"id" help:"The transaction, by the relay path's id."`
	Retry     bool      `xor:"decision" help:"No relayer has it: queue it again."`
	Failed    bool      `xor:"decision" help:"It is not to be sent: tell the client that it failed. "`
	Executed  *string   `xor:"decision" placeholder:"HASH" help:"The chain has executed it, under this hash: tell the client that it is confirmed."`
	RelayerTx *string   `xor:"decision" name:"relayer-tx" placeholder:"ID" help:"Its relayer has it, under this id."`
	Yes       bool      `help:"Do not ask for a confirmation."`
	OutputFlags
	relayFlags
}

func (txResolveCmd) Help() string {
	return `An operator can decide about each transaction that is not final. A transaction is unknown if its relayer may have it, and no lookup can tell. Look for it at the relayer, by receiver, value, data
and time, and on the chain. Without a decision this prints what is known. A transaction stays submitting while no relayer has the
idempotency scope of the one that may have it; if that scope is gone for good, decide likewise, after two minutes. A submitted or mined
one is followed at its relayer: decide only if that relayer has lost it, for example because it was restored from a backup.

With --retry it is executed twice if a relayer has it after all. With --failed the client may post it again, which is the same.
Relayers that share idempotency keys find it by the key that is printed; it stays the same with --retry, unless its relayer had
accepted it before.`
}

func (c *txResolveCmd) Check(p *config.Problems) {
	c.CheckFlags(p)
	if c.Executed != nil && new(common.Hash).UnmarshalText([]byte(*c.Executed)) != nil {
		p.Addf(&c.Executed, "0x and 64 hex digits", "%q is not a transaction's hash", *c.Executed)
	}
	if c.RelayerTx != nil && *c.RelayerTx == "" {
		p.Addf(&c.RelayerTx, "give the id that the relayer has for it", "is empty")
	}
	if c.Yes && !c.decided() {
		p.Addf(&c.Yes, "give --relayer-tx ID, --executed HASH, --retry or --failed", "confirms no decision")
	}
}

func (c *txResolveCmd) Run(ctx context.Context, con *Console) error {
	a, limited, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	record, err := readRelayTransaction(limited, a, c.ID)
	if err != nil {
		return err
	}
	tx, shown := record.Transaction, relayTransactionOf(record)
	if !c.decided() {
		if err := c.Print(con.Stdout, shown, shown.table); err != nil {
			return err
		}
		if admin.Waits(tx) {
			fmt.Fprintf(con.Stderr, "decide: rollcall tx resolve %s with --relayer-tx ID, --executed HASH, --retry or --failed\n", c.ID)
		}
		return nil
	}
	decision, detail := c.decision()
	if err := admin.Fits(tx, decision); err != nil {
		return err
	}
	if err := confirm(ctx, con, c.OutputFlags, c.Yes, shown.table, c.question(tx, decision)); err != nil {
		return err
	}
	// A person may have taken long.
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err = a.Resolve(limited, tx, decision, operatorName())
	result := resultOf(c.ID.String(), detail, err)
	if errors.Is(err, admin.ErrChanged) {
		result = unchanged(c.ID.String(), err)
	}
	return report(con, c.OutputFlags, []ActionResult{result}, "rollcall tx relay "+c.ID.String())
}

// decided reports whether the operator gave a decision.
func (c *txResolveCmd) decided() bool {
	return c.Retry || c.Failed || c.Executed != nil || c.RelayerTx != nil
}

// question asks for a confirmation of a decision and its risk.
func (c *txResolveCmd) question(tx *dispatch.Transaction, d dispatch.Resolution) string {
	var ask string
	switch {
	case d.Retry:
		ask = "Queue it again?"
	case d.Failed:
		ask = "Tell the client that it failed?"
	case d.Executed != nil:
		ask = "Tell the client that it is confirmed as " + d.Executed.Hex() + "?"
	default:
		ask = "Go on with it as " + d.RelayerTx + " of its relayer?"
	}
	return strings.TrimSpace(ask + " " + admin.Risk(tx, d))
}

// decision returns the decision, and its result.
func (c *txResolveCmd) decision() (d dispatch.Resolution, result string) {
	switch {
	case c.RelayerTx != nil:
		return dispatch.Resolution{RelayerTx: *c.RelayerTx}, "submitted, as " + *c.RelayerTx
	case c.Executed != nil:
		return dispatch.Resolution{Executed: new(common.HexToHash(*c.Executed))}, "confirmed, as " + *c.Executed
	case c.Retry:
		return dispatch.Resolution{Retry: true}, "queued again"
	default:
		return dispatch.Resolution{Failed: true}, "failed"
	}
}
