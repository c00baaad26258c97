package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
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
	return admin.CountMined(ctx, client, keys)
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
		was, is, err := a.Pause(ctx, k.Address, paused)
		detail := ""
		if err == nil {
			detail = pauseDetail(was, is)
		}
		results = append(results, resultOf(lower(k.Address), detail, err))
	}
	return report(con, o, results, "rollcall keys list")
}

// pauseDetail describes a key that was paused or resumed.
func pauseDetail(was, is *relayer.Key) string {
	switch now := keyStateOf(is); {
	case !is.Paused && is.Usable():
		return "resumed"
	case !is.Paused:
		return "resumed, and still gets nothing new: " + now.state()
	}
	detail := "paused"
	if was.Paused && !was.Draining {
		detail = "was paused already"
	}
	if is.PendingCount > 0 {
		detail += fmt.Sprintf(", with %d pending that go on", is.PendingCount)
	}
	return detail
}
