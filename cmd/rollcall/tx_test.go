package main

import (
	"bytes"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

type listed struct {
	Total        int               `json:"total"`
	AtLeast      bool              `json:"at_least"`
	Transactions []cli.Transaction `json:"transactions"`
}

type gotten struct {
	Transactions []cli.History `json:"transactions"`
}

func TestTxList_Filters_SelectTransactions(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 2, func(o *relayertest.Options) { o.Targets = []string{"api"} })
	first, second := r.send(t, 0, "fill"), r.send(t, 1, "cancelOrder")
	r.confirm(t, first, relayer.Confirmed)
	third := r.send(t, 0, "fill")

	ids := func(args ...string) []string {
		l := read[listed](t, r.operator(append([]string{"tx", "list"}, args...)...)...)
		out := []string{}
		for _, tx := range l.Transactions {
			out = append(out, tx.ID.String())
		}
		return out
	}
	require.Equal(t, []string{third.ID.String(), second.ID.String(), first.ID.String()}, ids())
	require.Equal(t, []string{third.ID.String(), first.ID.String()}, ids("--key", r.keys[0].Hex()))
	mistyped := []byte(r.keys[0].Hex())
	i := bytes.IndexFunc(mistyped[2:], unicode.IsLetter) + 2
	mistyped[i] ^= 'a' ^ 'A'
	res := rollcall(t, r.operator("tx", "list", "--key", string(mistyped))...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, "--key: the checksum of "+string(mistyped)+" is wrong")
	res = rollcall(t, r.operator("tx", "list", "--key", "0x12")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, `--key: must be an address, 0x and 40 hex digits, not "0x12"`)
	require.Equal(t, []string{third.ID.String()}, ids("--status", "open"))
	require.Equal(t, []string{third.ID.String()}, ids("--status", "broadcasted", "--status", "failed"))
	require.Equal(t, []string{second.ID.String()}, ids("--method", "cancelOrder"))
	require.Equal(t, []string{second.ID.String()}, ids("--request-id", "req-cancelOrder", "--trader", "0xtrader", "--orderbook", "book"))
	require.Empty(t, ids("--trader", "unknown"))
	require.Equal(t, []string{third.ID.String()}, ids("--limit", "1"))

	out := succeed(t, r.operator("tx", "list", "--limit", "2")...)
	require.Regexp(t, `^ID +STATUS +KEY +NONCE +HASH +AGE +METHOD +TRADER +ATTEMPTS\n`, out)
	require.Regexp(t, third.ID.String()+` +broadcasted +`+lower(r.keys[0])+` +1 +`+third.Hash.Hex()[:10]+`… +\d+s +fill +0xtrader +1\n`, out)
	require.Contains(t, out, "the newest 2 of 3 transactions\n")

	for _, ref := range []string{first.ID.String(), first.Hash.Hex(), r.keys[0].Hex() + ":0"} {
		got := read[gotten](t, r.operator("tx", "get", ref)...).Transactions
		require.Len(t, got, 1)
		h := got[0]
		require.Equal(t, first.ID, h.ID)
		require.Equal(t, relayer.Confirmed, h.Status)
		require.Equal(t, "5", h.Value)
		require.False(t, h.ConfirmedAt.IsZero())
		require.NotNil(t, h.BlockNumber)
		require.Len(t, h.Signed, 1)
		require.Equal(t, relayer.AttemptRow{
			Number: 1, Purpose: relayer.PurposeSend, Key: lower(r.keys[0]), Hash: first.Hash.Hex(), MaxFee: h.Signed[0].MaxFee,
			MaxPriorityFee: h.Signed[0].MaxPriorityFee, CreatedAt: h.Signed[0].CreatedAt,
		}, *h.Signed[0])
		require.Len(t, h.Webhooks, 3, "broadcasted, mined, confirmed")
		require.Equal(t, "api", h.Webhooks[0].Target)
	}
	out = succeed(t, r.operator("tx", "get", first.ID.String(), second.ID.String())...)
	require.Regexp(t, `(?m)^status +confirmed$`, out)
	require.Regexp(t, `(?m)^request +req-cancelOrder$`, out)
	require.Regexp(t, `(?m)^1 +send +`+first.Hash.Hex()+` +0 +\d+ +\d+ +\S+Z +-$`, out)

	res = rollcall(t, r.operator("tx", "get", second.ID.String(), r.keys[1].Hex()+":7")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stdout, second.ID.String())
	require.Contains(t, res.stderr, `rollcall tx get: not in pool "pool" on chain 1337: `+r.keys[1].Hex()+":7\n")
	res = rollcall(t, r.operator("tx", "get", "0x12", "x")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, `"0x12" is no transaction's id, nor a hash, nor KEY:NONCE`)
	require.Contains(t, res.stderr, `"x" is no transaction's id`)
	res = rollcall(t, r.operator("tx", "list", "--pool-id", "pond")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, `no relayer has registered keys for pool "pond" on chain 1337: the database has pool@1337`)
	require.Contains(t, res.stderr, "Check --pool-id")
}

// A long history is not counted to its end, and that is said.
func TestTxList_LongHistory_TotalIsAtLeast(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, nil)
	_, err := r.db.Exec(t.Context(), `INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, status, open)
		SELECT gen_random_uuid(), $1, $2, $2, 'me', 'transaction', 'canceled', false FROM generate_series(1, $3)`,
		testchain.ChainID, relayertest.PoolID, store.CountLimit+2)
	require.NoError(t, err)
	require.Contains(t, succeed(t, r.operator("tx", "list", "--limit", "1")...), fmt.Sprintf("\nthe newest 1 of at least %d transactions\n", store.CountLimit+1))
	require.Contains(t, succeed(t, r.operator("tx", "list", "--limit", "3")...), fmt.Sprintf("\nthe newest 3 of %d transactions\n", store.CountLimit+2))
	for limit, atLeast := range map[string]bool{"1": true, "3": false} {
		require.Equal(t, atLeast, read[listed](t, r.operator("tx", "list", "--limit", limit)...).AtLeast)
	}
}

func TestTxCancel_WaitingAndPending_AreCanceled(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, func(o *relayertest.Options) {
		o.Targets = []string{"api"}
		o.Pool = func(c *service.Config) { c.Cap = 2 }
	})
	done := r.send(t, 0, "one")
	r.confirm(t, done, relayer.Confirmed)
	pending, other := r.send(t, 0, "two"), r.send(t, 0, "three")
	waiting := r.submit(t, relayertest.PoolID, "four")
	require.Nil(t, waiting.Nonce)

	res := rollcall(t, r.operator("tx", "cancel", pending.ID.String(), waiting.ID.String(), done.ID.String())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Equal(t, fmt.Sprintf("rollcall tx cancel: not done: %s: cancel: the transaction is confirmed\n", done.ID), res.stderr)
	require.Contains(t, res.stdout, waiting.ID.String()+": canceled: it had no nonce yet\n")
	require.Contains(t, res.stdout, fmt.Sprintf("%s: a no-op is to take its nonce, 1 of %s; it was signed, as attempt 2\n", pending.ID, r.keys[0]))
	r.confirm(t, pending, relayer.Canceled)
	r.confirm(t, other, relayer.Confirmed)

	got := read[gotten](t, r.operator("tx", "get", waiting.ID.String())...).Transactions[0]
	require.Equal(t, relayer.Canceled, got.Status)
	require.Contains(t, got.StatusReason, "canceled by operator")
	require.Len(t, got.Webhooks, 1, "the pool's target hears of it")

	// Without a relayer it is asked for, and done by the next one.
	last := r.send(t, 0, "five")
	r.Stop()
	out := succeed(t, r.operator("tx", "cancel", lower(r.keys[0])+":3", "--wait", "300ms")...)
	require.Contains(t, out, "; no relayer has signed it within 300ms: does one run?")
	require.Regexp(t, last.ID.String()+` +broadcasted \(cancel\)`, succeed(t, r.operator("tx", "list")...))
	require.Contains(t, succeed(t, r.operator("tx", "get", last.ID.String())...), "canceled by operator")
	results := read[[]cli.ActionResult](t, r.operator("tx", "cancel", last.ID.String(), "--wait", "0s")...)
	require.Equal(t, admin.Done, results[0].Outcome, "again")
}

// The tracker signs a bump also of a new transaction that does not block its key.
func TestTxBump_AnyPending_SignsAnotherAttempt(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, nil)
	lowest, second := r.send(t, 0, "one"), r.send(t, 0, "two")
	before := read[gotten](t, r.operator("tx", "get", second.ID.String())...).Transactions[0].Signed
	require.Len(t, before, 1)
	require.Regexp(t, "^"+second.ID.String()+`: attempt 2 offers \d+ wei for a unit of gas, attempt 1 did `+before[0].MaxFee+"\n$",
		succeed(t, r.operator("tx", "bump", second.ID.String())...))
	require.Regexp(t, "attempt 3 offers", succeed(t, r.operator("tx", "bump", second.Hash.Hex())...), "again, by its first hash")
	h := read[gotten](t, r.operator("tx", "get", second.ID.String())...).Transactions[0]
	require.Len(t, h.Signed, 3)
	require.False(t, h.BumpAskedAt.IsZero())
	was, _ := new(big.Int).SetString(h.Signed[0].MaxFee, 10)
	is, _ := new(big.Int).SetString(h.Signed[1].MaxFee, 10)
	require.GreaterOrEqual(t, new(big.Int).Mul(is, big.NewInt(100)).Cmp(new(big.Int).Mul(was, big.NewInt(110))), 0)
	require.Len(t, read[gotten](t, r.operator("tx", "get", lowest.ID.String())...).Transactions[0].Signed, 1, "only what was asked for")
	r.confirm(t, second, relayer.Confirmed)

	res := rollcall(t, r.operator("tx", "bump", second.ID.String(), "0x"+strings.Repeat("12", 32))...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Empty(t, res.stdout)
	require.Equal(t, fmt.Sprintf("rollcall tx bump: not done: %s: bump: the transaction is confirmed; 0x%s: not found\n", second.ID, strings.Repeat("12", 32)), res.stderr)
}

func TestTxBump_AboveTheCap_StaysRequested(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, func(o *relayertest.Options) {
		o.Sender = func(c *sender.Config) { c.MaxFee = big.NewInt(1_500_000_000) }
	})
	tx := r.send(t, 0, "one")
	succeed(t, r.operator("tx", "bump", tx.ID.String())...) // to the cap, which is what the chain asks for
	out := succeed(t, r.operator("tx", "bump", tx.ID.String(), "--wait", "1s")...)
	require.Contains(t, out, "a higher fee is asked for; no relayer has signed within 1s: does one run, or is the fee of 1500000000 wei near its cap?")
	asked, err := r.Store.ListBumpRequests(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, asked, 1)
	r.confirm(t, tx, relayer.Confirmed)
}
