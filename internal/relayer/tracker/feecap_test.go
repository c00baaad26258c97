package tracker_test

import (
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// feeCap returns the rule of a node with a limit on the price per unit of gas.
func feeCap(limit *big.Int) proxy.Rule {
	return proxy.Rule{
		Name: "fee cap", Methods: []string{"eth_sendRawTransaction"},
		Fault: proxy.Fault{Kind: proxy.Refuse, Message: "tx fee (1.50 ether) exceeds the configured cap (1.00 ether)"},
		When:  proxy.Sends(func(tx *types.Transaction) bool { return tx.GasFeeCap().Cmp(limit) > 0 }),
	}
}

// offered submits a transaction with this price per unit of gas.
func (f *fixture) offered(fee *big.Int) *relayer.Transaction {
	f.t.Helper()
	tx, err := f.Submit(f.t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), MaxFee: fee, MaxPriorityFee: big.NewInt(2_000_000_000), Speed: relayer.Fast,
	}})
	require.NoError(f.t, err)
	return tx
}

// If a bump raises the whole fee above the node's limit, the earlier attempt stays valid. It is sent again when the node
// has lost it, after any time, and is not outbid any more.
func TestFeeCap_BumpExceedsIt_EarlierAttemptStaysValid(t *testing.T) {
	var node *proxy.Proxy
	fee := big.NewInt(30_000_000_000)
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(feeCap(fee), known)
		o.Tracker = func(c *tracker.Config) {
			c.StuckAfter, c.BumpAfter = time.Second, map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		}
	})
	tx := f.offered(fee)
	f.Reaches(t, tx, relayer.Broadcasted)
	require.Eventually(t, func() bool { // a bump is due with each block
		f.chain.Commit()
		keys, err := f.Store.Keys(t.Context())
		return err == nil && !keys[0].StuckSince.IsZero() && f.latest(tx).Number > 1 && node.Injected()["fee cap"] > 5
	}, 2*time.Minute, 200*time.Millisecond)
	node.SetRules(feeCap(fee)) // the node does not have it
	f.oneIsPending()
	attempts, err := f.Store.Attempts(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Len(t, attempts, 2)
	now := f.Reaches(t, tx, relayer.Broadcasted)
	require.Equal(t, attempts[0].Hash, *now.Hash, "the attempt that a node has")
	require.Equal(t, relayer.IntentSend, now.Intent)
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}

// A rejection by one node with a lower limit does not give the transaction up while the node with a higher limit is down.
func TestFeeCap_OneNodeRejects_WaitsForOther(t *testing.T) {
	var capped, away *proxy.Proxy
	fee := big.NewInt(30_000_000_000)
	f := setup(t, 1, func(o *relayertest.Options) {
		url := o.RPC
		capped = before(t, o)
		o.RPC, url = url, o.RPC
		away = before(t, o)
		o.RPC = append(url, o.RPC...)
		capped.SetRules(feeCap(big.NewInt(1)))
	})
	away.SetDown(true)
	tx := f.offered(fee)
	require.Eventually(t, func() bool { return capped.Injected()["fee cap"] > 5 }, 2*time.Minute, 10*time.Millisecond)
	away.SetDown(false)
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}

// The nodes are away until a transaction has expired. Its bytes, which no node has, are not sent when the nodes are back.
func TestValidUntil_PassesWhileNodesAreAway_BytesAreNeverSent(t *testing.T) {
	var node *proxy.Proxy
	var mu sync.Mutex
	sent := map[common.Hash]bool{}
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(proxy.Rule{
			Name: "watch", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Delay},
			When: proxy.Sends(func(tx *types.Transaction) bool {
				mu.Lock()
				defer mu.Unlock()
				sent[tx.Hash()] = true
				return false
			}),
		})
	})
	node.SetDown(true)
	tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), GasLimit: 21_000, MaxFee: big.NewInt(30_000_000_000),
		MaxPriorityFee: big.NewInt(2_000_000_000), ValidUntil: time.Now().Add(time.Hour), Speed: relayer.Fast,
	}})
	require.NoError(t, err)
	var attempts []*relayer.Attempt
	require.Eventually(t, func() bool { // its only broadcast before the expiry has failed
		attempts, err = f.Store.Attempts(t.Context(), tx.ID)
		return err == nil && len(attempts) > 0 && attempts[0].LastError != ""
	}, 2*time.Minute, 10*time.Millisecond)
	f.expire(tx)
	node.SetDown(false)
	f.commitUntil(tx, relayer.Expired)
	mu.Lock()
	defer mu.Unlock()
	require.False(t, sent[attempts[0].Hash], "expired bytes were sent")
	require.NotEmpty(t, sent, "no no-op was seen")
}
