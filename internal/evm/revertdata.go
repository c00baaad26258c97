package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// RevertData returns the data that a mined transaction returned when it reverted. It reads a trace. If no endpoint
// offers traces, it repeats the call on top of the transaction's block, whose state is close to the original one. It
// returns nil if neither yields data.
func (c *Client) RevertData(ctx context.Context, tx, block common.Hash) ([]byte, error) {
	data, traced := c.traceRevert(ctx, tx)
	if traced == nil && len(data) > 0 {
		return data, nil
	}
	data, err := c.callAgain(ctx, tx, block)
	if err != nil {
		return nil, fmt.Errorf("read the revert data of %s: %w", tx, errors.Join(traced, err))
	}
	return data, nil
}

func (c *Client) traceRevert(ctx context.Context, tx common.Hash) ([]byte, error) {
	params, err := json.Marshal([]any{tx, map[string]any{
		"tracer": "callTracer", "tracerConfig": map[string]any{"onlyTopCall": true},
	}})
	if err != nil {
		return nil, err
	}
	result, err := c.Call(ctx, "debug_traceTransaction", params)
	if err != nil {
		return nil, err
	}
	var trace struct {
		Error  string        `json:"error"`
		Output hexutil.Bytes `json:"output"`
	}
	if err := json.Unmarshal(result, &trace); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	if trace.Error == "" {
		return nil, nil
	}
	return trace.Output, nil
}

func (c *Client) callAgain(ctx context.Context, tx, block common.Hash) ([]byte, error) {
	params, err := json.Marshal([]any{tx})
	if err != nil {
		return nil, err
	}
	result, err := c.Call(ctx, "eth_getTransactionByHash", params)
	if err != nil {
		return nil, err
	}
	var mined struct {
		From  common.Address  `json:"from"`
		To    *common.Address `json:"to"`
		Value *hexutil.Big    `json:"value"`
		Input hexutil.Bytes   `json:"input"`
		Gas   hexutil.Uint64  `json:"gas"`
	}
	if err := json.Unmarshal(result, &mined); err != nil {
		return nil, fmt.Errorf("transaction: %w", err)
	}
	m := Message{From: mined.From, To: mined.To, Value: mined.Value.ToInt(), Data: mined.Input, Gas: uint64(mined.Gas)}
	params, err = json.Marshal([]any{m, map[string]any{"blockHash": block, "requireCanonical": true}})
	if err != nil {
		return nil, err
	}
	_, err = c.Call(ctx, "eth_call", params)
	if err == nil {
		return nil, nil // the call succeeds there
	}
	if revert, ok := errors.AsType[*RevertError](explain(err)); ok {
		return revert.Data, nil
	}
	return nil, err
}
