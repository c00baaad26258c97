package evm

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// revert returns the revert reason from the error data, in any node's format, or else from the words.
func revert(e *RPCError) *RevertError {
	r := &RevertError{Data: revertData(e.Data)}
	if len(r.Data) > 0 {
		r.Reason = reason(r.Data)
	} else {
		r.Reason = reasonIn(words(e))
	}
	return r
}

const (
	selectorSize = 4
	wordSize     = 32
)

// isRevertData reports whether the data are those of a contract that reverted with an Error(string), a Panic(uint256) or a
// custom error. The length excludes hashes and addresses, which nodes put into the data of other errors.
func isRevertData(data []byte) bool {
	if len(data) < selectorSize {
		return false
	}
	if len(data)%wordSize == selectorSize {
		return true
	}
	_, err := abi.UnpackRevert(data) // some compilers do not pad the text
	return err == nil
}

// maxDepth bounds how deep revert data may be nested in an error's data.
const maxDepth = 4

// dataFields are the fields of an error's data that may contain revert data, the likeliest first. Hardhat, zkSync and proxies
// use "data"; Ganache uses "result", and "return" before; proxies quote the node's error in the last two.
var dataFields = []string{"data", "result", "return", "output", "originalError", "error"}

// revertData returns the hexadecimal data in an error's data. They are the whole text, follow a word such as "Reverted ", or
// are in a field of an object: directly, or in an object under the transaction's hash, as Ganache has it. If there are
// several, it returns the first that a contract may have returned.
func revertData(raw json.RawMessage) []byte { return nestedData(raw, maxDepth) }

func nestedData(raw json.RawMessage, depth int) []byte {
	if len(raw) == 0 || depth == 0 {
		return nil
	}
	if raw[0] == '"' {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return nil
		}
		return hexIn(text)
	}
	var object map[string]json.RawMessage
	if raw[0] != '{' || json.Unmarshal(raw, &object) != nil {
		return nil
	}
	var first []byte
	for _, field := range slices.Concat(dataFields, hashesIn(object)) {
		data := nestedData(object[field], depth-1)
		if isRevertData(data) {
			return data
		}
		if first == nil {
			first = data
		}
	}
	return first
}

// hashesIn returns the fields of an object that are hashes of transactions, one at most.
func hashesIn(object map[string]json.RawMessage) []string {
	for field := range object {
		if len(field) == len("0x")+2*common.HashLength && strings.HasPrefix(field, "0x") {
			return []string{field}
		}
	}
	return nil
}

// hexIn returns the hexadecimal data at the end of a text; nil if there are none. At the end of other words than "Reverted "
// a selector alone is none: it may be the number of a block.
func hexIn(text string) []byte {
	before, digits, ok := strings.Cut(text, "0x")
	if !ok {
		return nil
	}
	data, err := hex.DecodeString(digits)
	if err != nil || len(data) == selectorSize && before != "" && !strings.EqualFold(before, "reverted ") {
		return nil
	}
	return data
}

// reason returns revert data as readable text.
func reason(data []byte) string {
	if text, err := abi.UnpackRevert(data); err == nil {
		return text
	}
	if len(data) < selectorSize {
		return hexutil.Encode(data)
	}
	return "custom error " + hexutil.Encode(data[:selectorSize])
}

// reasonMarks precede the reason in the words of nodes that report it only there, and end it.
var reasonMarks = []struct{ before, after string }{
	{"reverted with reason string '", "'"}, // Hardhat
	{"reverted with ", ""},                 // Hardhat: … custom error 'Name()', … panic code 0x11 (…)
	{"reverted: ", ""},                     // geth and most others
	{"transaction: revert ", ""},
	{"revert: ", ""},
}

// reasonIn returns the reason in the words of a revert; empty if there is none.
func reasonIn(text string) string {
	for _, mark := range reasonMarks {
		if _, after, ok := strings.Cut(text, mark.before); ok {
			return strings.TrimSpace(strings.TrimSuffix(after, mark.after))
		}
	}
	return ""
}
