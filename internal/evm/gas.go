package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// Message is a call to simulate. It has no fees, so that the sender's balance limits only the value.
type Message struct {
	From  common.Address
	To    *common.Address // nil creates a contract
	Value *big.Int        // wei; nil is none
	Data  []byte
	Gas   uint64 // limit; 0 uses the node's
}

// MarshalJSON returns the parameter of eth_estimateGas.
func (m Message) MarshalJSON() ([]byte, error) {
	fields := map[string]any{"from": m.From}
	if m.To != nil {
		fields["to"] = m.To
	}
	if m.Value != nil && m.Value.Sign() != 0 {
		fields["value"] = (*hexutil.Big)(m.Value)
	}
	if len(m.Data) > 0 {
		// The older of the two names that nodes accept; all of them accept it.
		fields["data"] = hexutil.Bytes(m.Data)
	}
	if m.Gas != 0 {
		fields["gas"] = hexutil.Uint64(m.Gas)
	}
	return json.Marshal(fields)
}

// EstimateGas returns the gas that the call needs on top of the pending state, or of the newest block if the endpoint
// has no pending state. Errors: *RevertError, ErrInsufficientFunds, ErrGasAllowance, and *RPCError for another answer.
// Errors for which [IsNoAnswer] is true are not answers.
func (c *Client) EstimateGas(ctx context.Context, m Message) (uint64, error) {
	var gas uint64
	err := c.each(ctx, []string{"eth_estimateGas"}, func(ctx context.Context, ep *endpoint) error {
		response, err := ep.simulatePending(ctx, "eth_estimateGas", m)
		if err == nil {
			err = response.err
		}
		if err != nil {
			return err
		}
		if gas, err = parseUint(response.result); err != nil {
			return ep.transportError(true, err)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("estimate gas: %w", explain(err))
	}
	return gas, nil
}

// simulatePending simulates a call with eth_estimateGas or eth_call on top of the pending state, or of the newest block if
// the endpoint has no pending state.
func (ep *endpoint) simulatePending(ctx context.Context, method string, m Message) (answer, error) {
	at := func(block string, answers func(*RPCError) bool) (answer, error) {
		return ep.simulateAt(ctx, method, m, block, answers)
	}
	if until := ep.noPending.Load(); until != nil && time.Now().Before(*until) {
		return at("latest", answersCall)
	}
	response, err := at("pending", func(e *RPCError) bool { return answersCall(e) || noPending(e) })
	if e, ok := errors.AsType[*RPCError](response.err); err != nil || !ok || !noPending(e) {
		return response, err
	}
	response, err = at("latest", answersCall)
	if err == nil && response.err == nil {
		ep.log.Info("endpoint simulates on top of the newest block only", "for", pendingPardon)
		ep.noPending.Store(new(time.Now().Add(pendingPardon)))
	}
	return response, err
}

func (ep *endpoint) simulateAt(ctx context.Context, method string, m Message, block string, answers func(*RPCError) bool) (answer, error) {
	answered, err := ep.ask(ctx, []call{{method: method, params: []any{m, block}, answers: answers}})
	if err != nil {
		return answer{}, err
	}
	return answered[0], nil
}

// explain returns the typed error for an error of a simulated call.
func explain(err error) error {
	e, ok := errors.AsType[*RPCError](err)
	if !ok || IsNoAnswer(err) {
		return err
	}
	switch failureOf(e) {
	case failureFunds:
		return fmt.Errorf("%w: %w", ErrInsufficientFunds, err)
	case failureGas:
		return fmt.Errorf("%w: %w", ErrGasAllowance, err)
	case failureRevert:
		return revert(e)
	}
	return err
}
