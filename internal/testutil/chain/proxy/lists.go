package proxy

import (
	"encoding/json"
	"strings"

	"github.com/ethereum/go-ethereum/common/hexutil"
)

// AlterList returns a fault that changes the list of an answer, such as that of eth_getLogs or eth_getBlockReceipts. change may change the
// list that it is given. An answer that is no list of objects is left as it is.
func AlterList(change func([]map[string]any) []map[string]any) Fault {
	return Fault{Kind: Change, Alter: func(raw json.RawMessage) json.RawMessage {
		var list []map[string]any
		if json.Unmarshal(raw, &list) != nil {
			return raw
		}
		text, err := json.Marshal(change(list))
		if err != nil {
			return raw
		}
		return text
	}}
}

// Retag returns a rule that answers a block by tag with the block of a number.
func Retag(tag string, number func() uint64) Rule {
	return Rule{Methods: []string{"eth_getBlockByNumber"}, When: Asks(`"` + tag + `"`), Fault: Fault{Kind: Change, Params: func(params json.RawMessage) json.RawMessage {
		return json.RawMessage(strings.Replace(string(params), tag, hexutil.EncodeUint64(number()), 1))
	}}}
}

// Asks returns a When for calls whose parameters contain a text.
func Asks(text string) func(Call) bool {
	return func(c Call) bool { return strings.Contains(string(c.Params), text) }
}

// Blocks returns how many blocks an eth_getLogs asks for: 1 by hash, 0 if it cannot be decoded.
func (c Call) Blocks() uint64 {
	var params []struct {
		FromBlock, ToBlock hexutil.Uint64
		BlockHash          string
	}
	if json.Unmarshal(c.Params, &params) != nil || len(params) == 0 {
		return 0
	}
	return uint64(params[0].ToBlock-params[0].FromBlock) + 1
}
