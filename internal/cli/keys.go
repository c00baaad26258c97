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

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// KeysCmd has the commands for a pool's keys.
type KeysCmd struct {
	List   keysListCmd   `cmd:"" help:"List keys and their state."`
	Pause  keysPauseCmd  `cmd:"" changes:"" help:"Assign no new transactions to keys; those that they have go on."`
	Resume keysResumeCmd `cmd:"" changes:"" help:"Assign new transactions to paused or drained keys again."`
	Resync KeysResyncCmd `cmd:"" changes:"" help:"Compare keys with the chain, and repair counters and gaps; or accept a chain with another history."`
	Drain  keysDrainCmd  `cmd:"" changes:"" help:"Pause a key, and wait until all its transactions are final."`
}

// KeyState is a key, for scripts. Amounts are wei, in decimal digits.
type KeyState struct {
	Address        string            `json:"address"`
	Usable         bool              `json:"usable"` // it may get something new
	Enabled        bool              `json:"enabled"`
	DisabledReason string            `json:"disabledReason"`
	DisabledUntil  relayer.Timestamp `json:"disabledUntil"` // when it is looked into again
	Funding        bool              `json:"funding"`       // it funds the others, and gets no callers' transactions
	Paused         bool              `json:"paused"`
	Draining       bool              `json:"draining"`
	StuckSince     relayer.Timestamp `json:"stuckSince"`
	Pending        int               `json:"pending"`
	NextNonce      uint64            `json:"nextNonce"`
	ChainNonce     *uint64           `json:"chainNonce"` // mined, as a node counts; null where none was asked
	Balance        *string           `json:"balance"`
	MinBalance     *string           `json:"minBalance"`
	LastError      string            `json:"lastError"`
	LastSeenAt     relayer.Timestamp `json:"lastSeenAt"`

	key *relayer.Key
}

func keyStateOf(k *relayer.Key) KeyState {
	return KeyState{
		Address: lower(k.Address), Usable: k.Usable(), Enabled: k.Enabled, DisabledReason: k.DisabledReason,
		DisabledUntil: relayer.Timestamp{Time: k.DisabledUntil}, Funding: k.Funding, Paused: k.Paused,
		Draining: k.Draining, StuckSince: relayer.Timestamp{Time: k.StuckSince}, Pending: k.PendingCount, NextNonce: k.NextNonce,
		Balance: relayer.Decimal(k.Balance), MinBalance: relayer.Decimal(k.MinBalance), LastError: k.LastError, LastSeenAt: relayer.Timestamp{Time: k.LastSeenAt}, key: k,
	}
}

// state says why a key gets nothing new, or "ok".
func (k *KeyState) state() string {
	var why []string
	if k.Funding {
		why = append(why, "funds the others")
	}
	if k.Draining {
		why = append(why, "draining")
	} else if k.Paused {
		why = append(why, "paused")
	}
	if !k.Enabled {
		why = append(why, strings.TrimSuffix("disabled: "+k.DisabledReason, ": "))
	}
	if !k.StuckSince.IsZero() {
		why = append(why, "stuck for "+age(k.StuckSince.Time))
	}
	if len(why) == 0 {
		return "ok"
	}
	return strings.Join(why, ", ")
}

func (k *KeyState) row() []string {
	seen := "never"
	if !k.LastSeenAt.IsZero() {
		seen = age(k.LastSeenAt.Time)
	}
	return []string{
		k.Address, k.state(), strconv.Itoa(k.Pending), strconv.FormatUint(k.NextNonce, 10), text(k.ChainNonce),
		withUnit(k.key.Balance), withUnit(k.key.MinBalance), seen, k.LastError,
	}
}

type keysListCmd struct {
	OutputFlags
	poolFlags
	nodeFlags
}

func (keysListCmd) Help() string {
	return `CHAIN is how many transactions of the key are mined, where a node is given (--rpc-urls). It is NEXT less PENDING, unless blocks
came in between, or another sender uses the key. One ether is 10^18 wei, whatever the chain calls it.`
}

func (c *keysListCmd) Check(p *config.Problems) {
	c.nodeFlags.check(p, c.poolFlags.check(p), c.ChainID)
}

func (c *keysListCmd) Run(ctx context.Context, con *Console) error {
	a, ctx, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	keys, err := a.Keys(ctx)
	if err != nil {
		return err
	}
	queued, err := a.Store.Queued(ctx)
	if err != nil {
		return err
	}
	list := struct {
		Pool       string     `json:"pool"`
		ChainID    uint64     `json:"chainId"`
		Keys       []KeyState `json:"keys"`
		Queued     int        `json:"queued"`     // transactions that wait for a key
		ChainError string     `json:"chainError"` // why chainNonce is null though a node was asked
	}{c.PoolID, c.ChainID, []KeyState{}, queued, ""}
	for _, k := range keys {
		list.Keys = append(list.Keys, keyStateOf(k))
	}
	if len(c.RPCURLs) > 0 {
		counts, err := c.counts(ctx, keys)
		if err != nil {
			list.ChainError = err.Error()
		}
		for i := range counts {
			list.Keys[i].ChainNonce = &counts[i]
		}
	}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		var rows [][]string
		for _, k := range list.Keys {
			rows = append(rows, k.row())
		}
		table(w, "KEY STATE PENDING NEXT CHAIN BALANCE LEAST SEEN ERROR", rows)
		fmt.Fprintf(w, "%s of pool %s on chain %d, %s waiting\n", plural(len(rows), "key"), list.Pool, list.ChainID, plural(queued, "transaction"))
		if list.ChainError != "" {
			fmt.Fprintln(w, "the nodes could not be asked: "+strings.Map(printable, list.ChainError))
		}
	})
}

// counts are how many transactions of each key are mined.
func (c *keysListCmd) counts(ctx context.Context, keys []*relayer.Key) ([]uint64, error) {
	client, err := c.client(c.ChainID)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	view, err := client.Latest(ctx)
	if err != nil {
		return nil, err
	}
	addresses := make([]common.Address, len(keys))
	for i, k := range keys {
		addresses[i] = k.Address
	}
	return view.Nonces(ctx, addresses)
}

// keyArgs are keys, or all of the pool.
type keyArgs struct {
	Key []string `arg:"" optional:"" help:"Addresses of keys."`
	All bool     `help:"All keys of the pool."`
}

func (k *keyArgs) check(p *config.Problems) {
	if k.All == (len(k.Key) > 0) {
		p.Addf(&k.All, "", "give addresses of keys, or --all")
	}
}

// keys reads those that are meant.
func (k *keyArgs) keys(ctx context.Context, a *admin.Admin) ([]*relayer.Key, error) {
	var addresses []common.Address
	for _, s := range k.Key {
		if !common.IsHexAddress(s) {
			return nil, UsageError{Err: fmt.Errorf("%q is not the address of a key: give 0x and 40 hexadecimal digits", s)}
		}
		addresses = append(addresses, common.HexToAddress(s))
	}
	keys, err := a.Keys(ctx, addresses...)
	if _, ok := errors.AsType[*admin.UnknownKeyError](err); ok {
		return nil, WithFix(err, `"rollcall keys list" shows those it has.`)
	}
	return keys, err
}

type keysPauseCmd struct {
	keyArgs
	OutputFlags
	poolFlags
}

func (c *keysPauseCmd) Check(p *config.Problems) {
	c.keyArgs.check(p)
	c.poolFlags.check(p)
}

func (c *keysPauseCmd) Run(ctx context.Context, con *Console) error {
	return pauseKeys(ctx, con, &c.keyArgs, &c.poolFlags, c.OutputFlags, true)
}

type keysResumeCmd struct {
	keyArgs
	OutputFlags
	poolFlags
}

func (c *keysResumeCmd) Check(p *config.Problems) {
	c.keyArgs.check(p)
	c.poolFlags.check(p)
}

func (c *keysResumeCmd) Run(ctx context.Context, con *Console) error {
	return pauseKeys(ctx, con, &c.keyArgs, &c.poolFlags, c.OutputFlags, false)
}

func pauseKeys(ctx context.Context, con *Console, args *keyArgs, pool *poolFlags, o OutputFlags, paused bool) error {
	a, ctx, end, err := pool.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	keys, err := args.keys(ctx, a)
	if err != nil {
		return err
	}
	var results []ActionResult
	for _, k := range keys {
		before := *k
		k.Paused, k.Draining = paused, false
		now := keyStateOf(k)
		detail := "paused"
		switch {
		case paused && before.Paused && !before.Draining:
			detail = "was paused already"
		case !paused && now.Usable:
			detail = "resumed"
		case !paused:
			detail = "resumed, and still gets nothing new: " + now.state()
		}
		if paused && k.PendingCount > 0 {
			detail += fmt.Sprintf(", with %d pending that go on", k.PendingCount)
		}
		results = append(results, resultOf(now.Address, detail, a.Pause(ctx, k.Address, paused)))
	}
	return report(con, o, results, "rollcall keys list")
}

type keysDrainCmd struct {
	Key  string        `arg:"" help:"Address of the key."`
	Wait time.Duration `default:"10m" min:"0s" max:"24h" help:"How long to wait until all is final; 0s only pauses it, and looks."`
	OutputFlags
	poolFlags
}

func (keysDrainCmd) Help() string {
	return `It is over when nothing that the key has can change any more: mined, and as deep as the relayers want it. Then the key may be
taken away from them; while it is theirs, "rollcall keys resume" lets it have new transactions. What was posted to this very
key, and not to the pool, waits for that. Interrupted, or out of time, the key stays paused.`
}

func (c *keysDrainCmd) Check(p *config.Problems) { c.check(p) }

// DrainProgress is how a drain stands, for scripts: a line each time that it changes.
type DrainProgress struct {
	Key     string `json:"key"`
	Pending int    `json:"pending"` // not mined
	Mined   int    `json:"mined"`   // not deep enough
	Waiting int    `json:"waiting"` // for this key alone
	Drained bool   `json:"drained"`
}

func (d DrainProgress) print(w io.Writer, o OutputFlags) error {
	if o.Output == "json" {
		return printJSONLine(w, d)
	}
	what := fmt.Sprintf("%d pending, %d mined and not final", d.Pending, d.Mined)
	if d.Drained {
		what = "drained, and paused"
	}
	if d.Waiting > 0 {
		what += fmt.Sprintf("; %d posted to this very key wait for it", d.Waiting)
	}
	_, err := fmt.Fprintf(w, "%s: %s\n", d.Key, what)
	return err
}

func (c *keysDrainCmd) Run(ctx context.Context, con *Console) error {
	a, limited, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	keys, err := (&keyArgs{Key: []string{c.Key}}).keys(limited, a)
	if err != nil {
		return err
	}
	key := keys[0].Address
	state := DrainProgress{Key: lower(key)}
	tell := func(n store.Load) {
		state.Pending, state.Mined, state.Waiting = n.Pending, n.Mined, n.Waiting
		if n.Pending+n.Mined > 0 {
			_ = state.print(con.Stdout, c.OutputFlags) // the last line's error counts
		}
	}
	// However short the wait: the key is paused, or it is said that it is not.
	left, over, err := a.Drain(limited, key)
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	tell(left)
	waiting, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	if !over {
		err = a.AwaitDrained(waiting, key, left, tell)
	}
	switch {
	case err == nil:
		state.Drained = true
		return state.print(con.Stdout, c.OutputFlags)
	case errors.Is(err, admin.ErrResumed):
		return err
	case waiting.Err() != nil:
		return WithFix(fmt.Errorf("%s is paused, with %s not final yet", state.Key, plural(state.Pending+state.Mined, "transaction")),
			`Drain it again to go on waiting, longer with --wait, or let it work again with "rollcall keys resume".`)
	}
	return uncertain(err, "rollcall keys list")
}

// KeysResyncCmd compares keys with the chain and corrects differences.
type KeysResyncCmd struct {
	keyArgs
	SetNonce    *uint64 `placeholder:"N" help:"Move the next nonce of one key to N, up or down, where no transaction was ever signed for N or above."`
	Reorganized bool    `help:"The chain was reorganized deeper than final transactions: make those pending again whose blocks are gone, keep nonces and signed bytes, and go on with the chain as it is."`
	NewChain    bool    `help:"The chain has another genesis block now, on purpose: drop what was pending on the one before, and begin each key at the new one's count."`
	Yes         bool    `help:"Do not ask before something is taken back, skipped or dropped."`
	OutputFlags
	poolFlags
	nodeFlags
}

// Help returns the details of the help.
func (KeysResyncCmd) Help() string {
	return fmt.Sprintf(`It counts the pending transactions again; moves the next nonce up to the highest count, mined or pending, that any
node reports, if another sender has used the key; and fills nonces below it that no transaction has with no-ops, which relayers
sign. It never moves a nonce down and drops nothing. It enables a key again that was stopped for a nonce jump. It refuses nodes
that count differently, and asks before it moves a nonce by more than %d.

With --set-nonce a key's next nonce moves to N. Down it moves only where nothing was signed for N or above, and no node knows of
a transaction there. Accepted transactions that had such a nonce wait in the queue again. Up it leaves nonces without a
transaction, at most 1,000, which relayers fill with no-ops, RELAYER_NOOPS_PER_HOUR in an hour.

Relayers send nothing on a chain with another history than the recorded one, until an operator allows it for all pools on the
chain. With the same genesis block it is a deep reorganization, and all signed bytes are still valid: --reorganized makes
transactions pending again whose blocks are gone, also final ones, tells their webhook targets, and has relayers send the same
bytes again. It may be repeated, and does the rest where it was interrupted. With another genesis block it is another chain:
--new-chain drops what was pending.`, tracker.DefaultMaxNonceJump)
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
		return c.setNonce(limited, con, a, client, keys[0])
	}
	counts, err := a.Count(limited, client, keys)
	if err != nil {
		return uncertain(err, "rollcall keys list")
	}
	if slices.ContainsFunc(counts, func(n admin.KeyCount) bool { return n.Jump() > 0 }) {
		if err := confirm(con, c.OutputFlags, c.Yes, func(w io.Writer) { describeJumps(w, counts) }, "Skip those nonces?"); err != nil {
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

// describeJumps prints the keys whose next nonce would be raised far.
func describeJumps(w io.Writer, counts []admin.KeyCount) {
	var rows [][]string
	for _, n := range counts {
		if n.Jump() > 0 {
			rows = append(rows, []string{
				lower(n.Key.Address), strconv.FormatUint(n.Key.NextNonce, 10), strconv.FormatUint(n.Mined, 10), strconv.FormatUint(n.Pending, 10),
			})
		}
	}
	fmt.Fprintln(w, "The nodes count many more transactions of these keys than relayers have sent. If no other sender made them, a node is wrong:")
	table(w, "KEY NEXT MINED PENDING", rows)
}

// setNonce moves a key's next nonce.
func (c *KeysResyncCmd) setNonce(ctx context.Context, con *Console, a *admin.Admin, client *evm.Client, key *relayer.Key) error {
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
	if err := confirm(con, c.OutputFlags, c.Yes, func(w io.Writer) { describeReorganized(w, plan) }, "Make these pending again, and go on with the chain as it is now?"); err != nil {
		return err
	}
	// A person may have taken long.
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	taken, err := a.TakeBack(limited, client, plan)
	if err != nil {
		if taken == 0 && admin.OutcomeOf(err) != admin.Unknown {
			return err
		}
		return WithFix(&gateway.UnknownOutcomeError{Cause: err.Error(), Err: err},
			"%s taken back for certain. Repeat the command for the rest, with a longer --timeout if it ran out.", plural(taken, "transaction"))
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
	if err := confirm(con, c.OutputFlags, c.Yes, func(w io.Writer) { describe(w, plan) }, "Drop that, and start again on the chain as it is now?"); err != nil {
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
