package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

type keyList struct {
	Pool       string         `json:"pool"`
	ChainID    uint64         `json:"chainId"`
	Keys       []cli.KeyState `json:"keys"`
	Queued     int            `json:"queued"`
	ChainError string         `json:"chainError"`
}

func (r *localRelayer) list(t *testing.T, args ...string) keyList {
	t.Helper()
	return read[keyList](t, r.operator(append([]string{"keys", "list"}, args...)...)...)
}

// interrupting is an output whose reader interrupts a question.
type interrupting struct{ interrupt func() }

func (i *interrupting) Write(b []byte) (int, error) {
	if strings.HasSuffix(string(b), "Type yes: ") {
		i.interrupt()
	}
	return len(b), nil
}

func TestKeysList_EveryState_IsShown(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 4, nil)
	done := r.send(t, 0, "one")
	r.confirm(t, done, relayer.Confirmed)
	r.send(t, 0, "two")
	_, err := r.db.Exec(t.Context(), `UPDATE relayer_keys SET enabled = address <> $1, disabled_reason = CASE address WHEN $1 THEN 'low balance' ELSE '' END,
		stuck_since = CASE address WHEN $2 THEN now() - interval '7 minutes' END, draining = address = $2, paused = address = $2,
		funding = address = $3, last_error = CASE address WHEN $1 THEN 'insufficient funds' ELSE '' END, balance_wei = 1234567891234567890, min_balance_wei = 500000000000000000`,
		lower(r.keys[1]), lower(r.keys[2]), lower(r.keys[3]))
	require.NoError(t, err)
	r.Stop() // it would find the second one well

	list := r.list(t, "--rpc-urls", r.chain.URL())
	require.Equal(t, "pool", list.Pool)
	require.Len(t, list.Keys, 4)
	byAddress := map[string]cli.KeyState{}
	for _, k := range list.Keys {
		byAddress[k.Address] = k
	}
	k := byAddress[lower(r.keys[0])]
	require.True(t, k.Usable)
	require.Equal(t, []any{1, uint64(2), uint64(1), "1234567891234567890"}, []any{k.Pending, k.NextNonce, *k.ChainNonce, *k.Balance})
	require.False(t, byAddress[lower(r.keys[1])].Usable)
	require.Equal(t, "low balance", byAddress[lower(r.keys[1])].DisabledReason)
	require.False(t, byAddress[lower(r.keys[2])].StuckSince.IsZero())
	require.Nil(t, r.list(t).Keys[0].ChainNonce)

	out := succeed(t, r.operator("keys", "list", "--rpc-urls", r.chain.URL())...)
	require.Regexp(t, `^KEY +STATE +PENDING +NEXT +CHAIN +BALANCE +LEAST +SEEN +ERROR\n`, out)
	require.Regexp(t, lower(r.keys[0])+` +ok +1 +2 +1 +1.234567 ether +0.5 ether +\d+s +-\n`, out)
	require.Regexp(t, lower(r.keys[1])+` +disabled: low balance +0 +0 +0 +1.234567 ether +0.5 ether +\d+s +insufficient funds\n`, out)
	require.Regexp(t, lower(r.keys[2])+` +draining, stuck for 7m +0 +0 +0 `, out)
	require.Regexp(t, lower(r.keys[3])+` +funds the others +0 `, out)
	require.Contains(t, out, "4 keys of pool pool on chain 1337, 0 transactions waiting\n")

	// A node that is away hides nothing.
	list = r.list(t, "--rpc-urls", "http://"+freeAddress(t)+"/v2/secret")
	require.Contains(t, list.ChainError, "connection refused")
	require.NotContains(t, list.ChainError, "secret")
	require.Len(t, list.Keys, 4)
	out = succeed(t, r.operator("keys", "list", "--rpc-urls", "http://"+freeAddress(t))...)
	require.Regexp(t, `\nthe nodes could not be asked: .*connection refused`, out)
}

func TestKeysPause_KeyOrAll_TakesNoNewTransactions(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 2, nil)
	r.send(t, 0, "one")
	require.Equal(t, lower(r.keys[0])+": paused, with 1 pending that go on\n", succeed(t, r.operator("keys", "pause", r.keys[0].Hex())...))
	for range 4 {
		tx := r.submit(t, relayertest.PoolID, "two")
		require.Equal(t, r.keys[1], tx.From)
	}
	results := read[[]cli.ActionResult](t, r.operator("keys", "pause", "--all")...)
	require.Len(t, results, 2)
	for _, k := range r.list(t).Keys {
		require.True(t, k.Paused)
	}
	require.Contains(t, succeed(t, r.operator("keys", "pause", lower(r.keys[0]))...), "was paused already")
	_, err := r.db.Exec(t.Context(), `UPDATE relayer_keys SET stuck_since = now() WHERE address = $1`, lower(r.keys[0]))
	require.NoError(t, err)
	out := succeed(t, r.operator("keys", "resume", "--all")...)
	require.Contains(t, out, lower(r.keys[0])+": resumed")
	require.Contains(t, out, lower(r.keys[1])+": resumed\n")
	for _, k := range r.list(t).Keys {
		require.False(t, k.Paused)
	}

	stranger := common.HexToAddress("0x99")
	res := rollcall(t, r.operator("keys", "pause", r.keys[1].Hex(), lower(stranger))...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Equal(t, fmt.Sprintf("rollcall keys pause: not done: pool \"pool\" has no key %s\n\"rollcall keys list\" shows those it has.\n", stranger), res.stderr)
	for _, k := range r.list(t).Keys {
		require.False(t, k.Paused, "all or nothing")
	}
	for want, args := range map[string][]string{
		"give addresses of keys, or --all":  {"keys", "resume"},
		`"x" is not the address of a key`:   {"keys", "pause", "x"},
		`"0x1" is not the address of a key`: {"keys", "drain", "0x1"},
		"leave the keys away":               {"keys", "resync", "--new-chain", lower(stranger), "--rpc-urls", r.chain.URL()},
		"--reorganized: is for all keys":    {"keys", "resync", "--reorganized", lower(stranger), "--rpc-urls", r.chain.URL()},
		"--new-chain: contradicts":          {"keys", "resync", "--new-chain", "--reorganized", "--rpc-urls", r.chain.URL()},
		"--rpc-urls: is missing":            {"keys", "resync", "--all"},
	} {
		res := rollcall(t, r.operator(args...)...)
		require.Equal(t, cli.ExitUsage, res.code, args)
		require.Contains(t, res.stderr, want)
	}
}

func TestKeysDrain_PendingTransactions_AreWaitedFor(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 2, nil)
	tx := r.send(t, 0, "one")
	res := rollcall(t, r.operator("keys", "drain", lower(r.keys[0]), "--wait", "300ms")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Equal(t, lower(r.keys[0])+": 1 pending, 0 mined and not final\n", res.stdout)
	require.Contains(t, res.stderr, "rollcall keys drain: not done: "+lower(r.keys[0])+" is paused, with 1 transaction not final yet\nDrain it again")
	for _, k := range r.list(t).Keys {
		require.Equal(t, k.Address == lower(r.keys[0]), k.Draining)
	}

	b := start(t, r.operator("keys", "drain", lower(r.keys[0]), "-o", "json")...)
	await := func(want cli.DrainProgress) {
		t.Helper()
		want.Key = lower(r.keys[0])
		line, err := json.Marshal(want)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return strings.Contains(b.out.String(), string(line)+"\n") }, 2*time.Minute, 10*time.Millisecond, "%s", &b.out)
	}
	await(cli.DrainProgress{Pending: 1})
	r.chain.Commit()
	await(cli.DrainProgress{Mined: 1})
	r.confirm(t, tx, relayer.Confirmed)
	await(cli.DrainProgress{Drained: true})
	<-b.done
	require.Zero(t, b.code)
	for _, k := range r.list(t).Keys {
		require.False(t, k.Draining)
		require.Equal(t, k.Address == lower(r.keys[0]), k.Paused)
	}
	require.Equal(t, lower(r.keys[0])+": drained, and paused\n", succeed(t, r.operator("keys", "drain", lower(r.keys[0]))...), "with nothing to do")

	// Another operator resumes the key meanwhile.
	r.send(t, 1, "two")
	b = start(t, r.operator("keys", "drain", lower(r.keys[1]))...)
	require.Eventually(t, func() bool { return strings.Contains(b.out.String(), "1 pending") }, 2*time.Minute, 10*time.Millisecond)
	succeed(t, r.operator("keys", "resume", lower(r.keys[1]))...)
	<-b.done
	require.Equal(t, cli.ExitNotDone, b.code)
	require.Contains(t, b.log.String(), "the key was resumed while it was drained")
}

// A key is said to be paused only when it is, however short the wait.
func TestKeysDrain_NoWait_PausesAllTheSame(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 3, nil)
	r.send(t, 0, "one")
	busy, idle, held := lower(r.keys[0]), lower(r.keys[1]), lower(r.keys[2])
	res := rollcall(t, r.operator("keys", "drain", busy, "--wait", "0s")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, busy+" is paused, with 1 transaction not final yet\n")
	require.Equal(t, idle+": drained, and paused\n", succeed(t, r.operator("keys", "drain", idle, "--wait", "0s")...))

	// The pause itself waits for the transaction that holds the key's row, and its outcome is unknown.
	tx, err := r.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM relayer_keys WHERE address = $1 FOR UPDATE`, held)
	require.NoError(t, err)
	res = rollcall(t, r.operator("keys", "drain", held, "--wait", "100ms", "--timeout", "5s")...)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, cli.ExitUnknown, res.code, res.stderr)
	require.Contains(t, res.stderr, `Look before you repeat it: "rollcall keys list".`)
	for _, k := range r.list(t).Keys {
		if k.Address != held {
			require.True(t, k.Paused, k.Address)
			require.Equal(t, k.Address == busy, k.Draining, k.Address)
		}
	}
}

// keys resync mends a key's counts: here after another sender's transaction, a wrong count and a gap.
func TestKeysResync_CountsAndGap_AreRepaired(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, nil)
	tx := r.send(t, 0, "one")
	r.confirm(t, tx, relayer.Confirmed)
	resync := r.operator("keys", "resync", "--all", "--rpc-urls", r.chain.URL())
	require.Equal(t, lower(r.keys[0])+": nothing to repair, next nonce 1, 0 pending\n", succeed(t, resync...))
	r.Stop() // its tracker would repair it as well

	foreign(t, r, 1)
	foreign(t, r, 2)
	r.chain.Commit()
	_, err := r.db.Exec(t.Context(), `UPDATE relayer_keys SET pending_count = 7`)
	require.NoError(t, err)
	found := read[[]cli.Resynced](t, resync...)
	require.Equal(t, []cli.Resynced{{Key: lower(r.keys[0]), ChainNonce: 3, PendingWas: 7, NextWas: 1, Next: 3, Filled: []uint64{}}}, found)
	require.Contains(t, succeed(t, resync...), "nothing to repair")

	_, err = r.db.Exec(t.Context(), `UPDATE relayer_keys SET next_nonce = 6`)
	require.NoError(t, err)
	require.Equal(t, lower(r.keys[0])+": 3 nonces without a transaction, from 3 on, get no-ops\n", succeed(t, resync...))
	require.Contains(t, succeed(t, resync...), "nothing to repair, next nonce 6, 3 pending")

	// The next relayer signs them.
	r.Relayer = relayertest.Start(t, relayertest.Options{DatabaseURL: r.url, RPC: []string{r.chain.URL()}, Ring: signertest.Ring(t, t.Name(), 1)})
	last := r.send(t, 0, "two")
	require.Equal(t, uint64(6), *last.Nonce)
	r.confirm(t, last, relayer.Confirmed)
	kinds := read[listed](t, r.operator("tx", "list", "--all")...)
	require.Equal(t, relayer.KindNoop, kinds.Transactions[1].Kind)
}

// foreign sends a transaction with a key, past the relayer.
func foreign(t *testing.T, r *localRelayer, nonce uint64) {
	t.Helper()
	key, err := crypto.ToECDSA(signertest.Keys(t, t.Name(), 1)[0].Bytes)
	require.NoError(t, err)
	signed := types.MustSignNewTx(key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)), &types.LegacyTx{
		Nonce: nonce, To: &common.Address{1}, Gas: 21_000, GasPrice: big.NewInt(3_000_000_000),
	})
	require.NoError(t, r.chain.Client().SendTransaction(t.Context(), signed))
}

// A chain with another history is refused, by resync as by relayers, until an operator says that it is meant.
func TestKeysResync_NewChain_NeedsTheFlag(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, func(o *relayertest.Options) { o.Targets = []string{"api"} })
	done := r.send(t, 0, "one")
	r.confirm(t, done, relayer.Confirmed)
	pending := r.send(t, 0, "two")
	res := rollcall(t, r.operator("keys", "resync", "--new-chain", "--yes", "--rpc-urls", r.chain.URL())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "the nodes have the very history that transactions were sent on: there is nothing to start over")
	r.Stop()

	other := testchain.Simulated(t, testchain.SimulatedOptions{})
	other.Fund(testchain.Ether(1), r.keys...)
	res = rollcall(t, r.operator("keys", "resync", "--all", "--rpc-urls", other.URL())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "rollcall keys resync: not done: the chain has another history")

	args := r.operator("keys", "resync", "--new-chain", "--rpc-urls", other.URL())
	res = rollcall(t, args...) // standard input is empty
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stdout, "The nodes have genesis block 0x")
	require.Regexp(t, lower(r.keys[0])+` +pool +1 +0\n`, res.stdout)
	require.Contains(t, res.stderr, "not done: the standard input ended before an answer\nConfirm beforehand, with --yes.")
	ask := func(ctx context.Context, stdin io.Reader, out io.Writer) error {
		c := cli.KeysResyncCmd{NewChain: true}
		c.DatabaseURL, c.Timeout, c.PoolID, c.ChainID, c.RPCURLs = r.url, time.Minute, "pool", testchain.ChainID, []string{other.URL()}
		return c.Run(ctx, &cli.Console{Stdin: stdin, Stdout: out, Stderr: out})
	}
	say := func(answer string) (string, error) {
		var out bytes.Buffer
		err := ask(t.Context(), strings.NewReader(answer), &out)
		return out.String(), err
	}
	_, err := say("no\n")
	require.EqualError(t, err, "it was not confirmed")

	silence, keyboard := io.Pipe()
	defer keyboard.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	err = ask(ctx, silence, &interrupting{interrupt})
	require.EqualError(t, err, "the question has no answer")
	require.Equal(t, 1, read[listed](t, r.operator("tx", "list", "--status", "open")...).Total, "nothing was dropped")

	out, err := say("yes\n")
	require.NoError(t, err)
	require.Contains(t, out, "Type yes: ")
	require.Contains(t, out, "1 transaction dropped; relayers go on within seconds\n")
	h := read[gotten](t, r.operator("tx", "get", pending.ID.String())...).Transactions[0]
	require.Equal(t, relayer.Dropped, h.Status)
	require.Len(t, h.Webhooks, 2, "its target hears of it")

	r.chain = other
	r.Relayer = relayertest.Start(t, relayertest.Options{DatabaseURL: r.url, RPC: []string{other.URL()}, Ring: signertest.Ring(t, t.Name(), 1)})
	next := r.send(t, 0, "three")
	require.Zero(t, *next.Nonce)
	r.confirm(t, next, relayer.Confirmed)
}

func TestKeysResync_Reorganized_TransactionIsPendingAgain(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, func(o *relayertest.Options) { o.Targets = []string{"api"} })
	parent := r.chain.Commit()
	tx := r.send(t, 0, "one")
	r.confirm(t, tx, relayer.Confirmed)
	args := r.operator("keys", "resync", "--reorganized", "--rpc-urls", r.chain.URL())
	res := rollcall(t, append(args, "--yes")...)
	require.Equal(t, 0, res.code, res.stderr)
	require.Contains(t, res.stdout, "No transaction has lost its block.\n0 transactions taken back; relayers go on within seconds\n")

	r.Stop()
	head, err := r.chain.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	r.chain.Fork(parent)
	r.chain.Rollback()
	for n := uint64(0); n <= head; {
		r.chain.AdjustTime(time.Hour)
		n, err = r.chain.Client().BlockNumber(t.Context())
		require.NoError(t, err)
	}
	res = rollcall(t, args...) // standard input is empty
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Regexp(t, lower(r.keys[0])+` +pool +1 +0\n`, res.stdout)
	require.Contains(t, res.stderr, "not done: the standard input ended before an answer\nConfirm beforehand, with --yes.")
	require.Equal(t, relayer.Confirmed, read[gotten](t, r.operator("tx", "get", tx.ID.String())...).Transactions[0].Status)
	done := read[struct{ TakenBack int }](t, append(args, "--yes")...)
	require.Equal(t, 1, done.TakenBack)
	now := read[gotten](t, r.operator("tx", "get", tx.ID.String())...).Transactions[0]
	require.Equal(t, relayer.Broadcasted, now.Status)
	require.Equal(t, now.Revision, now.Webhooks[len(now.Webhooks)-1].Revision, "its target is told")
}

// A node counts many more transactions of a key than relayers have sent: resync asks before it skips the nonces. Foreign
// transactions that are pending are not outbid by no-ops.
func TestKeysResync_NodesCountManyMore_Asks(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, nil)
	tx := r.send(t, 0, "one")
	r.confirm(t, tx, relayer.Confirmed)
	r.Stop()
	node, err := proxy.Open(proxy.Config{HTTP: r.chain.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	args := r.operator("keys", "resync", "--all", "--rpc-urls", node.URL())
	node.SetRules(proxy.Rule{
		Name: "too many", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x1f4"`},
		When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), "pending") },
	})
	res := rollcall(t, args...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Regexp(t, "KEY +NEXT +MINED +PENDING", res.stdout)
	require.Regexp(t, lower(r.keys[0])+" +1 +1 +500", res.stdout)
	require.Contains(t, res.stderr, "the standard input ended before an answer")
	node.SetRules()
	require.Contains(t, succeed(t, args...), "nothing to repair, next nonce 1, 0 pending")

	// Two foreign transactions are pending. The node reports them in one of three readings.
	foreign(t, r, 1)
	foreign(t, r, 2)
	node.SetRules(proxy.Rule{
		Name: "too few", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x1"`}, Limit: 1,
		When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), "pending") },
	})
	found := read[[]cli.Resynced](t, args...)
	require.Equal(t, []cli.Resynced{{Key: lower(r.keys[0]), ChainNonce: 1, NextWas: 1, Next: 3, Filled: []uint64{}}}, found)

	node.SetRules(proxy.Rule{Name: "many more", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x1f4"`}})
	require.Equal(t, cli.ExitNotDone, rollcall(t, append(args, "--max-nonce-jump", "496")...).code)
	found = read[[]cli.Resynced](t, append(args, "--max-nonce-jump", "497")...) // without a question
	require.Equal(t, uint64(500), found[0].Next)
}

// A next nonce that one false answer has left far too high is taken back, where nothing was ever signed for it.
func TestKeysResync_SetNonce(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, nil)
	tx := r.send(t, 0, "one")
	r.confirm(t, tx, relayer.Confirmed)
	r.Stop()
	_, err := r.db.Exec(t.Context(), `UPDATE relayer_keys SET next_nonce = 1::bigint << 40, enabled = false, disabled_reason = 'nonce jump: of a test'`)
	require.NoError(t, err)
	key := lower(r.keys[0])
	set := func(more ...string) result {
		t.Helper()
		return rollcall(t, r.operator(append([]string{"keys", "resync", "--rpc-urls", r.chain.URL()}, more...)...)...)
	}
	for _, wrong := range [][]string{{"--all", "--set-nonce", "1"}, {key, key, "--set-nonce", "1"}, {"--set-nonce", "1"}, {"--new-chain", "--set-nonce", "1"}} {
		require.Equal(t, cli.ExitUsage, set(wrong...).code, wrong)
	}
	res := set(key)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "give the right one with --set-nonce")
	res = set(key, "--set-nonce", "0")
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "the nodes count 1 transactions mined or pending; give 1 or more")
	require.Contains(t, succeed(t, r.operator("keys", "list")...), "disabled: nonce jump: of a test")
	require.Equal(t, key+": the next nonce was 1099511627776 and is 1; the key is enabled again\n",
		succeed(t, r.operator("keys", "resync", "--rpc-urls", r.chain.URL(), key, "--set-nonce", "1")...))
	require.Contains(t, succeed(t, r.operator("keys", "resync", "--rpc-urls", r.chain.URL(), key)...), "nothing to repair, next nonce 1, 0 pending")

	res = set(key, "--set-nonce", "66")
	require.Equal(t, cli.ExitNotDone, res.code, "it was not confirmed")
	require.Contains(t, res.stdout, "Relayers fill the 65 nonces up to 66 with no-ops, which cost gas.\nSkip those nonces? Type yes: ")
	require.Contains(t, succeed(t, r.operator("keys", "resync", "--rpc-urls", r.chain.URL(), key)...), "nothing to repair, next nonce 1, 0 pending")
	res = set(key, "--set-nonce", "1002", "--yes")
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "leaves 1001 nonces without a transaction")
	require.Contains(t, res.stderr, "give 1001 or less")

	r.Relayer = relayertest.Start(t, relayertest.Options{DatabaseURL: r.url, RPC: []string{r.chain.URL()}, Ring: signertest.Ring(t, t.Name(), 1)})
	last := r.send(t, 0, "two")
	require.Equal(t, uint64(1), *last.Nonce)
	r.confirm(t, last, relayer.Confirmed)
	res = set(key, "--set-nonce", "1")
	require.Equal(t, cli.ExitNotDone, res.code)
}
