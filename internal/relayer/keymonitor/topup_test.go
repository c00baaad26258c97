package keymonitor_test

import (
	"context"
	"errors"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// funded returns a fixture with a funding key.
func funded(t *testing.T, funder int64, funds ...int64) (f *fixture, o relayertest.Options, from common.Address) {
	t.Helper()
	f = setup(t, funds...)
	o = f.options()
	o.Funder = signertest.Signers(signertest.Keys(t, t.Name()+" funder", 1))[0]
	from = o.Funder.Address()
	f.chain.Fund(milli(funder), from)
	o.TopUp = &keymonitor.TopUp{From: from, Threshold: milli(1000), Target: milli(5000), PerDay: testchain.Ether(1000), Cooldown: 200 * time.Millisecond}
	return f, o, from
}

// mine seals blocks until a condition holds.
func (f *fixture) mine(what string, is func() bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { f.chain.Commit(); return is() }, patience, 100*time.Millisecond, what)
}

func (f *fixture) balance(of common.Address) *big.Int {
	f.t.Helper()
	wei, err := f.chain.Client().BalanceAt(f.t.Context(), of, nil)
	require.NoError(f.t, err)
	return wei
}

// topUps returns the number of a key's top-ups, and their sum in thousandths of an ether.
func (f *fixture) topUps(key common.Address) (n int, sum int64) {
	f.t.Helper()
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `SELECT count(*), (coalesce(sum(value_wei), 0) / 1e15)::bigint FROM relayer_txs
		WHERE kind = 'topup' AND to_address = lower($1)`, key.Hex()).Scan(&n, &sum))
	return n, sum
}

func TestTopUp_SeveralProcesses_EachKeyOnce(t *testing.T) {
	t.Parallel()
	f, o, from := funded(t, 100_000, 100, 1000, 0)
	for range 3 {
		relayertest.Launch(t, o)
	}
	r := relayertest.Start(t, o)
	f.mine("keys are topped up", func() bool {
		return f.balance(f.keys[0]).Cmp(milli(5000)) == 0 && f.balance(f.keys[2]).Cmp(milli(5000)) == 0
	})
	f.mine("top-ups are final", func() bool {
		k := f.key(r, from, "there", func(*relayer.Key) bool { return true })
		return k.PendingCount == 0
	})
	f.looks(5)
	for i, want := range []int64{4900, 0, 5000} {
		n, sum := f.topUps(f.keys[i])
		require.Equal(t, want, sum, "key %d", i)
		require.LessOrEqual(t, n, 1)
	}
	require.Equal(t, milli(1000), f.balance(f.keys[1]), "a key at the threshold gets no top-up")

	// Callers cannot use the funding key as a relayer.
	_, err := send(t, r, from.Hex(), f.keys[0], big.NewInt(1))
	require.ErrorIs(t, err, relayer.ErrNotFound)
	listed, total, err := r.Relayers(t.Context(), 0, 100)
	require.NoError(t, err)
	require.Equal(t, 4, total, "the pool and its keys")
	for _, l := range listed {
		require.NotEqual(t, from, l.Address)
	}
	for range 8 {
		tx, err := send(t, r, relayertest.PoolID, f.chain.Accounts[0].Address, big.NewInt(1))
		require.NoError(t, err)
		require.NotEqual(t, from, tx.From)
	}
}

func TestTopUp_KeepsAmountAndDailyLimits(t *testing.T) {
	t.Parallel()
	f, o, _ := funded(t, 100_000, 0, 0)
	o.TopUp.Most, o.TopUp.PerDay = milli(700), milli(1000)
	o.Registry = prometheus.NewRegistry()
	relayertest.Start(t, o)
	f.mine("the day's ceiling is reached", func() bool {
		_, first := f.topUps(f.keys[0])
		_, second := f.topUps(f.keys[1])
		return first+second == 1000
	})
	f.mine("more is asked for, and refused", func() bool {
		n, _ := metric(t, o.Registry, "rollcall_relayer_topups_total", map[string]string{"outcome": "limited"})
		return n > 0
	})
	sum := new(big.Int)
	for _, key := range f.keys {
		sum.Add(sum, f.balance(key))
	}
	require.Equal(t, milli(1000), sum)
	requireMetric(t, o.Registry, "rollcall_relayer_budget_spent_ether", map[string]string{"scope": "topup", "subject": ""}, 1)
	requireMetric(t, o.Registry, "rollcall_relayer_topped_up_ether_total", nil, 1)
}

func TestTopUp_FundingKeyRunsDry_StoresOnlyWhatItCanPay(t *testing.T) {
	t.Parallel()
	f, o, _ := funded(t, 5500, 0, 0)
	o.Registry = prometheus.NewRegistry()
	relayertest.Start(t, o)
	f.mine("one key gets what there is, the other nothing", func() bool {
		n, _ := metric(t, o.Registry, "rollcall_relayer_topups_total", map[string]string{"outcome": "unfunded"})
		return n > 0 && f.balance(f.keys[0]).Sign()+f.balance(f.keys[1]).Sign() == 1
	})
}

func TestTopUp_ProcessDies_AnotherSendsIt(t *testing.T) {
	t.Parallel()
	f, o, from := funded(t, 100_000, 0)
	topUp := o.TopUp
	// This process can do everything except sign.
	fake := signertest.NewFake(o.Funder)
	fake.Fail(errSigner)
	mute := o
	mute.Funder = signer.Signer(fake)
	r := relayertest.Start(t, mute)
	require.Eventually(t, func() bool { n, _ := f.topUps(f.keys[0]); return n == 1 }, patience, 10*time.Millisecond)
	f.looks(3)
	r.Stop()
	require.Zero(t, f.balance(f.keys[0]).Sign())
	o.TopUp = topUp
	relayertest.Start(t, o)
	f.mine("it arrives", func() bool { return f.balance(f.keys[0]).Cmp(milli(5000)) == 0 })
	n, _ := f.topUps(f.keys[0])
	require.Equal(t, 1, n)
	nonce, err := f.chain.Client().NonceAt(t.Context(), from, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, nonce)
}

// A key has at most one pending top-up, and the daily limit is exact to the wei, under any concurrency.
func TestTopUp_Concurrent_LimitsAreExact(t *testing.T) {
	t.Parallel()
	f := setup(t, 0)
	db := f.db.Pool(t)
	from := common.HexToAddress("0xf0")
	var keys []common.Address
	registrations := []store.Registration{{Address: from, Funding: true}}
	for i := range 6 {
		keys = append(keys, common.BigToAddress(big.NewInt(int64(i+1))))
		registrations = append(registrations, store.Registration{Address: keys[i]})
	}
	s := store.New(db, store.Config{ChainID: testchain.ChainID, Pool: relayertest.PoolID})
	require.NoError(t, s.Register(t.Context(), registrations))
	var mu sync.Mutex
	given := map[common.Address]int{}
	sum := new(big.Int)
	var all sync.WaitGroup
	for range 4 {
		for _, key := range keys {
			all.Go(func() {
				tx, err := s.TopUp(t.Context(), store.TopUp{
					From: from, To: key, Amount: big.NewInt(30), PerDay: big.NewInt(100), Fee: big.NewInt(1), Gas: 21_000, Quiet: time.Minute, Cap: 100,
				})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					given[key]++
					sum.Add(sum, tx.Value)
				}
			})
		}
	}
	all.Wait()
	require.Len(t, given, 4, "30, 30, 30 and 10")
	for key, n := range given {
		require.Equal(t, 1, n, key)
	}
	require.Equal(t, big.NewInt(100), sum)
	spending, err := s.BudgetUsage(t.Context())
	require.NoError(t, err)
	require.Equal(t, []store.Usage{{Scope: "topup", Wei: big.NewInt(100)}}, spending)
}

// A key gets no second top-up soon after the first is final, because balances may be read from a node that lags behind.
func TestTopUp_ToppedUpRecently_Waits(t *testing.T) {
	t.Parallel()
	f := setup(t, 0)
	db := f.db.Pool(t)
	from, key := common.HexToAddress("0xf0"), common.HexToAddress("0x01")
	s := store.New(db, store.Config{ChainID: testchain.ChainID, Pool: relayertest.PoolID})
	require.NoError(t, s.Register(t.Context(), []store.Registration{{Address: from, Funding: true}, {Address: key}}))
	ask := func(quiet time.Duration) error {
		_, err := s.TopUp(t.Context(), store.TopUp{From: from, To: key, Amount: big.NewInt(30), Fee: big.NewInt(1), Gas: 21_000, Quiet: quiet, Cap: 100})
		return err
	}
	require.NoError(t, ask(0))
	require.ErrorIs(t, ask(0), store.ErrToppedUp, "it is on its way")
	_, err := db.Exec(t.Context(), `UPDATE relayer_txs SET open = false, status = 'confirmed', updated_at = now()`)
	require.NoError(t, err)
	require.ErrorIs(t, ask(time.Minute), store.ErrToppedUp)
	require.NoError(t, ask(0))
	// Nor does another funding key top it up.
	second := common.HexToAddress("0xf1")
	require.NoError(t, s.Register(t.Context(), []store.Registration{{Address: second, Funding: true}}))
	_, err = s.TopUp(t.Context(), store.TopUp{From: second, To: key, Amount: big.NewInt(30), Fee: big.NewInt(1), Gas: 21_000, Cap: 100})
	require.ErrorIs(t, err, store.ErrToppedUp)
	_, err = s.TopUp(t.Context(), store.TopUp{From: key, To: second, Amount: big.NewInt(30), Fee: big.NewInt(1), Gas: 21_000, Cap: 100})
	require.ErrorIs(t, err, relayer.ErrUnavailable, "a relayer's key tops up no other key")
}

func TestTopUp_FundingKeyPausedOrDisabled_BalanceCheckDoesNotFail(t *testing.T) {
	t.Parallel()
	for outcome, may := range map[string]func(bool) store.KeyChange{
		"paused":   func(pay bool) store.KeyChange { return store.KeyChange{Paused: new(!pay)} },
		"disabled": func(pay bool) store.KeyChange { return store.KeyChange{Enabled: &pay} },
	} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			f, o, from := funded(t, 100_000, 0, 0)
			o.Registry = prometheus.NewRegistry()
			s := store.New(f.db.Pool(t), store.Config{ChainID: testchain.ChainID, Pool: relayertest.PoolID})
			require.NoError(t, s.Register(t.Context(), []store.Registration{{Address: from, Funding: true}}))
			_, err := s.ChangeKey(t.Context(), from, may(false))
			require.NoError(t, err)
			relayertest.Start(t, o)
			require.Eventually(t, func() bool {
				n, _ := metric(t, o.Registry, "rollcall_relayer_topups_total", map[string]string{"outcome": "paused"})
				return n >= 4 // both keys, twice
			}, patience, 10*time.Millisecond)
			requireMetric(t, o.Registry, "rollcall_relayer_balance_check_failures_total", nil, 0)
			requireMetric(t, o.Registry, "rollcall_relayer_topups_total", map[string]string{"outcome": "failed"}, 0)
			_, err = s.ChangeKey(t.Context(), from, may(true))
			require.NoError(t, err)
			f.mine("keys are topped up", func() bool {
				return f.balance(f.keys[0]).Cmp(milli(5000)) == 0 && f.balance(f.keys[1]).Cmp(milli(5000)) == 0
			})
		})
	}
}

// feeless is a chain whose fees are unavailable while it is set so.
type feeless struct {
	keymonitor.Chain
	is atomic.Bool
}

func (m *feeless) Fees(ctx context.Context) (evm.Fees, error) {
	if m.is.Load() {
		return evm.Fees{}, errors.New("no node tells")
	}
	return m.Chain.Fees(ctx)
}

func TestTopUp_Fails_BalanceCheckDoesNotFail(t *testing.T) {
	t.Parallel()
	f, o, _ := funded(t, 100_000, 0)
	o.Registry = prometheus.NewRegistry()
	nodes := &feeless{}
	nodes.is.Store(true)
	o.KeyMonitor = func(c *keymonitor.Config) { nodes.Chain, c.Chain = c.Chain, nodes }
	relayertest.Start(t, o)
	require.Eventually(t, func() bool {
		n, _ := metric(t, o.Registry, "rollcall_relayer_topups_total", map[string]string{"outcome": "failed"})
		return n >= 2
	}, patience, 10*time.Millisecond)
	requireMetric(t, o.Registry, "rollcall_relayer_balance_check_failures_total", nil, 0)
	nodes.is.Store(false)
	f.mine("it is topped up", func() bool { return f.balance(f.keys[0]).Cmp(milli(5000)) == 0 })
}

// The kill switch stops top-ups too: balances are still read, and no ether leaves the funding key.
func TestTopUp_StopsWhenSwitchedOff(t *testing.T) {
	t.Parallel()
	f, o, from := funded(t, 100_000, 0)
	off := o
	off.Pool = func(c *service.Config) { c.Enabled = false }
	r := relayertest.Launch(t, off) // its health is 503
	f.key(r, f.keys[0], "its balance is read", func(k *relayer.Key) bool { return k.Balance != nil })
	f.looks(5)
	n, _ := f.topUps(f.keys[0])
	require.Zero(t, n)
	require.Equal(t, milli(100_000), f.balance(from))
	r.Stop()

	relayertest.Start(t, o)
	f.mine("switched on, it is topped up", func() bool { return f.balance(f.keys[0]).Cmp(milli(5000)) == 0 })
}

// A top-up arrives on a chain where a transfer needs 60,000 gas, whether or not the node's estimate includes that.
func TestTopUp_IntrinsicGasAbove21000_Arrives(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]proxy.Rule{
		"estimated": {{
			Name: "estimates", Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0xea60"`},
		}},
		"estimates too low": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, o, from := funded(t, 100_000, 100)
			node, err := proxy.Open(proxy.Config{HTTP: o.RPC[0]})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, node.Close()) })
			o.RPC = []string{node.URL()}
			node.SetRules(append(more, proxy.Rule{
				Name: "intrinsic gas", Methods: []string{"eth_sendRawTransaction"},
				Fault: proxy.Fault{Kind: proxy.Refuse, Message: "intrinsic gas too low"},
				When:  proxy.Sends(func(tx *types.Transaction) bool { return tx.Gas() < 60_000 }),
			})...)
			r := relayertest.Start(t, o)
			f.mine("the key is topped up", func() bool { return f.balance(f.keys[0]).Cmp(milli(5000)) == 0 })
			f.mine("the top-up is final", func() bool {
				return f.key(r, from, "there", func(*relayer.Key) bool { return true }).PendingCount == 0
			})
			n, _ := f.topUps(f.keys[0])
			require.Equal(t, 1, n, "none failed")
		})
	}
}
