package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
)

// KeysResyncCmd compares keys with the chain and corrects differences.
type KeysResyncCmd struct {
	keyArgs
	SetNonce    *uint64 `placeholder:"N" help:"Move the next nonce of one key to N, up or down, where no transaction was ever signed for N or above."`
	Reorganized bool    `help:"The chain was reorganized deeper than final transactions: make those pending again whose blocks are gone, keep nonces and signed bytes, and go on with the chain as it is."`
	NewChain    bool    `help:"The chain has another genesis block now, on purpose: drop what was pending on the one before, and begin each key at the new one's count."`
	NonceJump   uint64  `name:"max-nonce-jump" env:"RELAYER_MAX_NONCE_JUMP" default:"64" min:"1" max:"1000000" help:"By how much a next nonce is moved up without a question; the relayers' setting."`
	Yes         bool    `help:"Do not ask before something is taken back, skipped or dropped."`
	OutputFlags
	poolFlags
	nodeFlags
}

// Help returns the details of the help.
func (KeysResyncCmd) Help() string {
	return `It counts the pending transactions again; moves the next nonce up to the highest count, mined or pending, that any
node reports, if another sender has used the key; and fills nonces below it that no transaction has with no-ops, which relayers
sign. It never moves a nonce down and drops nothing. It enables a key again that was stopped for a nonce jump. It refuses nodes
that count differently, and counts that go on changing; it asks before it moves a nonce by more than RELAYER_MAX_NONCE_JUMP.

With --set-nonce a key's next nonce moves to N. Down it moves only where nothing was signed for N or above, and no node knows of
a transaction there. Accepted transactions that had such a nonce wait in the queue again. Up it leaves nonces without a
transaction, at most 1,000, which relayers fill with no-ops, RELAYER_NOOPS_PER_HOUR in an hour.

Relayers send nothing on a chain with another history than the recorded one, until an operator allows it for all pools on the
chain. With the same genesis block it is a deep reorganization, and all signed bytes are still valid: --reorganized makes
transactions pending again whose blocks are gone, also final ones, tells their webhook targets, and has relayers send the same
bytes again. It may be repeated, and does the rest where it was interrupted. With another genesis block it is another chain:
--new-chain drops what was pending.`
}

// Check reports problems of the settings.
func (c *KeysResyncCmd) Check(p *config.Problems) {
	switch {
	case c.NewChain && c.Reorganized:
		p.Addf(&c.NewChain, "give one of them", "contradicts %s", p.Where(&c.Reorganized))
	case c.SetNonce != nil && (c.All || c.NewChain || c.Reorganized || len(c.Key) != 1):
		p.Addf(&c.SetNonce, "give the address of one key", "is for one key")
	case !c.NewChain && !c.Reorganized:
		c.keyArgs.check(p)
	case len(c.Key) > 0 && c.NewChain:
		p.Addf(&c.NewChain, "leave the keys away", "is for all keys of the chain")
	case len(c.Key) > 0:
		p.Addf(&c.Reorganized, "leave the keys away", "is for all keys of the chain")
	}
	c.nodeFlags.check(p, c.poolFlags.check(p), c.ChainID)
	if len(c.RPCURLs) == 0 {
		p.Addf(&c.RPCURLs, "give a node's URL, such as http://127.0.0.1:8545", "is missing")
	}
}

// Run runs the command.
func (c *KeysResyncCmd) Run(ctx context.Context, con *Console) error {
	client, err := c.client(c.ChainID)
	if err != nil {
		return err
	}
	defer client.Close()
	switch {
	case c.NewChain:
		return c.startOver(ctx, con, client)
	case c.Reorganized:
		return c.takeBack(ctx, con, client)
	}
	a, limited, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	keys, err := c.keys(limited, a)
	if err != nil {
		return err
	}
	if c.SetNonce != nil {
		return c.setNonce(ctx, con, a, client, keys[0])
	}
	counts, err := a.Count(limited, client, keys)
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	if jumps := admin.Jumps(counts, c.NonceJump); len(jumps) > 0 {
		if err := confirm(ctx, con, c.OutputFlags, c.Yes, func(w io.Writer) { describeJumps(w, jumps) }, "Skip those nonces?"); err != nil {
			return err
		}
	}
	// A person may have taken long.
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	found, err := a.Resync(limited, counts)
	list := []Resynced{}
	for _, r := range found {
		list = append(list, resyncedOf(r))
	}
	if len(list) > 0 || err == nil {
		if err := c.Print(con.Stdout, list, func(w io.Writer) {
			for _, r := range list {
				fmt.Fprintln(w, r)
			}
		}); err != nil {
			return err
		}
	}
	return uncertain(err, "rollcall keys list")
}

// describeJumps prints the keys whose next nonce would be raised by more than relayers raise it.
func describeJumps(w io.Writer, jumps []admin.KeyCount) {
	var rows [][]string
	for _, n := range jumps {
		rows = append(rows, []string{
			lower(n.Key.Address), strconv.FormatUint(n.Key.NextNonce, 10), strconv.FormatUint(n.Mined, 10), strconv.FormatUint(n.Pending, 10),
		})
	}
	fmt.Fprintln(w, "The nodes count many more transactions of these keys than relayers have sent. If no other sender made them, a node is wrong:")
	table(w, "KEY NEXT MINED PENDING", rows)
}

// setNonce moves a key's next nonce.
func (c *KeysResyncCmd) setNonce(ctx context.Context, con *Console, a *admin.Admin, client *evm.Client, key *relayer.Key) error {
	if jump := admin.Jump(key, *c.SetNonce, c.NonceJump); jump > 0 {
		if err := confirm(ctx, con, c.OutputFlags, c.Yes, func(w io.Writer) {
			fmt.Fprintf(w, "The next nonce of %s is %d. Relayers fill the %d nonces up to %d with no-ops, which cost gas.\n",
				lower(key.Address), key.NextNonce, jump, *c.SetNonce)
		}, "Skip those nonces?"); err != nil {
			return err
		}
	}
	// A person may have taken long.
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	was, enabled, err := a.SetNonce(ctx, client, key, *c.SetNonce)
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	result := struct {
		Key     string `json:"key"`
		NextWas uint64 `json:"nextNonceWas"`
		Next    uint64 `json:"nextNonce"`
		Enabled bool   `json:"enabled"` // it was stopped for a nonce jump
	}{lower(key.Address), was, *c.SetNonce, enabled}
	return c.Print(con.Stdout, result, func(w io.Writer) {
		fmt.Fprintf(w, "%s: the next nonce was %d and is %d", result.Key, was, result.Next)
		if enabled {
			fmt.Fprint(w, "; the key is enabled again")
		}
		fmt.Fprintln(w)
	})
}

// Resynced is what was found of a key, and mended, for scripts.
type Resynced struct {
	Key        string   `json:"key"`
	ChainNonce uint64   `json:"chainNonce"`
	PendingWas int      `json:"pendingWas"`
	Pending    int      `json:"pending"`
	NextWas    uint64   `json:"nextNonceWas"`
	Next       uint64   `json:"nextNonce"`
	Filled     []uint64 `json:"filled"`  // nonces that get no-ops
	Sought     int      `json:"sought"`  // below the chain's count, and not known to be mined
	Enabled    bool     `json:"enabled"` // it was stopped for a nonce jump
}

func resyncedOf(r admin.Resync) Resynced {
	return Resynced{
		Key: lower(r.Key), ChainNonce: r.Mined, PendingWas: r.PendingWas, Pending: r.PendingIs, NextWas: r.NextWas, Next: r.NextIs,
		Filled: append([]uint64{}, r.Filled...), Sought: r.Sought, Enabled: r.Enabled,
	}
}

func (r Resynced) String() string {
	var found []string
	if r.PendingWas != r.Pending {
		found = append(found, fmt.Sprintf("%d were counted as pending and %d are", r.PendingWas, r.Pending))
	}
	if r.NextWas != r.Next {
		found = append(found, fmt.Sprintf("the next nonce was %d and is %d, because another sender has used the key", r.NextWas, r.Next))
	}
	if n := len(r.Filled); n > 0 {
		found = append(found, fmt.Sprintf("%s without a transaction, from %d on, get no-ops", plural(n, "nonce"), slices.Min(r.Filled)))
	}
	if r.Sought > 0 {
		found = append(found, fmt.Sprintf("%s below the chain's count not known to be mined: relayers look for them", plural(r.Sought, "transaction")))
	}
	if r.Enabled {
		found = append(found, "the key is enabled again")
	}
	if len(found) == 0 {
		found = append(found, fmt.Sprintf("nothing to repair, next nonce %d, %d pending", r.Next, r.Pending))
	}
	return r.Key + ": " + strings.Join(found, "; ")
}

// takeBack follows a chain that was reorganized deeper than final transactions.
func (c *KeysResyncCmd) takeBack(ctx context.Context, con *Console, client *evm.Client) error {
	a, limited, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	plan, err := a.Reorganized(limited, client)
	if err != nil {
		return err
	}
	if err := confirm(ctx, con, c.OutputFlags, c.Yes, func(w io.Writer) { describeReorganized(w, plan) }, "Make these pending again, and go on with the chain as it is now?"); err != nil {
		return err
	}
	// A person may have taken long.
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	taken, err := a.TakeBack(limited, client, plan)
	if admin.OutcomeOf(err) == admin.Unknown {
		return WithFix(&gateway.UnknownOutcomeError{Cause: err.Error(), Err: err},
			"%s taken back for certain. Repeat the command for the rest, with a longer --timeout if it ran out.", plural(taken, "transaction"))
	}
	if err != nil {
		return err
	}
	result := struct {
		TakenBack    int    `json:"takenBack"`
		AnchorNumber uint64 `json:"anchorNumber"`
		AnchorHash   string `json:"anchorHash"`
	}{taken, plan.Anchor.Number, plan.Anchor.Hash.Hex()}
	return c.Print(con.Stdout, result, func(w io.Writer) {
		fmt.Fprintf(w, "%s taken back; relayers go on within seconds\n", plural(taken, "transaction"))
	})
}

// describeReorganized prints the plan of takeBack.
func describeReorganized(w io.Writer, plan *admin.Reorganized) {
	switch {
	case plan.Behind:
		fmt.Fprintf(w, "The nodes have the recorded genesis block, and block %d is their newest; block %d has been seen. If they are syncing, wait until they have it.\n",
			plan.Head, plan.Known.Anchor.Number)
	case plan.Anchor != plan.Known.Anchor:
		fmt.Fprintf(w, "The nodes have block %d as %s; %s was recorded.\n", plan.Anchor.Number, plan.Anchor.Hash, plan.Known.Anchor.Hash)
	default:
		fmt.Fprintf(w, "The nodes have the recorded block %d, %s.\n", plan.Anchor.Number, plan.Anchor.Hash)
	}
	if len(plan.Vanished) == 0 {
		fmt.Fprintln(w, "No transaction has lost its block.")
		return
	}
	var rows [][]string
	for _, v := range plan.Vanished {
		rows = append(rows, []string{lower(v.Address), v.Pool, strconv.Itoa(v.Final), strconv.Itoa(v.Mined)})
	}
	fmt.Fprintln(w, "The blocks of these transactions are gone:")
	table(w, "KEY POOL FINAL MINED", rows)
}

// startOver accepts another history.
func (c *KeysResyncCmd) startOver(ctx context.Context, con *Console, client *evm.Client) error {
	a, limited, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	plan, err := a.NewChain(limited, client)
	if err != nil {
		return err
	}
	if err := confirm(ctx, con, c.OutputFlags, c.Yes, func(w io.Writer) { describe(w, plan) }, "Drop that, and start again on the chain as it is now?"); err != nil {
		return err
	}
	// A person may have taken long.
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	dropped, err := a.StartOver(limited, client, plan)
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	result := struct {
		Dropped int    `json:"dropped"`
		Genesis string `json:"genesis"`
	}{dropped, plan.Genesis.Hex()}
	return c.Print(con.Stdout, result, func(w io.Writer) {
		fmt.Fprintf(w, "%s dropped; relayers go on within seconds\n", plural(dropped, "transaction"))
	})
}

// describe prints what starting over means.
func describe(w io.Writer, plan *admin.NewChain) {
	fmt.Fprintf(w, "The nodes have genesis block %s, the store has %s.\n", plan.Genesis, plan.Known.Genesis)
	if len(plan.Doomed) == 0 {
		fmt.Fprintln(w, "Nothing is pending on the chain before.")
		return
	}
	var rows [][]string
	for _, d := range plan.Doomed {
		rows = append(rows, []string{lower(d.Address), d.Pool, strconv.Itoa(d.Pending), strconv.Itoa(d.Mined)})
	}
	fmt.Fprintln(w, "These transactions would be dropped:")
	table(w, "KEY POOL PENDING MINED", rows)
}
