package tracker_test

import (
	"context"
	"encoding/json"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/holiman/uint256"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// paced is setup with a relayer that processes each block: commit seals one and returns when it was processed.
func paced(t *testing.T, confirmations uint64, edit ...func(*relayertest.Options)) (f *fixture, commit func()) {
	t.Helper()
	followed := make(chan uint64)
	f = setup(t, 1, append(edit, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) {
			c.Confirmations = confirmations
			c.Events = relayertest.OnRound(c.Events, func(ctx context.Context, head evm.Header) {
				select {
				case followed <- head.Number:
				case <-ctx.Done():
				}
			})
		}
	})...)
	return f, func() {
		t.Helper()
		f.chain.Commit()
		number, err := f.chain.Client().BlockNumber(t.Context())
		require.NoError(t, err)
		for <-followed != number {
		}
	}
}

// Many nonces used by another sender are searched a few per head, in turn.
func TestNonceConflict_ManyForeign_AreFoundInTurn(t *testing.T) {
	const many, heads = 40, 20
	f, commit := paced(t, 2, func(o *relayertest.Options) {
		o.Pool = func(c *service.Config) { c.Cap = 2 * many }
	})
	var txs []*relayer.Transaction
	for range many {
		txs = append(txs, f.send())
	}
	for nonce := range uint64(many) {
		f.foreign(nonce)
	}
	for range heads {
		commit()
	}
	for i, tx := range txs {
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		require.NoError(t, err)
		require.True(t, now.Nonce == nil || *now.Nonce >= many, "the transaction with nonce %d", i)
	}
}

// searches is the rule for the calls that search for the user of a nonce: the state of blocks by their number.
func searches(name string, fault proxy.Fault) proxy.Rule {
	return proxy.Rule{Name: name, Methods: []string{"eth_getTransactionCount"}, Fault: fault, When: func(c proxy.Call) bool {
		var params []string
		return json.Unmarshal(c.Params, &params) == nil && len(params) == 2 && strings.HasPrefix(params[1], "0x")
	}}
}

// The user of a nonce is found while nodes have the state for it, and remembered after they have dropped that.
func TestNonceConflict_IsRememberedUntilFinal(t *testing.T) {
	var node *proxy.Proxy
	f, commit := paced(t, 12, func(o *relayertest.Options) { node = before(t, o) })
	node.SetRules(searches("searched", proxy.Fault{Kind: proxy.Delay}))
	tx := f.send()
	f.foreign(*tx.Nonce)
	heads := 0
	for ; node.Injected()["searched"] == 0; heads++ {
		commit()
		require.Less(t, heads, 10)
	}
	node.SetRules(searches("pruned", proxy.Fault{Kind: proxy.Refuse, Message: "missing trie node"}))
	for ; heads < 12; heads++ {
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		require.NoError(t, err)
		require.Equal(t, tx.Nonce, now.Nonce)
		commit()
	}
	now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
	require.NoError(t, err)
	require.NotEqual(t, tx.Nonce, now.Nonce, "twelve blocks are final")
	require.Zero(t, node.Injected()["pruned"])
}

// A result in a block that was reorganized away is dropped, and the search is repeated.
func TestNonceConflict_BlockIsReorganizedAway(t *testing.T) {
	var node *proxy.Proxy
	f, commit := paced(t, 8, func(o *relayertest.Options) { node = before(t, o) })
	for range 30 { // the fork stays above the anchor
		commit()
	}
	node.SetRules(searches("searched", proxy.Fault{Kind: proxy.Delay}))
	tx, parent := f.send(), f.head()
	f.foreign(*tx.Nonce)
	for heads := 0; node.Injected()["searched"] == 0; heads++ {
		commit()
		require.Less(t, heads, 10)
	}
	head, err := f.chain.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	f.chain.Fork(parent)
	f.chain.Rollback()
	other := f.authorize(*tx.Nonce)
	for number := uint64(0); number <= head; {
		f.chain.Commit()
		number, err = f.chain.Client().BlockNumber(t.Context())
		require.NoError(t, err)
	}
	for heads := 0; ; heads++ {
		commit()
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		require.NoError(t, err)
		if now.Nonce == nil || *now.Nonce != *tx.Nonce {
			break
		}
		require.Less(t, heads, 40)
	}
	theirs, err := f.Store.TransactionByNonce(t.Context(), f.ring.Addresses()[0], *tx.Nonce)
	require.NoError(t, err)
	require.Equal(t, other, *theirs.Hash)
}

// authorize makes another sender use a nonce of the relayer's first key with an authorization, and returns the transaction
// with it.
func (f *fixture) authorize(nonce uint64) common.Hash {
	f.t.Helper()
	signer, _ := f.ring.Signer(f.ring.Addresses()[0])
	auth := types.SetCodeAuthorization{ChainID: *uint256.NewInt(testchain.ChainID), Nonce: nonce} // without code
	signature, err := signer.Sign(f.t.Context(), auth.SigHash())
	require.NoError(f.t, err)
	auth.R.SetBytes(signature[:32])
	auth.S.SetBytes(signature[32:64])
	auth.V = signature[64]
	by := f.chain.Accounts[1]
	its, err := f.chain.Client().PendingNonceAt(f.t.Context(), by.Address)
	require.NoError(f.t, err)
	tx, err := types.SignNewTx(by.Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)), &types.SetCodeTx{
		ChainID: uint256.NewInt(testchain.ChainID), Nonce: its, To: f.chain.Accounts[0].Address, Value: uint256.NewInt(1), Gas: 100_000,
		GasFeeCap: uint256.NewInt(90_000_000_000), GasTipCap: uint256.NewInt(50_000_000_000), AuthList: []types.SetCodeAuthorization{auth},
	})
	require.NoError(f.t, err)
	require.NoError(f.t, f.chain.Client().SendTransaction(f.t.Context(), tx))
	return tx.Hash()
}

// A nonce used by an authorization is lost, although the transaction that contains it has the same contents as ours: it is
// another account's.
func TestNonceConflict_Authorization_IsForeign(t *testing.T) {
	f := setup(t, 1)
	tx := f.send()
	theirs := f.authorize(*tx.Nonce)
	moved := f.commitUntil(tx, relayer.Confirmed)
	require.Equal(t, *tx.Nonce+1, *moved.Nonce)
	lost, err := f.Store.TransactionByNonce(t.Context(), f.ring.Addresses()[0], *tx.Nonce)
	require.NoError(t, err)
	require.Equal(t, theirs, *lost.Hash)
	f.settled()
}

// An identical transaction by the same account is ours: signed by a process whose record of it was lost.
func TestNonceConflict_IdenticalTransaction_IsOurs(t *testing.T) {
	f := setup(t, 1)
	before := f.balance(f.chain.Accounts[0].Address)
	tx := f.send()
	key, _ := f.ring.Signer(f.ring.Addresses()[0])
	same, err := signer.SignTx(t.Context(), key, types.NewTx(&types.DynamicFeeTx{
		ChainID: big.NewInt(testchain.ChainID), Nonce: *tx.Nonce, To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Gas: 21_000,
		GasFeeCap: big.NewInt(90_000_000_000), GasTipCap: big.NewInt(50_000_000_000),
	}), big.NewInt(testchain.ChainID))
	require.NoError(t, err)
	require.NoError(t, f.chain.Client().SendTransaction(t.Context(), same))
	ours := f.commitUntil(tx, relayer.Confirmed)
	require.Equal(t, same.Hash(), *ours.Hash)
	require.Equal(t, int64(1), new(big.Int).Sub(f.balance(f.chain.Accounts[0].Address), before).Int64())
	f.settled()
}

// The lease moves more often than blocks are made. The user of a nonce is found all the same.
func TestNonceConflict_LeaseMovesEachBlock_IsFound(t *testing.T) {
	var head *atomic.Uint64
	f := setup(t, 1, func(o *relayertest.Options) { head = followed(o, func(*tracker.Config) {}) })
	tx := f.send()
	f.foreign(*tx.Nonce)
	for heads := 0; ; heads++ {
		number, err := f.chain.Client().BlockNumber(t.Context())
		require.NoError(t, err)
		f.commitTo(number+1, head)
		f.Stop()
		f.Relayer = relayertest.Start(t, f.options)
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		require.NoError(t, err)
		if now.Nonce == nil || *now.Nonce != *tx.Nonce {
			break
		}
		require.Less(t, heads, 10)
	}
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}
