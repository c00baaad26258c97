package tracker_test

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// refused returns the rule of a node that rejects every send.
func refused(message string) proxy.Rule {
	return proxy.Rule{
		Name: "refused", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: message},
	}
}

const lacksFunds = "insufficient funds for gas * price + value: balance 1, tx cost 2, overshot 1"

// counted counts sends in n.
func counted(n *atomic.Int32) proxy.Rule {
	return proxy.Rule{
		Name: "counted", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse},
		When: func(proxy.Call) bool { n.Add(1); return false },
	}
}

// pendingIsLatest is the rule of a provider whose "pending" block is its newest block, in which a key has sent nothing.
var pendingIsLatest = proxy.Rule{
	Name: "pending is latest", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x0"`},
	When: func(c proxy.Call) bool { return bytes.Contains(c.Params, []byte(`"pending"`)) },
}

// mostResends returns the maximum number of sends of one rejected transaction since a time: the pauses double from 0.1 s to
// 3 s.
func mostResends(since time.Time) uint64 { return 6 + uint64(time.Since(since)/(3*time.Second)) }

// wait waits for n rounds of the tracker, which begin a tenth of a second apart.
func wait(rounds <-chan struct{}, n int) {
	for range n {
		<-rounds
	}
}

// Rounds fail and succeed in turn. Only the first success sends transactions again that are rejected for lack of funds; then
// their pauses count.
func TestResend_RoundsFailInTurn_BacksOff(t *testing.T) {
	var node *proxy.Proxy
	var fail atomic.Bool
	rounds := make(chan struct{})
	f := setup(t, 2, func(o *relayertest.Options) {
		node = before(t, o)
		o.Tracker = func(c *tracker.Config) {
			c.Confirmations = 1000 // each head compares the mined transaction's block
			c.Events = relayertest.OnRound(c.Events, tell(rounds))
		}
	})
	tx := f.send()
	f.chain.Commit()
	wait(rounds, 1)
	f.Reaches(t, tx, relayer.Mined)
	number := f.Reaches(t, tx, relayer.Mined).BlockNumber
	node.SetRules(refused(lacksFunds), proxy.Rule{
		Name: "headers", Methods: []string{"eth_getBlockByNumber"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"},
		When: func(c proxy.Call) bool {
			return bytes.Contains(c.Params, []byte(hexutil.EncodeUint64(number)+`"`)) && fail.CompareAndSwap(true, false)
		},
	})
	begun := time.Now()
	f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	for range 20 {
		fail.Store(true)
		f.chain.Commit()
		for fail.Load() {
			wait(rounds, 1)
		}
		wait(rounds, 2)
	}
	require.Equal(t, uint64(20), node.Injected()["headers"])
	require.LessOrEqual(t, node.Injected()["refused"], 1+mostResends(begun))
}

// Transactions that are rejected for lack of funds or for their fee are sent again ever less often, and only the lowest of a
// key.
func TestResend_RefusedForFundsOrFee_BacksOff(t *testing.T) {
	for name, reason := range map[string]string{"funds": lacksFunds, "fee": "max fee per gas less than block base fee: address 0x0, maxFeePerGas: 1, baseFee: 2"} {
		t.Run(name, func(t *testing.T) {
			var node *proxy.Proxy
			rounds := make(chan struct{})
			f := setup(t, 1, func(o *relayertest.Options) {
				node = before(t, o)
				node.SetRules(refused(reason))
				o.Tracker = func(c *tracker.Config) { c.Events = relayertest.OnRound(c.Events, tell(rounds)) }
			})
			begun := time.Now()
			var txs []*relayer.Transaction
			for range 4 {
				txs = append(txs, f.Send(t, f.chain.Accounts[0].Address, 1, nil))
			}
			wait(rounds, 80)
			require.LessOrEqual(t, node.Injected()["refused"], 4+mostResends(begun), "each once, and then the lowest ever less often")
			node.SetRules()
			for _, tx := range txs {
				f.Reaches(t, tx, relayer.Broadcasted)
			}
			f.commitUntil(txs[3], relayer.Confirmed)
			f.settled()
		})
	}
}

// Nodes refuse four transactions, in words of which the cause is not known, while the fees fall with each block. That ends no
// pause each time: all rows of a key have one send a second.
func TestResend_RefusedWhileFeesFall_OneASecond(t *testing.T) {
	var node *proxy.Proxy
	rounds := make(chan struct{})
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(refused("something new"))
		o.Tracker = func(c *tracker.Config) { c.Events = relayertest.OnRound(c.Events, tell(rounds)) }
	})
	begun := time.Now()
	var txs []*relayer.Transaction
	for range 4 {
		txs = append(txs, f.Send(t, f.chain.Accounts[0].Address, 1, nil))
	}
	for range 60 {
		f.chain.Commit() // an empty block lowers the base fee by an eighth
		wait(rounds, 2)
	}
	// The tracker, which no node serves, once releases its lease. After that it does not know the pause of the key.
	require.LessOrEqual(t, node.Injected()["refused"], 4+2+uint64(time.Since(begun)/time.Second), "each once, and then one a second")
	for i, tx := range txs {
		last := f.latest(tx)
		require.Equal(t, sender.Unrecognized, last.LastError, "%d", i)
	}
	node.SetRules()
	for _, tx := range txs {
		f.Reaches(t, tx, relayer.Broadcasted)
	}
	f.commitUntil(txs[3], relayer.Confirmed)
	f.settled()
}

func TestResend_PoolFull_BacksOff(t *testing.T) {
	var node *proxy.Proxy
	rounds := make(chan struct{})
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(refused("txpool is full"))
		o.Tracker = func(c *tracker.Config) { c.Events = relayertest.OnRound(c.Events, tell(rounds)) }
	})
	begun := time.Now()
	tx := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	wait(rounds, 80)
	require.LessOrEqual(t, node.Injected()["refused"], 1+mostResends(begun))
	node.SetRules()
	f.Reaches(t, tx, relayer.Broadcasted)
}

func TestResend_PendingIsLatest_SendsNothingThatTheNodeHas(t *testing.T) {
	var sends atomic.Int32
	rounds := make(chan struct{})
	f := setup(t, 1, func(o *relayertest.Options) {
		before(t, o).SetRules(pendingIsLatest, counted(&sends))
		// The node's response is trusted for thirty times as long.
		o.Tracker = func(c *tracker.Config) {
			c.Events, c.Abandoned = relayertest.OnRound(c.Events, tell(rounds)), 2*time.Second
		}
	})
	var txs []*relayer.Transaction
	for range 5 {
		txs = append(txs, f.send())
	}
	wait(rounds, 30)
	require.Equal(t, int32(5), sends.Load())
	f.chain.Rollback() // the node's pool loses them
	f.arePending(5)
	for _, tx := range txs {
		f.commitUntil(tx, relayer.Confirmed)
	}
	f.settled()
}

// arePending waits until the node's pool has n transactions.
func (f *fixture) arePending(n uint) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		count, err := f.chain.Client().PendingTransactionCount(f.t.Context())
		return err == nil && count == n
	}, 2*time.Minute, 20*time.Millisecond)
}

// A provider claims to have transactions that its node has lost. The claim is not trusted indefinitely.
func TestResend_NodeClaimsToKnowWhatItLost_SendsAgain(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	tx := f.send()
	node.SetRules(proxy.Rule{
		Name: "remembers", Methods: []string{"eth_getTransactionByHash"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `{"blockHash": null}`},
	})
	f.chain.Rollback()
	require.Eventually(t, func() bool { return node.Injected()["remembers"] > 0 }, 2*time.Minute, 10*time.Millisecond)
	f.oneIsPending()
	f.commitUntil(tx, relayer.Confirmed)
}

// A node whose pool is too small accepts a transaction and drops it repeatedly. It has room after another one was mined.
func TestResend_DroppedAgain_SentOnceALowerNonceIsMined(t *testing.T) {
	f := setup(t, 1, paused)
	first, second := f.send(), f.send()
	f.chain.Rollback()
	require.Eventually(t, func() bool { return f.latest(first).Paused && f.latest(second).Paused }, 2*time.Minute, 10*time.Millisecond)
	f.chain.Rollback()
	var raw types.Transaction
	require.NoError(t, raw.UnmarshalBinary(f.latest(first).Raw))
	require.NoError(t, f.chain.Client().SendTransaction(t.Context(), &raw))
	f.chain.Commit()
	f.commitUntil(second, relayer.Confirmed)
	f.settled()
}

// paused makes a rejected transaction wait for a minute.
func paused(o *relayertest.Options) {
	o.Sender = func(c *sender.Config) { c.Pause, c.MaxPause = time.Minute, time.Minute }
}

// The funding may also be in the first balance that is read.
func TestResend_KeyIsFunded_AtOnce(t *testing.T) {
	unread := proxy.Rule{Name: "unread", Methods: []string{"eth_getBalance"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: "busy"}}
	round := proxy.Rule{Name: "round", Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Kind: proxy.Delay}} // it only counts
	for name, rules := range map[string][]proxy.Rule{
		"after a reading":      {refused(lacksFunds), round},
		"in the first reading": {refused(lacksFunds), round, unread},
	} {
		t.Run(name, func(t *testing.T) {
			var node *proxy.Proxy
			f := setup(t, 1, paused, func(o *relayertest.Options) {
				node = before(t, o)
				node.SetRules(rules...)
				o.KeyMonitor = func(c *keymonitor.Config) { c.Refusals = 1000 }
			})
			tx := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
			require.Eventually(t, func() bool {
				now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
				return err == nil && now.StatusReason != ""
			}, 2*time.Minute, 10*time.Millisecond, "the refusal is recorded")
			rounds := node.Injected()["round"]
			require.Eventually(t, func() bool { return node.Injected()["round"] > rounds+4 }, 2*time.Minute, 10*time.Millisecond)
			node.SetRules()
			f.chain.Fund(testchain.Ether(1), f.ring.Addresses()...)
			f.Reaches(t, tx, relayer.Broadcasted)
		})
	}
}

func TestResend_FeesFall_AtOnce(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, paused, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(refused("max fee per gas less than block base fee"))
	})
	tx := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Eventually(t, func() bool { return node.Injected()["refused"] == 1 }, 2*time.Minute, 10*time.Millisecond)
	node.SetRules()
	require.Eventually(t, func() bool {
		f.chain.Commit() // an empty block lowers the base fee by an eighth
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && now.Status != relayer.Allocated
	}, 2*time.Minute, 500*time.Millisecond)
}

// A pause ends when rounds succeed again, because an outage between two rounds is shorter than the shortest pause.
func TestResend_NodeIsBack_AtOnce(t *testing.T) {
	var node *proxy.Proxy
	reg := prometheus.NewRegistry()
	f := setup(t, 1, paused, func(o *relayertest.Options) {
		node = before(t, o)
		o.Registry = reg
	})
	failed := failedRounds(t, reg)
	node.SetDown(true)
	tx := f.submitRoomy()
	require.Eventually(t, func() bool {
		now, err := f.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && (now.StatusReason != "" || now.Status == relayer.Unknown)
	}, 2*time.Minute, 10*time.Millisecond)
	// The first one may be maintenance that was running.
	require.Eventually(t, func() bool { return failedRounds(t, reg) > failed+1 }, 2*time.Minute, 10*time.Millisecond)
	node.SetDown(false)
	f.Reaches(t, tx, relayer.Broadcasted)
}

// On a chain that accepts nonces only in order, an attempt rejected for that is sent as soon as the one before it is
// accepted.
func TestResend_NonceTooHigh_FollowsWhatWasTaken(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, paused, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(refused("txpool is full"))
	})
	first := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Eventually(t, func() bool { return node.Injected()["refused"] == 1 }, 2*time.Minute, 10*time.Millisecond)
	node.SetRules(refused("nonce too high"))
	second := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	require.Eventually(t, func() bool { return node.Injected()["refused"] == 2 }, 2*time.Minute, 10*time.Millisecond)
	node.SetRules()
	_, err := f.Store.RequestBump(t.Context(), first.ID)
	require.NoError(t, err)
	f.Reaches(t, first, relayer.Broadcasted)
	f.Reaches(t, second, relayer.Broadcasted)
}
