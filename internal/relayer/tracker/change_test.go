package tracker_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// before puts a proxy before the relayer's node.
func before(t *testing.T, o *relayertest.Options) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Open(proxy.Config{HTTP: o.RPC[0]})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	o.RPC = []string{p.URL()}
	return p
}

// commitUntil seals blocks, with time for the relayer in between, until a transaction has a status.
func (f *fixture) commitUntil(tx *relayer.Transaction, status relayer.Status) *relayer.Transaction {
	f.t.Helper()
	var now *relayer.Transaction
	require.Eventually(f.t, func() bool {
		f.chain.Commit()
		var err error
		now, err = f.Transaction(f.t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status == status
	}, 2*time.Minute, 200*time.Millisecond)
	return now
}

// foreign sends as another sender with the relayer's first key.
func (f *fixture) foreign(nonce uint64) {
	f.t.Helper()
	address := f.ring.Addresses()[0]
	key, _ := f.ring.Signer(address)
	tx, err := signer.SignTx(f.t.Context(), key, types.NewTx(&types.DynamicFeeTx{
		ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, To: &f.chain.Accounts[0].Address, Value: big.NewInt(1000), Gas: 21000,
		GasFeeCap: big.NewInt(90_000_000_000), GasTipCap: big.NewInt(50_000_000_000),
	}), big.NewInt(testchain.ChainID))
	require.NoError(f.t, err)
	require.NoError(f.t, f.chain.Client().SendTransaction(f.t.Context(), tx))
}

// A transaction shows the mined contents: a replacement may lose, and may win later if a reorganization removes that block.
func TestReplace_OriginalIsMined_ShowsOriginalContents(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	tx, parent := f.send(), f.head()
	node.SetRules(proxy.Rule{
		Name: "no replacement", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: "txpool is full"},
		When: proxy.Sends(func(tx *types.Transaction) bool { return tx.Value().Int64() == 7 }),
	})
	replaced, err := f.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{
		To: &f.chain.Accounts[1].Address, Value: big.NewInt(7), Data: []byte{1}, Speed: relayer.Fast,
	})
	require.NoError(t, err)
	require.Equal(t, int64(7), replaced.Value.Int64())
	f.chain.Commit()
	mined := f.Reaches(t, tx, relayer.Mined)
	require.Equal(t, int64(1), mined.Value.Int64())
	require.Equal(t, f.chain.Accounts[0].Address, *mined.To)
	require.Empty(t, mined.Data)
	require.Equal(t, uint64(21_000), mined.GasLimit)

	node.SetRules()
	f.chain.Fork(parent)
	f.chain.Rollback()
	f.chain.Commit()
	f.chain.Commit()
	again := f.commitUntil(tx, relayer.Confirmed)
	require.Equal(t, int64(7), again.Value.Int64())
	require.Equal(t, f.chain.Accounts[1].Address, *again.To)
	require.Equal(t, []byte{1}, again.Data)
	f.settled()
}

// A nonce is filled if only another sender's transaction had it, in a block that a reorganization removed.
func TestNonceConflict_ForeignIsReorganizedAway_GapIsFilled(t *testing.T) {
	f := setup(t, 1)
	for range 30 { // the fork stays above the anchor
		f.chain.Commit()
	}
	tx, parent := f.send(), f.head()
	f.foreign(*tx.Nonce)
	f.chain.Commit()
	moved := f.commitUntil(tx, relayer.Confirmed)
	require.Equal(t, *tx.Nonce+1, *moved.Nonce)
	head, err := f.chain.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	f.chain.Fork(parent)
	f.chain.Rollback()
	for { // to more than the previous height
		f.chain.Commit()
		now, err := f.chain.Client().BlockNumber(t.Context())
		require.NoError(t, err)
		if now > head {
			break
		}
	}
	next := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Equal(t, *tx.Nonce+2, *next.Nonce)
	f.commitUntil(next, relayer.Confirmed)
	f.settled()
}

// No row has the foreign transaction's nonce, so nothing of it is stored.
func TestNonceConflict_ForeignAtUnassignedNonceIsReorganizedAway_GapIsFilled(t *testing.T) {
	f := setup(t, 1)
	for range 30 {
		f.chain.Commit()
	}
	parent := f.head()
	f.foreign(0)
	f.chain.Commit()
	require.Eventually(t, func() bool {
		keys, err := f.Store.Keys(t.Context())
		return err == nil && keys[0].NextNonce == 1
	}, 2*time.Minute, 10*time.Millisecond)
	f.chain.Fork(parent)
	f.chain.Rollback()
	f.chain.Commit()
	f.chain.Commit()
	f.commitUntil(f.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Confirmed)
	f.settled()
}

// A transaction whose whole fee exceeds the only node's cap fails after a while. A no-op takes its nonce, even if it cannot
// outbid it, and the key stays enabled.
func TestFeeCap_OnlyNodeRejects_Fails(t *testing.T) {
	limit := big.NewInt(30_000_000_000)
	f := setup(t, 1, func(o *relayertest.Options) {
		node := before(t, o)
		node.SetRules(proxy.Rule{
			Name: "fee cap", Methods: []string{"eth_sendRawTransaction"},
			Fault: proxy.Fault{Kind: proxy.Refuse, Message: "tx fee (1.50 ether) exceeds the configured cap (1.00 ether)"},
			When:  proxy.Sends(func(tx *types.Transaction) bool { return tx.Gas() > 1_000_000 }),
		})
		o.Sender = func(c *sender.Config) { c.MaxFee = limit }
		o.Pool = func(c *service.Config) { c.MaxFee = limit }
		o.KeyMonitor = func(c *keymonitor.Config) { c.Refusals = 1 }
		o.Tracker = func(c *tracker.Config) {
			c.StuckAfter, c.BumpAfter = time.Second, map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		}
	})
	tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), GasLimit: 2_000_000, MaxFee: limit, MaxPriorityFee: limit, Speed: relayer.Fast,
	}})
	require.NoError(t, err)
	failed := f.commitUntil(tx, relayer.Failed)
	require.Equal(t, "whole fee above cap", failed.StatusReason)
	keys, err := f.Store.Keys(t.Context())
	require.NoError(t, err)
	require.True(t, keys[0].Enabled)
	f.settled()
}
