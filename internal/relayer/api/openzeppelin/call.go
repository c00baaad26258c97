package openzeppelin

import (
	"bytes"
	"encoding/json"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/platform/jsonbody"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// MaxBatch bounds the calls of one JSON-RPC request.
const MaxBatch = 50

// RPCRequest is a JSON-RPC call.
type RPCRequest struct {
	Version string          `json:"jsonrpc"` // "2.0"
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	ID      json.RawMessage `json:"id"` // a string, a number or null
}

// RPCResponse is the response to a call; exactly one of Result and Error is set.
type RPCResponse struct {
	Version string            `json:"jsonrpc"`
	Result  json.RawMessage   `json:"result,omitempty"`
	Error   *relayer.RPCError `json:"error,omitempty"`
	ID      json.RawMessage   `json:"id,omitempty"`
}

// These are the codes of errors that no node returned.
const (
	MethodNotFound = -32601
	InvalidParams  = -32602
)

// DecodeRPC reads a JSON-RPC call, or a batch of them.
func DecodeRPC(body []byte) (calls []RPCRequest, batch bool, err error) {
	body, err = wellFormed(body)
	if err != nil {
		return nil, false, err
	}
	switch body[0] {
	case '{':
		call, err := decodeCall(body)
		return []RPCRequest{call}, false, err
	case '[':
		err = elements(body, func(value []byte) error {
			if value[0] != '{' {
				return relayer.Invalidf("", "each call of a batch must be a JSON object")
			}
			if len(calls) == MaxBatch {
				return relayer.Invalidf("", "a batch has at most %d calls", MaxBatch)
			}
			call, err := decodeCall(value)
			calls = append(calls, call)
			return err
		})
		if err == nil && len(calls) == 0 {
			err = relayer.Invalidf("", "the batch is empty")
		}
		return calls, true, err
	default:
		return nil, false, relayer.Invalidf("", "the body must be a JSON-RPC call or a batch of them")
	}
}

func decodeCall(object []byte) (RPCRequest, error) {
	var call RPCRequest
	err := fields(object, "", func(name, value []byte) (err error) {
		switch string(name) {
		case "jsonrpc":
			call.Version, err = jsonbody.Text("jsonrpc", value)
		case "method":
			call.Method, err = jsonbody.Text("method", value)
		case "params":
			call.Params = bytes.Clone(value) // other values than arrays are an error of this call alone
		case "id":
			if value[0] == '[' || value[0] == '{' || value[0] == 't' || value[0] == 'f' {
				err = relayer.Invalidf("id", "must be a string or a number")
			}
			call.ID = bytes.Clone(value)
		default:
			err = jsonbody.OtherCase("", name, "jsonrpc", "method", "params", "id")
		}
		return err
	})
	switch {
	case err != nil:
	case call.Version != "2.0":
		err = relayer.Invalidf("jsonrpc", "must be \"2.0\"")
	case call.Method == "":
		err = relayer.Invalidf("method", "is missing")
	}
	return call, err
}

// DecodeSign reads a request to sign a message.
func DecodeSign(body []byte) (message string, err error) {
	body, err = object(body)
	if err != nil {
		return "", err
	}
	found := false
	err = fields(body, "", func(name, value []byte) (err error) {
		if string(name) != "message" {
			return jsonbody.OtherCase("", name, "message")
		}
		found = true
		message, err = jsonbody.Text("message", value)
		return err
	})
	if err == nil && !found {
		err = relayer.Invalidf("message", "is missing")
	}
	return message, err
}

// DecodeSignTypedData reads a request to sign the two hashes of EIP-712.
func DecodeSignTypedData(body []byte) (domainSeparator, hashStruct common.Hash, err error) {
	const domainName, structName = "domain_separator", "hash_struct_message"
	body, err = object(body)
	if err != nil {
		return domainSeparator, hashStruct, err
	}
	var found [2]bool
	err = fields(body, "", func(name, value []byte) (err error) {
		switch string(name) {
		case domainName:
			found[0] = true
			domainSeparator, err = hash(domainName, value)
		case structName:
			found[1] = true
			hashStruct, err = hash(structName, value)
		default:
			err = jsonbody.OtherCase("", name, domainName, structName)
		}
		return err
	})
	for i, name := range []string{domainName, structName} {
		if err == nil && !found[i] {
			err = relayer.Invalidf(name, "is missing")
		}
	}
	return domainSeparator, hashStruct, err
}

func hash(field string, value []byte) (common.Hash, error) {
	b, err := jsonbody.Bytes(field, value)
	if err == nil && len(b) != common.HashLength {
		err = relayer.Invalidf(field, "must have %d bytes, not %d", common.HashLength, len(b))
	}
	return common.BytesToHash(b), err
}
