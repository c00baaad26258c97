package evm

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
)

// State is the state of the chain that a call reads.
type State int

const (
	// LatestState is the state after the newest block.
	LatestState State = iota
	// PendingState is LatestState plus the transactions in the endpoint's pool. An endpoint without pending state uses
	// LatestState.
	PendingState
)

// CallAnswer is one endpoint's answer to a call of a contract.
type CallAnswer struct {
	Endpoint string
	Data     []byte // empty if the account has no code
	Err      error  // *RevertError if the contract reverted; IsNoAnswer, or ErrNoEndpoint, if there is no answer
}

// CallContract executes a call without a transaction at all endpoints concurrently, so that the caller can compare the
// answers and no single endpoint decides. It waits for every endpoint until ctx ends. Endpoints that failed recently are
// asked only if there are no others. Endpoints that are not asked have ErrNoEndpoint. The answers are in the configured
// order. Endpoints may be at different blocks.
func (c *Client) CallContract(ctx context.Context, m Message, s State) []CallAnswer {
	key := "eth_call"
	if s == PendingState {
		key += pendingKey
	}
	now := time.Now()
	standings := make([]endpointHealth, len(c.endpoints))
	limit := standingLimited
	for i, ep := range c.endpoints {
		standings[i] = ep.healthOf(now, key)
		if standings[i] < standingFailing {
			limit = standingFailing
		}
	}
	all := make([]CallAnswer, len(c.endpoints))
	var wg sync.WaitGroup
	for i, ep := range c.endpoints {
		all[i].Endpoint = ep.name
		if standings[i] >= limit {
			all[i].Err = ErrNoEndpoint
			continue
		}
		wg.Go(func() {
			all[i].Data, all[i].Err = ep.callContract(ctx, m, s)
		})
	}
	wg.Wait()
	return all
}

func (ep *endpoint) callContract(ctx context.Context, m Message, s State) ([]byte, error) {
	var response answer
	var err error
	if s == PendingState {
		response, err = ep.simulatePending(ctx, "eth_call", m)
	} else {
		response, err = ep.simulateAt(ctx, "eth_call", m, "latest", answersCall)
	}
	if err == nil {
		err = response.err
	}
	if err != nil {
		return nil, fmt.Errorf("call contract: %w", explain(err))
	}
	var data hexutil.Bytes
	if err := json.Unmarshal(response.result, &data); err != nil || data == nil {
		return nil, fmt.Errorf("call contract: %w", ep.transportError(true, errMalformed))
	}
	return data, nil
}
