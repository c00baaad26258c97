package service_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// beside puts a proxy before the node, as the preferred endpoint of two.
func (f *fixture) beside(t *testing.T, rules ...proxy.Rule) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Open(proxy.Config{HTTP: f.chain.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	p.SetRules(rules...)
	f.options.RPC = []string{p.URL(), f.chain.URL()}
	return p
}

// counting returns a rule by which a node returns this count for every account; times 0 is always.
func counting(count string, times uint64) proxy.Rule {
	return proxy.Rule{Name: "count", Methods: []string{"eth_getTransactionCount"}, Limit: times, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"` + count + `"`}}
}

// used makes another sender use nonces of a key.
func (f *fixture) used(t *testing.T, key signer.Signer, nonces uint64) {
	t.Helper()
	for nonce := range nonces {
		tx, err := signer.SignTx(t.Context(), key, types.NewTx(&types.DynamicFeeTx{
			ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Gas: 21_000,
			GasFeeCap: big.NewInt(90_000_000_000), GasTipCap: big.NewInt(50_000_000_000),
		}), big.NewInt(testchain.ChainID))
		require.NoError(t, err)
		require.NoError(t, f.chain.Client().SendTransaction(t.Context(), tx))
	}
}

// nextNonces returns the number of keys of the pool by their next nonce.
func nextNonces(t *testing.T, r *relayertest.Relayer) map[uint64]int {
	t.Helper()
	keys, err := r.Store.Keys(t.Context())
	require.NoError(t, err)
	nonces := map[uint64]int{}
	for _, k := range keys {
		nonces[k.NextNonce]++
	}
	return nonces
}

// A new key begins above every endpoint's mined and pending count, although the preferred endpoint lags.
func TestRegister_PreferredNodeLags_TakesTheHighest(t *testing.T) {
	f := setup(t, 1)
	key, _ := f.ring.Signer(f.ring.Addresses()[0])
	f.used(t, key, 3)
	f.chain.Commit()
	node := f.beside(t, counting("0x0", 0))
	r := f.start(t)
	require.Equal(t, map[uint64]int{3: 1}, nextNonces(t, r))
	node.SetRules()
	tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Equal(t, uint64(3), *tx.Nonce)
	r.Reaches(t, tx, relayer.Broadcasted)
	f.chain.Commit()
	r.Reaches(t, tx, relayer.Mined)
}

// A syncing node counts far fewer transactions than the other one, which does not prevent a new key's registration.
func TestRegister_NodeSyncs_TakesTheHighest(t *testing.T) {
	f := setup(t, 1)
	key, _ := f.ring.Signer(f.ring.Addresses()[0])
	f.used(t, key, 70)
	for range 12 {
		f.chain.Commit()
	}
	f.beside(t, counting("0x0", 0)).SetLag(10)
	require.Equal(t, map[uint64]int{70: 1}, nextNonces(t, f.start(t)))
}

// One false count does not decide where a new key begins.
func TestRegister_FalseCountOnce_IsNotBelieved(t *testing.T) {
	f := setup(t, 1)
	f.beside(t, counting("0x10000000000", 1))
	require.Equal(t, map[uint64]int{0: 1}, nextNonces(t, f.start(t)))
}

// One of two endpoints, the preferred one, has no state at the first start. The other one decides.
func TestRegister_NodeLacksState_BecomesReady(t *testing.T) {
	f := setup(t, 1)
	key, _ := f.ring.Signer(f.ring.Addresses()[0])
	f.used(t, key, 3)
	f.chain.Commit()
	f.beside(t, refuse(-32000, "missing trie node 0a1b (path ) state 0x0a1b is not available", "eth_getTransactionCount"))
	r := relayertest.Launch(t, f.options)
	require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 20*time.Millisecond)
	require.Equal(t, map[uint64]int{3: 1}, nextNonces(t, r))
	tx := r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
	f.chain.Commit()
	r.Reaches(t, tx, relayer.Mined)
}

// One of three endpoints always counts far too many. The others decide.
func TestRegister_OneOfThreeCountsTooMany_OthersDecide(t *testing.T) {
	f := setup(t, 1)
	f.beside(t, counting("0x10000000000", 0))
	third, err := proxy.Open(proxy.Config{HTTP: f.chain.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, third.Close()) })
	f.options.RPC = append(f.options.RPC, third.URL())
	r := f.start(t)
	require.Equal(t, map[uint64]int{0: 1}, nextNonces(t, r))
	tx := r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
	f.chain.Commit()
	r.Reaches(t, tx, relayer.Mined)
}

// An endpoint that always counts too many prevents a new key's registration; known keys continue.
func TestRegister_EndpointsDisagree_KnownKeysGoOn(t *testing.T) {
	f := setup(t, 1)
	f.start(t).Stop()
	two := signertest.Ring(t, t.Name(), 2)
	require.Contains(t, two.Addresses(), f.ring.Addresses()[0])
	f.chain.Fund(testchain.Ether(1), two.Addresses()...)
	f.options.Ring = two
	f.options.Chain = func(c *evm.Config) { c.PollInterval = 50 * time.Millisecond }
	node := f.beside(t, counting("0x10000000000", 0))
	r := relayertest.Launch(t, f.options)
	require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 10*time.Millisecond)
	tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Equal(t, f.ring.Addresses()[0], r.Reaches(t, tx, relayer.Broadcasted).From)
	require.Equal(t, map[uint64]int{1: 1}, nextNonces(t, r))
	node.SetRules()
	require.Eventually(t, func() bool { return len(nextNonces(t, r)) == 2 }, 2*time.Minute, 10*time.Millisecond)
}
