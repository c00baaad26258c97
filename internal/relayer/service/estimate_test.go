package service_test

import (
	"bytes"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// only returns a contract that reverts unless the caller is the address.
func only(caller common.Address) []byte {
	return slices.Concat([]byte{0x33, 0x73}, caller[:], []byte{0x14, 0x60, 29, 0x57, 0x5f, 0x5f, 0xfd, 0x5b, 0x00})
}

// guarded starts a pool of three keys, and a contract that accepts one of them.
func guarded(t *testing.T, change ...func(*service.Config)) (f *fixture, r *relayertest.Relayer, let, door common.Address) {
	t.Helper()
	ring := signertest.Ring(t, t.Name(), 3)
	let, door = ring.Addresses()[1], common.HexToAddress("0x00000000000000000000000000000000000d0012")
	f = &fixture{ring: ring, chain: testchain.Simulated(t, testchain.SimulatedOptions{
		Alloc: types.GenesisAlloc{door: {Code: only(let)}},
	})}
	f.chain.Fund(testchain.Ether(10), ring.Addresses()...)
	f.options = relayertest.Options{
		DatabaseURL: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).URL(), RPC: []string{f.chain.URL()}, Ring: ring,
	}
	return f, f.start(t, change...), let, door
}

// confirmed makes blocks until a transaction is confirmed.
func (f *fixture) confirmed(t *testing.T, r *relayertest.Relayer, tx *relayer.Transaction) (now *relayer.Transaction) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.chain.Commit()
		var err error
		now, err = r.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status == relayer.Confirmed
	}, 2*time.Minute, 50*time.Millisecond)
	return now
}

// A contract accepts one of the pool's keys. A submission to the pool is estimated from that key, and sent by it.
func TestSubmit_ContractChecksItsSender_ThatKeySends(t *testing.T) {
	t.Parallel()
	f, r, let, door := guarded(t)
	submit := func(data []byte) (*relayer.Transaction, error) {
		return r.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
			To: &door, Data: data, Speed: relayer.Fast,
		}})
	}
	var txs []*relayer.Transaction
	for range 9 {
		tx, err := submit([]byte{1, 2, 3, 4})
		require.NoError(t, err)
		txs = append(txs, tx)
	}
	for _, tx := range txs {
		require.Equal(t, let, f.confirmed(t, r, tx).From)
	}
	// While the accepted key is paused, every submission is rejected with the contract's revert.
	_, err := r.Store.ChangeKey(t.Context(), let, store.KeyChange{Paused: new(true)})
	require.NoError(t, err)
	var revert *relayer.RevertError
	require.Eventually(t, func() bool {
		_, err = submit([]byte{1, 2, 3, 4})
		return err != nil
	}, 2*time.Minute, 10*time.Millisecond)
	require.ErrorAs(t, err, &revert)
}

// The new contents of a queued transaction may allow only one key of the pool to send it.
func TestReplace_ContractChecksItsSender_ThatKeySends(t *testing.T) {
	t.Parallel()
	f, r, let, door := guarded(t, func(c *service.Config) { c.Cap, c.Queue = 1, 100 })
	var waiting []*relayer.Transaction
	for range 9 {
		tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
		if tx.Nonce == nil {
			waiting = append(waiting, tx)
		}
	}
	require.Len(t, waiting, 6)
	for _, tx := range waiting {
		_, err := r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{To: &door, Value: new(big.Int), Data: []byte{1, 2, 3, 4}, Speed: relayer.Fast})
		require.NoError(t, err)
	}
	for _, tx := range waiting {
		require.Equal(t, let, f.confirmed(t, r, tx).From)
	}
}

// If a contract treats all keys alike, transactions are spread over them, and each needs one estimate after the first.
func TestSubmit_ContractLetsAllIn_KeysShareTheLoad(t *testing.T) {
	f := setup(t, 3)
	node := f.behind(t)
	node.SetRules(proxy.Rule{Name: "estimates", Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Kind: proxy.Delay}})
	counter := f.chain.Counter()
	r := f.start(t)
	from := map[string]int{}
	for range 9 {
		tx, err := r.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
			To: &counter, Data: contracts.Hit(common.Hash{1}), Speed: relayer.Fast,
		}})
		require.NoError(t, err)
		require.Equal(t, relayertest.PoolID, tx.Target)
		from[tx.From.Hex()]++
	}
	require.Len(t, from, 3)
	require.EqualValues(t, 3+8, node.Injected()["estimates"])
}

// On a chain without the floor for data (EIP-7623) a node estimates less than the floor. The estimate is accepted, and a caller's
// own limit if it is not less.
func TestSubmit_GasBelowTheDataFloor_NodeDecides(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	node.SetRules(proxy.Rule{
		Name: "no floor", Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x30d40"`},
	})
	r := f.start(t)
	data := bytes.Repeat([]byte{1}, 10_000)
	submit := func(gas uint64) (*relayer.Transaction, error) {
		return r.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
			To: &f.chain.Accounts[0].Address, Data: data, GasLimit: gas, Speed: relayer.Fast,
		}})
	}
	tx, err := submit(0)
	require.NoError(t, err)
	require.Less(t, tx.GasLimit, evm.IntrinsicGasOf(data, false))
	_, err = submit(200_000)
	require.NoError(t, err)
	var invalid *relayer.InvalidError
	_, err = submit(199_999)
	require.ErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "199999 is less than the 200000 that nodes estimate")
	node.SetRules()
	_, err = submit(200_000)
	require.ErrorAs(t, err, &invalid, "this chain has the floor")
}

// The relayer's own margin never exceeds the cap on gas limits. An estimate above the cap is rejected.
func TestSubmit_MarginExceedsTheCap_GetsTheCap(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	r := f.start(t, func(c *service.Config) { c.MaxGas = 100_000 })
	for estimate, limit := range map[string]uint64{"0x15f90": 99_000, "0x17318": 100_000, "0x186a0": 100_000, "0x186a1": 0} {
		node.SetRules(proxy.Rule{
			Name: "estimate", Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"` + estimate + `"`},
		})
		tx, err := r.Submit(t.Context(), f.submission())
		if limit == 0 {
			var invalid *relayer.InvalidError
			require.ErrorAs(t, err, &invalid, estimate)
			require.Equal(t, "gas_limit", invalid.Field)
			continue
		}
		require.NoError(t, err, estimate)
		require.Equal(t, limit, tx.GasLimit, estimate)
	}
}

// unlimited are nodes whose blocks have no gas limit.
type unlimited struct{ service.Chain }

func (u unlimited) Head() evm.Header {
	head := u.Chain.Head()
	head.GasLimit = 0
	return head
}

// A node may omit the blocks' gas limit. Only the relayer's cap counts then.
func TestSubmit_HeadHasNoGasLimit_IsAccepted(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t, func(c *service.Config) { c.Chain, c.MaxGas = unlimited{c.Chain}, 100_000 })
	for _, limit := range []uint64{0, 21_000, 100_000} {
		s := f.submission()
		s.Request.GasLimit = limit
		_, err := r.Submit(t.Context(), s)
		require.NoError(t, err, limit)
	}
	s := f.submission()
	s.Request.GasLimit = 100_001
	_, err := r.Submit(t.Context(), s)
	var invalid *relayer.InvalidError
	require.ErrorAs(t, err, &invalid)
}

// A development node reports a contract's revert as an internal error, in words of its own. The caller gets the reason, and the
// node does not count as failing.
func TestSubmit_RevertInNodesOwnWords_ReasonForTheCaller(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	r := f.start(t)
	for words, reason := range map[string]string{
		"Error: VM Exception while processing transaction: reverted with reason string 'not the owner'": "not the owner",
		"VM Exception while processing transaction: revert not the owner":                               "not the owner",
		"Error: Transaction reverted without a reason string":                                           "",
	} {
		node.SetRules(proxy.Rule{
			Name: "reverts", Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: words},
		})
		_, err := r.Submit(t.Context(), f.submission())
		var revert *relayer.RevertError
		require.ErrorAs(t, err, &revert, words)
		require.Equal(t, reason, revert.Reason)
		for _, e := range r.Client.Status().Endpoints {
			require.Empty(t, e.Failing)
		}
	}
	node.SetRules()
	_, err := r.Submit(t.Context(), f.submission())
	require.NoError(t, err)
}
