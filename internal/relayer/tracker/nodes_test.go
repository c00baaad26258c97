package tracker_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// refusals are JSON-RPC errors caused by a node, by the methods that return them.
var refusals = map[string]proxy.Rule{
	"counts":         {Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Code: -32000, Message: "missing trie node 0a1b (path ) state 0x0a1b is not available"}},
	"pending counts": {Methods: []string{"eth_getTransactionCount"}, When: ofPending, Fault: proxy.Fault{Code: -32603, Message: "internal error"}},
	"receipts":       {Methods: []string{"eth_getTransactionReceipt", "eth_getBlockReceipts"}, Fault: proxy.Fault{Code: -32000, Message: "transaction indexing is in progress"}},
	"blocks":         {Methods: []string{"eth_getBlockByNumber"}, When: ofLatest, Fault: proxy.Fault{Code: -32603, Message: "internal error"}},
	"estimates":      {Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Code: -32603, Message: "internal error"}},
	"fees":           {Methods: []string{"eth_gasPrice", "eth_feeHistory"}, Fault: proxy.Fault{Code: -32005, Message: "daily request count exceeded"}},
	"sends":          {Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Code: -32603, Message: "internal error"}},
	"no sends":       {Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Code: -32601, Message: "the method does not exist"}},
}

func ofPending(c proxy.Call) bool { return strings.Contains(string(c.Params), `"pending"`) }
func ofLatest(c proxy.Call) bool  { return strings.Contains(string(c.Params), `"latest"`) }

// The first endpoint responds to one kind of call with errors, and to all others. With a second working endpoint,
// transactions are mined as without the first.
func TestTransactionsSettle_FirstEndpointFailsSomeMethods(t *testing.T) {
	for name, rule := range refusals {
		t.Run(name, func(t *testing.T) {
			var broken *proxy.Proxy
			f := setup(t, 1, func(o *relayertest.Options) {
				well := o.RPC[0]
				broken = before(t, o)
				o.RPC = append(o.RPC, well)
			})
			rule.Name, rule.Fault.Kind = name, proxy.Refuse
			broken.SetRules(rule)
			for range 3 {
				f.commitUntil(f.send(), relayer.Confirmed)
			}
			f.settled()
			require.Positive(t, broken.Injected()[name])
			f.becomesReady()
		})
	}
}

// The first endpoint answers sends confidently and falsely: it drops what it accepts, or rejects it for a reason that no
// other node has. Transactions are mined with their contents all the same, because another endpoint receives them.
func TestTransactionsSettle_FirstEndpointAnswersSendsFalsely(t *testing.T) {
	for _, message := range []string{"already known", "nonce too low", "replacement transaction underpriced", "intrinsic gas too low", "invalid sender"} {
		t.Run(message, func(t *testing.T) {
			var first *proxy.Proxy
			f := setup(t, 1, func(o *relayertest.Options) {
				well := o.RPC[0]
				first = before(t, o)
				o.RPC = append(o.RPC, well)
			})
			first.SetRules(proxy.Rule{Name: "sends", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: message}})
			f.commitUntil(f.send(), relayer.Confirmed)
			f.settled()
			require.Positive(t, first.Injected()["sends"])
		})
	}
}

// The first endpoint returns null for receipts that exist. Once it has shown the transaction in a block, another endpoint is
// asked.
func TestTransactionsSettle_FirstEndpointHidesReceipts(t *testing.T) {
	var first *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		well := o.RPC[0]
		first = before(t, o)
		o.RPC = append(o.RPC, well)
	})
	first.SetRules(proxy.Rule{Name: "hidden", Methods: []string{"eth_getTransactionReceipt"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}})
	tx := f.send()
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
	require.Positive(t, first.Injected()["hidden"])
}

// The first endpoint returns null for receipts that exist, and the other one is always a block behind it.
func TestTransactionsSettle_FirstEndpointHidesReceipts_OtherLags(t *testing.T) {
	var first, behind *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node := o.RPC[0]
		first = before(t, o)
		o.RPC = []string{node}
		behind = before(t, o)
		o.RPC = []string{first.URL(), behind.URL()}
		o.Tracker = func(c *tracker.Config) { c.Tend = time.Second } // no round while the client distrusts the first one
	})
	behind.SetLag(1)
	first.SetRules(proxy.Rule{Name: "hidden", Methods: []string{"eth_getTransactionReceipt"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}})
	tx := f.send()
	// Between two blocks the client trusts the first endpoint again.
	require.Eventually(t, func() bool {
		f.chain.Commit()
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status == relayer.Confirmed
	}, 2*time.Minute, 400*time.Millisecond)
	require.Positive(t, first.Injected()["hidden"])
}

// The only endpoint returns null for receipts that exist. The chain is followed all the same, and the transaction is found
// when the endpoint returns its receipt.
func TestRound_OnlyEndpointHidesReceipts_GoesOn(t *testing.T) {
	var node *proxy.Proxy
	var head *atomic.Uint64
	f := setup(t, 1, func(o *relayertest.Options) { node, head = before(t, o), followed(o, func(*tracker.Config) {}) })
	node.SetRules(proxy.Rule{Name: "hidden", Methods: []string{"eth_getTransactionReceipt"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}})
	tx := f.send()
	for number := head.Load() + 1; number <= 12; number++ {
		f.commitTo(number, head)
	}
	require.Positive(t, node.Injected()["hidden"])
	f.becomesReady()
	node.SetRules()
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}

// The first endpoint counts a transaction as mined that its pool has dropped. The transaction is sent again, although the
// count is not above the key's next nonce.
func TestTransactionsSettle_FirstEndpointCountsADroppedTransaction(t *testing.T) {
	var first *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		well := o.RPC[0]
		first = before(t, o)
		o.RPC = append(o.RPC, well)
	})
	tx := f.send()
	first.SetRules(counting("0x1", 0)) // mined and pending
	f.chain.Rollback()
	f.commitUntil(tx, relayer.Confirmed)
	require.Positive(t, first.Injected()["count 0x1"])
	f.settled()
}

// A round whose endpoint fails is repeated from another endpoint at once. Nothing else would start a round within an hour.
func TestRound_EndpointFails_AnotherIsReadAtOnce(t *testing.T) {
	f := setup(t, 1)
	f.Stop()
	well := f.options.RPC[0]
	broken := before(t, &f.options)
	f.options.RPC = append(f.options.RPC, well)
	f.options.Tracker = func(c *tracker.Config) { c.Tend, c.ChainIdentity = time.Hour, nil }
	f.options.Chain = func(c *evm.Config) { c.PollInterval, c.HealthInterval = 10*time.Millisecond, 10*time.Millisecond }
	broken.SetRules(proxy.Rule{
		Name: "counts", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"},
	})
	r := relayertest.Launch(t, f.options)
	require.Eventually(t, func() bool {
		f.chain.Commit() // a key is usable after a round, and rounds come with blocks
		return r.Health().Ready
	}, 2*time.Minute, 50*time.Millisecond)
	for range 3 {
		tx := r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
		f.chain.Commit()
		r.Reaches(t, tx, relayer.Mined)
	}
	require.Positive(t, broken.Injected()["counts"])
}

// The only endpoint lacks eth_getBlockReceipts, which its provider sells in a larger plan. More transactions are looked for
// at once than receipts are read one by one.
func TestTransactionsSettle_ProviderHasNoBlockReceipts(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 3, func(o *relayertest.Options) { node = before(t, o) })
	node.SetRules(proxy.Rule{
		Name: "block receipts", Methods: []string{"eth_getBlockReceipts"},
		Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32600, Message: "eth_getBlockReceipts is not available on your plan"},
	})
	var txs []*relayer.Transaction
	for range 40 {
		txs = append(txs, f.Send(t, f.chain.Accounts[0].Address, 1, nil))
	}
	for _, tx := range txs {
		f.Reaches(t, tx, relayer.Broadcasted)
	}
	f.chain.Commit()
	for _, tx := range txs {
		f.Reaches(t, tx, relayer.Mined)
	}
	f.chain.Commit()
	for _, tx := range txs {
		f.Reaches(t, tx, relayer.Confirmed)
	}
	f.settled()
	require.EqualValues(t, 1, node.Injected()["block receipts"], "the refusal is remembered")
}
