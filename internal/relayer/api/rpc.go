package api

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// readMethods are the methods that may be called on a node: they change no state of it, and nothing is signed or sent.
var readMethods = map[string]bool{
	"eth_blobBaseFee": true, "eth_blockNumber": true, "eth_call": true, "eth_chainId": true, "eth_createAccessList": true,
	"eth_estimateGas": true, "eth_feeHistory": true, "eth_gasPrice": true, "eth_getBalance": true, "eth_getBlockByHash": true,
	"eth_getBlockByNumber": true, "eth_getBlockReceipts": true, "eth_getBlockTransactionCountByHash": true,
	"eth_getBlockTransactionCountByNumber": true, "eth_getCode": true, "eth_getLogs": true, "eth_getProof": true,
	"eth_getStorageAt": true, "eth_getTransactionByBlockHashAndIndex": true, "eth_getTransactionByBlockNumberAndIndex": true,
	"eth_getTransactionByHash": true, "eth_getTransactionCount": true, "eth_getTransactionReceipt": true,
	"eth_maxPriorityFeePerGas": true, "eth_protocolVersion": true, "eth_syncing": true, "net_version": true,
	"web3_clientVersion": true, "web3_sha3": true,
}

// maxAnswers bounds the size of the nodes' responses to all calls of a request, in bytes.
const maxAnswers = 8 << 20

func (h *Handler) rpc(ctx context.Context, c *exchange) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	calls, batch, err := openzeppelin.DecodeRPC(body)
	if err != nil {
		return err
	}
	leave, err := h.take(ctx, c, h.rpcs)
	if err != nil {
		return err
	}
	defer leave()
	if err := h.limit(c.caller, len(calls)); err != nil {
		return err
	}
	answers := make([]openzeppelin.RPCResponse, len(calls))
	size := 0
	for i := range calls {
		if size <= maxAnswers { // beyond it no node is called any more
			if answers[i], err = h.callNode(ctx, c.relayerID(), &calls[i]); err != nil {
				return err
			}
			size += len(answers[i].Result)
			if answers[i].Error != nil {
				size += len(answers[i].Error.Data)
			}
		}
		if size > maxAnswers {
			answers[i] = openzeppelin.RPCResponse{Version: "2.0", ID: calls[i].ID, Error: &relayer.RPCError{
				Code: relayer.RPCTooLarge, Message: "response too large", Description: "the answers are too large together: ask for less at once",
			}}
		}
	}
	if batch {
		return c.ok(answers)
	}
	return c.ok(answers[0])
}

// callNode responds to a call. An error is the relayer's own; a node's error is a response.
func (h *Handler) callNode(ctx context.Context, id string, call *openzeppelin.RPCRequest) (openzeppelin.RPCResponse, error) {
	out := openzeppelin.RPCResponse{Version: "2.0", ID: call.ID}
	if !readMethods[call.Method] {
		// The relayer is looked up nevertheless, so that a wrong id is reported as such.
		if _, err := h.service.Relayer(ctx, id); err != nil {
			return out, err
		}
		out.Error = &relayer.RPCError{
			Code: openzeppelin.MethodNotFound, Message: "method not available",
			Description: "only methods that read are let through, and " + clip(call.Method, 64) + " is none of them",
		}
		return out, nil
	}
	if len(call.Params) > 0 && call.Params[0] != '[' && string(call.Params) != "null" {
		out.Error = &relayer.RPCError{Code: openzeppelin.InvalidParams, Message: "invalid params", Description: "params must be an array"}
		return out, nil
	}
	result, err := h.service.RPC(ctx, id, call.Method, call.Params)
	if err == nil {
		if out.Result = result; len(result) == 0 {
			out.Result = json.RawMessage("null")
		}
		return out, nil
	}
	node, ok := errors.AsType[*relayer.RPCError](err)
	if !ok {
		return out, err
	}
	out.Error = new(*node)
	out.Error.Message = clip(node.Message, 1024)
	if len(node.Data) > maxBody {
		out.Error.Data = nil
	}
	return out, nil
}
