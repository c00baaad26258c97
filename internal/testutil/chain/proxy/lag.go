package proxy

import (
	"encoding/json"
	"maps"

	"github.com/ethereum/go-ethereum/common/hexutil"
)

// view is the chain as of some blocks ago. A nil view is the current chain.
type view struct {
	head  uint64              // the block that counts as the latest
	asked map[string]*message // by id, the call that an answer belongs to
}

// newView reads the node's head. If the node does not answer, nothing is hidden.
func (p *Proxy) newView(lag uint64) *view {
	if lag == 0 {
		return nil
	}
	var head hexutil.Uint64
	if !p.ask(&head, "eth_blockNumber") {
		return nil
	}
	return &view{head: uint64(head) - min(lag, uint64(head)), asked: map[string]*message{}}
}

// ask sends a request of the proxy itself.
func (p *Proxy) ask(result any, method string, params ...any) bool {
	encoded, err := json.Marshal(append([]any{}, params...))
	if err != nil {
		return false
	}
	answers, _, err := p.call([]*message{{
		Version: "2.0", ID: json.RawMessage("1"), Method: method, Params: encoded,
	}}, false)
	return err == nil && len(answers) == 1 && answers[0].Error == nil && json.Unmarshal(answers[0].Result, result) == nil
}

// blockParam is the index of each method's block parameter.
var blockParam = map[string]int{
	"eth_getBalance": 1, "eth_getCode": 1, "eth_getTransactionCount": 1, "eth_getStorageAt": 2, "eth_call": 1,
	"eth_estimateGas": 1, "eth_getBlockByNumber": 0, "eth_getBlockReceipts": 0, "eth_feeHistory": 1,
	"eth_getBlockTransactionCountByNumber": 0, "eth_getHeaderByNumber": 0,
}

// question replaces "latest" by the head of the view.
func (v *view) question(m *message) *message {
	if v == nil {
		return m
	}
	v.asked[string(m.ID)] = m
	at, ok := blockParam[m.Method]
	if !ok {
		return m
	}
	var params []json.RawMessage
	if json.Unmarshal(m.Params, &params) != nil || at >= len(params) {
		return m
	}
	var tag string
	_ = json.Unmarshal(params[at], &tag) // a parameter that is not a string is not a tag
	if n, err := hexutil.DecodeUint64(tag); tag != "latest" && (err != nil || n <= v.head) {
		return m
	} else if err == nil {
		params[at] = json.RawMessage(`"0x7fffffffffffffff"`) // a future block
	} else {
		params[at] = quoted(v.head)
	}
	changed := *m
	changed.Params, _ = json.Marshal(params) // they were parsed
	return &changed
}

// answer hides what happened after the head of the view.
func (v *view) answer(m *message) *message {
	if v == nil || m.Result == nil {
		return m
	}
	asked := v.asked[string(m.ID)]
	if asked == nil {
		return m
	}
	hidden := *m
	switch asked.Method {
	case "eth_blockNumber":
		hidden.Result = quoted(v.head)
	case "eth_getTransactionReceipt":
		if v.hides(m.Result, "blockNumber") {
			hidden.Result = json.RawMessage("null")
		}
	case "eth_getBlockByHash", "eth_getHeaderByHash":
		if v.hides(m.Result, "number") {
			hidden.Result = json.RawMessage("null")
		}
	case "eth_getBlockReceipts": // by hash
		var receipts []json.RawMessage
		if json.Unmarshal(m.Result, &receipts) == nil && len(receipts) > 0 && v.hides(receipts[0], "blockNumber") {
			hidden.Result = json.RawMessage("null")
		}
	case "eth_getTransactionByHash":
		if v.hides(m.Result, "blockNumber") { // it is still in the pool
			var tx map[string]json.RawMessage
			if json.Unmarshal(m.Result, &tx) == nil {
				null := json.RawMessage("null")
				maps.Copy(tx, map[string]json.RawMessage{"blockHash": null, "blockNumber": null, "transactionIndex": null})
				hidden.Result, _ = json.Marshal(tx) // it was parsed
			}
		}
	}
	return &hidden
}

// hides reports whether the object's block is after the head of the view.
func (v *view) hides(object json.RawMessage, field string) bool {
	var fields map[string]json.RawMessage
	var n hexutil.Uint64
	return json.Unmarshal(object, &fields) == nil && json.Unmarshal(fields[field], &n) == nil && uint64(n) > v.head
}

func quoted(n uint64) json.RawMessage { return json.RawMessage(`"` + hexutil.EncodeUint64(n) + `"`) }

// lagHead replaces the head in a notification by the head lag blocks earlier.
func (p *Proxy) lagHead(m *message, lag uint64) {
	var params struct {
		Subscription json.RawMessage            `json:"subscription"`
		Result       map[string]json.RawMessage `json:"result"`
	}
	if json.Unmarshal(m.Params, &params) != nil || params.Result["parentHash"] == nil {
		return
	}
	var n hexutil.Uint64
	if json.Unmarshal(params.Result["number"], &n) != nil {
		return
	}
	var block map[string]json.RawMessage
	if !p.ask(&block, "eth_getBlockByNumber", hexutil.Uint64(uint64(n)-min(lag, uint64(n))), false) || block == nil {
		return
	}
	for _, field := range []string{"transactions", "uncles", "size", "withdrawals"} {
		delete(block, field)
	}
	params.Result = block
	m.Params, _ = json.Marshal(params) // it was parsed
}
