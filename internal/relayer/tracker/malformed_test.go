package tracker_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// firstBroken is setup with two endpoints of one node, the first behind a proxy with rules.
func firstBroken(t *testing.T, edit func(*relayertest.Options)) (*fixture, *proxy.Proxy) {
	t.Helper()
	var first *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		well := o.RPC[0]
		first = before(t, o)
		o.RPC = append(o.RPC, well)
		edit(o)
	})
	return f, first
}

// ofOldBlock selects reads of a block by number, except of the newest one as such, and of the first one, by which the chain is
// recognized.
func ofOldBlock(c proxy.Call) bool {
	return strings.HasPrefix(string(c.Params), `["0x`) && !strings.HasPrefix(string(c.Params), `["0x0"`)
}

// wrongResults are results that are valid JSON-RPC and of no use, by name.
var wrongResults = map[string]proxy.Rule{
	"count null":         {Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Result: "null"}},
	"count number":       {Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Result: "7"}},
	"count no digits":    {Methods: []string{"eth_getTransactionCount"}, Fault: proxy.Fault{Result: `"0x"`}},
	"receipt incomplete": {Methods: []string{"eth_getTransactionReceipt"}, Fault: proxy.Fault{Result: `{"status":"0x1"}`}},
	"receipt type":       {Methods: []string{"eth_getTransactionReceipt"}, Fault: proxy.Fault{Result: `{"status":1}`}},
	"receipt of another": {Methods: []string{"eth_getTransactionReceipt"}, Fault: proxy.Fault{Result: fmt.Sprintf(
		`{"transactionHash":"%s","blockHash":"%s","blockNumber":"0x1","transactionIndex":"0x0","status":"0x1","gasUsed":"0x1"}`, common.Hash{1}, common.Hash{2})}},
	"header incomplete": {Methods: []string{"eth_getBlockByNumber"}, When: ofOldBlock, Fault: proxy.Fault{Result: `{"number":"0x1"}`}},
	"header null":       {Methods: []string{"eth_getBlockByNumber"}, When: ofOldBlock, Fault: proxy.Fault{Result: "null"}},
	"header unknown": {Methods: []string{"eth_getBlockByNumber"}, When: ofOldBlock, Fault: proxy.Fault{
		Kind: proxy.Refuse, Code: -32000, Message: "header not found",
	}},
}

// The first endpoint answers one method with results of no use, and all others well. With a second working endpoint,
// transactions are mined as without the first.
func TestTransactionsSettle_FirstEndpointReturnsWrongResults(t *testing.T) {
	for name, rule := range wrongResults {
		t.Run(name, func(t *testing.T) {
			f, first := firstBroken(t, func(*relayertest.Options) {})
			if rule.Name = name; rule.Fault.Kind == 0 {
				rule.Fault.Kind = proxy.Answer
			}
			first.SetRules(rule)
			for range 3 {
				f.commitUntil(f.send(), relayer.Confirmed)
			}
			f.settled()
			require.Positive(t, first.Injected()[name])
			f.becomesReady()
		})
	}
}

// The first endpoint returns null for pending counts only. A transaction that the pool dropped is sent again by another
// endpoint's counts.
func TestResend_FirstEndpointHasNoPendingCounts_DroppedTransactionIsSentAgain(t *testing.T) {
	f, first := firstBroken(t, func(*relayertest.Options) {})
	first.SetRules(proxy.Rule{
		Name: "pending null", Methods: []string{"eth_getTransactionCount"}, When: ofPending, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"},
	})
	tx := f.send()
	require.Eventually(t, func() bool { return first.Injected()["pending null"] > 0 }, 2*time.Minute, 10*time.Millisecond)
	f.chain.Rollback()
	f.oneIsPending()
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}

// The first endpoint lacks the index of transactions, so it returns null for one that it has in a block. Another endpoint is
// asked, and an identical transaction counts as ours.
func TestAdopt_FirstEndpointReturnsNoTransactions_AnotherIsAsked(t *testing.T) {
	f, first := firstBroken(t, func(*relayertest.Options) {})
	tx := f.send()
	first.SetRules(proxy.Rule{
		Name: "null", Methods: []string{"eth_getTransactionByHash"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"},
	})
	theirs := f.identical(*tx.Nonce)
	f.chain.Commit()
	now := f.commitUntil(tx, relayer.Confirmed)
	require.Equal(t, theirs, *now.Hash)
	require.Positive(t, first.Injected()["null"])
	f.settled()
}

// The first endpoint returns errors of its own for the finalized block, which says nothing about finality. Another endpoint has
// the block.
func TestConfirm_FinalizedTag_FirstEndpointFails(t *testing.T) {
	for name, fault := range map[string]proxy.Fault{
		"internal error": {Kind: proxy.Refuse, Code: -32603, Message: "internal error"},
		"plan":           {Kind: proxy.Refuse, Code: -32600, Message: "the finalized block is not available on your plan"},
		"unsupported":    {Kind: proxy.Refuse, Code: -32601, Message: "the method does not exist/is not available"},
		"null":           {Kind: proxy.Answer, Result: "null"},
	} {
		t.Run(name, func(t *testing.T) {
			var head *atomic.Uint64
			f, first := firstBroken(t, func(o *relayertest.Options) {
				head = followed(o, func(c *tracker.Config) { c.Finality = "finalized" })
			})
			first.SetRules(proxy.Rule{
				Name: "tag", Methods: []string{"eth_getBlockByNumber"}, Fault: fault,
				When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), `"finalized"`) },
			})
			tx := f.send()
			f.chain.Commit()
			f.Reaches(t, tx, relayer.Mined)
			f.commitTo(33, head) // the test's chain finalizes each 32nd block
			f.Reaches(t, tx, relayer.Confirmed)
			require.Positive(t, first.Injected()["tag"])
			f.settled()
		})
	}
}

// secondFails is a chain whose second endpoint does not return a block before a number, and not the first times that it is asked for that
// one.
type secondFails struct {
	tracker.Chain
	block uint64
	times *atomic.Int32
}

func (c secondFails) Latest(ctx context.Context, except ...string) (tracker.View, error) {
	v, err := c.Chain.Latest(ctx, except...)
	if err == nil && len(except) > 0 && (v.Header().Number < c.block || c.times.Add(-1) >= 0) {
		return nil, errors.New("connection reset")
	}
	return v, err
}

// The first endpoint has no finalized block, and the second one fails for a moment. It is asked again although the chain makes no
// further block.
func TestConfirm_FinalizedTag_SecondEndpointFailsForAMoment(t *testing.T) {
	const last = 33 // the test's chain finalizes each 32nd block
	var head *atomic.Uint64
	var times atomic.Int32
	times.Store(2)
	f, first := firstBroken(t, func(o *relayertest.Options) {
		head = followed(o, func(c *tracker.Config) {
			c.Finality = "finalized"
			c.Chain = secondFails{c.Chain, last, &times}
		})
	})
	first.SetRules(proxy.Rule{
		Name: "tag", Methods: []string{"eth_getBlockByNumber"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"},
		When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), `"finalized"`) },
	})
	tx := f.send()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(last, head)
	f.Reaches(t, tx, relayer.Confirmed)
	require.Negative(t, times.Load())
	f.settled()
}

// The only node fails for the tag of the configured finality. Transactions are mined, and none is final.
func TestMined_FinalizedTag_NoEndpointReturnsIt(t *testing.T) {
	var head *atomic.Uint64
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		head = followed(o, func(c *tracker.Config) { c.Finality = "finalized" })
	})
	node.SetRules(proxy.Rule{
		Name: "tag", Methods: []string{"eth_getBlockByNumber"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"},
		When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), `"finalized"`) },
	})
	tx := f.send()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(33, head)
	f.Reaches(t, tx, relayer.Mined) // still
	node.SetRules()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Confirmed)
	f.settled()
}

// The first node accepts transactions and forwards none of them. No bump follows at the fee cap, and the other node receives
// the last attempt all the same.
func TestBump_AtTheCap_LastAttemptReachesAllNodes(t *testing.T) {
	limit := big.NewInt(30_000_000_000)
	f, first := firstBroken(t, func(o *relayertest.Options) {
		o.Sender = func(c *sender.Config) { c.MaxFee = limit }
		o.Pool = func(c *service.Config) { c.MaxFee = limit }
		o.Tracker = func(c *tracker.Config) {
			c.BumpAfter = map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		}
	})
	// It has the transaction in its pool, so nothing is missing.
	pending := counting("0x1", 0)
	pending.When = ofPending
	first.SetRules(known, pending)
	tx := f.offered(limit)
	f.Reaches(t, tx, relayer.Broadcasted)
	f.commitUntil(tx, relayer.Confirmed)
	require.Equal(t, 1, f.latest(tx).Number)
	require.Positive(t, first.Injected()["known"])
}

// secondIsCut is a chain whose second endpoint returns a block and fails the round the first times.
type secondIsCut struct {
	tracker.Chain
	times *atomic.Int32
}

func (c secondIsCut) Latest(ctx context.Context, except ...string) (tracker.View, error) {
	v, err := c.Chain.Latest(ctx, except...)
	if err == nil && len(except) > 0 && c.times.Add(-1) >= 0 {
		return cutView{v}, nil
	}
	return v, err
}

// cutView is a view whose reads of counts fail.
type cutView struct{ tracker.View }

func (v cutView) Nonces(context.Context, []common.Address) ([]uint64, error) {
	return nil, &evm.TransportError{Endpoint: v.Endpoint(), Sent: true, Err: errors.New("connection reset")}
}

// The first endpoint has no finalized block, and the round of the second one fails in the middle. It is asked again although the chain
// makes no further block.
func TestConfirm_FinalizedTag_RoundOfTheSecondEndpointFails(t *testing.T) {
	var head *atomic.Uint64
	var times atomic.Int32
	f, first := firstBroken(t, func(o *relayertest.Options) {
		head = followed(o, func(c *tracker.Config) {
			c.Finality = "finalized"
			c.Chain = secondIsCut{c.Chain, &times}
		})
	})
	first.SetRules(proxy.Rule{
		Name: "tag", Methods: []string{"eth_getBlockByNumber"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"},
		When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), `"finalized"`) },
	})
	times.Store(1 << 30)
	tx := f.send()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(33, head) // the test's chain finalizes each 32nd block
	times.Store(2)
	f.Reaches(t, tx, relayer.Confirmed)
	f.settled()
}
