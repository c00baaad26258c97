package crashtest

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// faults of a connection strike before, during and after the node's work.
var faults = []struct {
	name  string
	fault proxy.Fault
	send  float64 // probability for a sent transaction
	read  float64 // for everything else; 0: never
}{
	// For sends only. Reads have their own faults of this kind: methodFaults.
	{"refused", proxy.Fault{Kind: proxy.Refuse, Message: "internal error"}, 0.03, 0},
	{"pool full", proxy.Fault{Kind: proxy.Refuse, Message: "txpool is full"}, 0.03, 0},
	{"503", proxy.Fault{Kind: proxy.Status}, 0.03, 0.005},
	{"429", proxy.Fault{Kind: proxy.Status, Code: 429, RetryAfter: 1}, 0.01, 0.001},
	{"cut before", proxy.Fault{Kind: proxy.Cut}, 0.03, 0.005},
	{"cut after", proxy.Fault{Kind: proxy.Lose}, 0.03, 0.005},
	{"no answer", proxy.Fault{Kind: proxy.Hang}, 0.02, 0.002},
	{"late", proxy.Fault{Kind: proxy.Delay, Delay: 2500 * time.Millisecond}, 0.02, 0.002}, // later than the callers' timeout
	{"slow", proxy.Fault{Kind: proxy.Delay, Delay: 300 * time.Millisecond}, 0.02, 0.01},
	{"left out", proxy.Fault{Kind: proxy.Omit}, 0.03, 0.003},
	{"no JSON", proxy.Fault{Kind: proxy.Garble}, 0.02, 0.003},
	{"half", proxy.Fault{Kind: proxy.Truncate}, 0.02, 0.003},
}

// reads are the methods with which relayers read.
var reads = []string{
	"eth_chainId", "eth_blockNumber", "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getTransactionCount", "eth_getBlockReceipts",
	"eth_getTransactionReceipt", "eth_feeHistory", "eth_gasPrice", "eth_maxPriorityFeePerGas", "eth_estimateGas", "eth_getBalance",
}

// methodFaults are faults of single methods of an endpoint that answers all others.
var methodFaults = []struct {
	name    string
	methods []string // the first is called often for certain
	fault   proxy.Fault
	when    func(proxy.Call) bool // nil: each call
	chance  float64
}{
	{"count +3", countMethod, moreCounts(3), nil, 0.003},
	{"count +3000, mined", countMethod, moreCounts(3000), minedCount, 0.003},
	{"count +3000, pending", countMethod, moreCounts(3000), pendingCount, 0.003},
	{"count 2^40", countMethod, proxy.Fault{Kind: proxy.Answer, Result: `"0x10000000000"`}, nil, 0.003},
	{"pending is latest", countMethod, proxy.Fault{Kind: proxy.Change, Params: pendingToLatest}, pendingCount, 0.01},
	{
		"-32603", append([]string{"eth_estimateGas"}, reads...),
		proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "Internal error"}, nil, 0.003,
	},
	{
		"missing trie node", []string{"eth_getTransactionCount", "eth_getBalance", "eth_estimateGas"},
		proxy.Fault{Kind: proxy.Refuse, Message: "missing trie node 5b2c (path 0102) state 0x5b2c is not available, not found"}, nil, 0.003,
	},
	{
		"indexing", []string{"eth_getTransactionReceipt", "eth_getTransactionByHash"},
		proxy.Fault{Kind: proxy.Refuse, Message: "transaction indexing is in progress"}, nil, 0.003,
	},
	{
		"plan", []string{"eth_feeHistory", "eth_getTransactionByHash", "eth_getBlockByHash", "eth_estimateGas", "eth_getBalance"},
		proxy.Fault{Kind: proxy.Refuse, Code: -32052, Message: "this method is not available on your plan, upgrade it"}, nil, 0.003,
	},
	{"no block receipts", []string{"eth_getBlockReceipts"}, noBlockReceipts, nil, 0.003},
}

var (
	countMethod     = []string{"eth_getTransactionCount"}
	noBlockReceipts = proxy.Fault{Kind: proxy.Refuse, Code: -32600, Message: "eth_getBlockReceipts is not available on the free plan"}
)

// moreCounts returns the fault of a node that counts n transactions too many.
func moreCounts(n uint64) proxy.Fault {
	return proxy.Fault{Kind: proxy.Change, Alter: func(result json.RawMessage) json.RawMessage {
		var count hexutil.Uint64
		if json.Unmarshal(result, &count) != nil {
			return result
		}
		return json.RawMessage(`"` + hexutil.EncodeUint64(uint64(count)+n) + `"`)
	}}
}

func pendingCount(c proxy.Call) bool { return bytes.Contains(c.Params, []byte("pending")) }

func minedCount(c proxy.Call) bool { return !pendingCount(c) }

func pendingToLatest(params json.RawMessage) json.RawMessage {
	return json.RawMessage(strings.ReplaceAll(string(params), "pending", "latest"))
}

// window makes a fault strike each call of a method, as long as it is open.
type window struct{ fault, method string }

// rules make each fault strike once and early, even at an endpoint without faults, then while its window is open, and
// by chance. The proxies of one endpoint share them and their scripts.
func rules(open *atomic.Pointer[window]) (all []proxy.Rule) {
	for _, f := range methodFaults { // scripts of one method strike one call after the other
		all = append(all, proxy.Rule{Name: f.name, Methods: f.methods[:1], When: script(f.when, 1), Permanent: true, Fault: f.fault})
		all = append(all, proxy.Rule{Name: f.name, Methods: f.methods, Fault: f.fault, When: func(c proxy.Call) bool {
			w := open.Load()
			return w != nil && *w == window{f.name, c.Method} && (f.when == nil || f.when(c))
		}})
		all = append(all, proxy.Rule{Name: f.name, Methods: f.methods, When: f.when, Probability: f.chance, Fault: f.fault})
	}
	for i, f := range faults {
		all = append(all, proxy.Rule{
			Name: f.name, Methods: []string{"eth_sendRawTransaction"}, When: script(nil, uint64(3*(i+1))), Permanent: true, Fault: f.fault,
		})
	}
	for _, f := range faults {
		all = append(all, proxy.Rule{
			Name: f.name, Methods: []string{"eth_sendRawTransaction"}, Probability: f.send, Fault: f.fault,
		})
		if f.read > 0 {
			all = append(all, proxy.Rule{Name: f.name + " (read)", Methods: reads, Probability: f.read, Fault: f.fault})
		}
	}
	return all
}

// script returns a When that selects the n-th of the calls that match.
func script(match func(proxy.Call) bool, n uint64) func(proxy.Call) bool {
	var matched atomic.Uint64
	return func(c proxy.Call) bool { return (match == nil || match(c)) && matched.Add(1) == n }
}

// intrinsicGas is the rule of a chain where a transfer costs more gas than on others.
var intrinsicGas = proxy.Rule{
	Name: "intrinsic gas", Methods: []string{"eth_sendRawTransaction"}, Permanent: true,
	Fault: proxy.Fault{Kind: proxy.Refuse, Message: "intrinsic gas too low"},
	When:  proxy.Sends(func(tx *types.Transaction) bool { return tx.Gas() <= params.TxGas }),
}

// planWithoutReceipts is the rule of an endpoint that never offers receipts by block.
var planWithoutReceipts = proxy.Rule{
	Name: "no block receipts", Methods: []string{"eth_getBlockReceipts"}, Permanent: true, Fault: noBlockReceipts,
}

// dearGas are the rules of the endpoints of a chain where no-ops need more gas. The second one offers no receipts by
// block.
var dearGas = [endpoints][]proxy.Rule{{intrinsicGas}, {intrinsicGas, planWithoutReceipts}}

// While the chain is dear its miner requires dearTip for each unit of gas. That is above the relayers' cap for a
// transaction, and below their cap for a no-op.
const (
	priceCap = int64(10 * params.GWei)
	dearTip  = int64(15 * params.GWei)
)

// dearFees returns the rules of a node that reports such fees while the chain is dear.
func dearFees(dear *atomic.Bool) (all []proxy.Rule) {
	when := func(proxy.Call) bool { return dear.Load() }
	tip := hexutil.EncodeBig(big.NewInt(dearTip))
	quoted := json.RawMessage(`"` + tip + `"`)
	for _, method := range []string{"eth_gasPrice", "eth_maxPriorityFeePerGas"} {
		all = append(all, proxy.Rule{
			Name: "dear", Methods: []string{method}, Permanent: true, When: when, Fault: proxy.Fault{Kind: proxy.Answer, Result: string(quoted)},
		})
	}
	return append(all, proxy.Rule{
		Name: "dear", Methods: []string{"eth_feeHistory"}, Permanent: true, When: when,
		Fault: proxy.Fault{Kind: proxy.Change, Alter: func(result json.RawMessage) json.RawMessage {
			var history map[string]json.RawMessage
			var rewards [][]json.RawMessage
			if json.Unmarshal(result, &history) != nil || json.Unmarshal(history["reward"], &rewards) != nil {
				return result
			}
			for _, block := range rewards {
				for i := range block {
					block[i] = quoted
				}
			}
			history["reward"], _ = json.Marshal(rewards) // they were parsed
			altered, _ := json.Marshal(history)
			return altered
		}},
	})
}
