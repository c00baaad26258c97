package evm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Status is the recorded state of the chain and its endpoints; it sends no requests.
type Status struct {
	ChainID    uint64           `json:"chain_id"` // as configured
	Head       uint64           `json:"head"`     // of the best endpoint
	Subscribed bool             `json:"subscribed"`
	Endpoints  []EndpointStatus `json:"endpoints"` // in the configured order
}

// OK reports whether at least one endpoint is healthy.
func (s Status) OK() bool {
	for _, ep := range s.Endpoints {
		if ep.OK {
			return true
		}
	}
	return false
}

// EndpointStatus is the recorded state of one endpoint.
type EndpointStatus struct {
	Endpoint string `json:"endpoint"` // its host
	OK       bool   `json:"ok"`
	Reason   string `json:"reason,omitempty"` // why not OK
	// Failing maps each method that the endpoint failed when last asked to the reason. It may answer all others.
	Failing  map[string]string `json:"failing,omitempty"`
	ChainID  uint64            `json:"chain_id"` // as reported; 0 before the first report
	Genesis  common.Hash       `json:"genesis"`  // hash of its first block; zero if unknown
	Head     uint64            `json:"head"`
	HeadTime time.Time         `json:"head_time"` // of the block
	SeenAt   time.Time         `json:"seen_at"`   // when the head was read
	Lag      uint64            `json:"lag"`       // blocks behind the best endpoint then
	Syncing  bool              `json:"syncing"`   // as it says itself
}

// Status returns the state of all endpoints.
func (c *Client) Status() Status {
	now := time.Now()
	s := Status{ChainID: c.cfg.ChainID, Head: c.best().Number, Subscribed: c.heads.isLive()}
	for _, ep := range c.endpoints {
		standing := ep.healthOf(now)
		ep.mu.Lock()
		e := EndpointStatus{
			Endpoint: ep.name, ChainID: ep.chainID, Genesis: ep.genesis,
			Head: ep.head.Number, HeadTime: ep.head.Time, SeenAt: ep.seen, Lag: ep.lag, Syncing: ep.syncing,
			Failing: ep.failing(),
		}
		switch {
		case standing == standingWrong:
			e.Reason = fmt.Sprintf("chain id is %d, not %d", ep.chainID, c.cfg.ChainID)
		case ep.failures > 0:
			e.Reason = ep.reason // also between two attempts
		case standing == standingExcluded:
			e.Reason = "excluded: " + ep.excluded.Reason
		case e.Failing[headMethod] != "":
			e.Reason = headMethod + ": " + e.Failing[headMethod]
		case ep.head.IsZero():
			e.Reason = "has not answered yet"
		case standing == standingLagging && ep.syncing:
			e.Reason = fmt.Sprintf("it is syncing, and its newest block is %s old", now.Sub(ep.head.Time).Round(time.Second))
		case standing == standingLagging:
			e.Reason = fmt.Sprintf("%d blocks behind the best endpoint", ep.lag)
			if len(c.endpoints) == 1 { // there is no other
				e.Reason = fmt.Sprintf("%d blocks behind what it has shown before: its chain was reset, or another node answers now", ep.lag)
			}
		case c.cfg.MaxHeadAge > 0 && now.Sub(ep.head.Time) > c.cfg.MaxHeadAge:
			e.Reason = fmt.Sprintf("its newest block is %s old", now.Sub(ep.head.Time).Round(time.Second))
		default:
			e.OK = true
		}
		ep.mu.Unlock()
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// Anchor is an endpoint's answer about blocks that never change on a chain that keeps its history.
type Anchor struct {
	Endpoint string
	Genesis  common.Hash // of its first block; zero if the node has pruned it
	Block    Header      // the requested block; zero if it has none of that number
	Err      error       // the endpoint gave no answer
}

// Anchors asks all endpoints of the right chain for their first block and the block of the given number, to recognize a
// chain that has lost its history. An endpoint of another chain has a *WrongChainError. With stragglers above 0,
// endpoints that answer later than the first answer plus stragglers have an error. Otherwise Anchors waits for all of
// them, for four times Config.Timeout at most.
func (c *Client) Anchors(ctx context.Context, number uint64, stragglers time.Duration) []Anchor {
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	anchors := make([]Anchor, len(c.endpoints))
	var wg sync.WaitGroup
	var first sync.Once
	for i, ep := range c.endpoints {
		wg.Go(func() {
			if anchors[i] = ep.anchor(ctx, number); anchors[i].Err == nil && stragglers > 0 {
				first.Do(func() { time.AfterFunc(stragglers, cancel) })
			}
		})
	}
	wg.Wait()
	return anchors
}

func (ep *endpoint) anchor(ctx context.Context, number uint64) Anchor {
	if a, ok := ep.sameAnchor(ctx, number); ok {
		return a
	}
	a := Anchor{Endpoint: ep.name}
	answers, err := ep.identify(ctx, blockByNumber(number))
	if err != nil {
		a.Err = fmt.Errorf("read blocks: %w", err)
		return a
	}
	genesis, genesisErr := headerOf(answers[0])
	block, blockErr := headerOf(answers[1])
	a.Genesis, a.Block = genesis.Hash, block
	for _, err := range []error{genesisErr, blockErr} {
		if err != nil && !errors.Is(err, ErrMissing) {
			a.Err = errors.Join(a.Err, fmt.Errorf("read blocks: %w", err))
		}
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.anchored = block
	return a
}

// sameAnchor reads only the block, if its last answer is known and the endpoint has reported its chain recently. It returns
// false if the answer has changed: then the chain is read as well.
func (ep *endpoint) sameAnchor(ctx context.Context, number uint64) (Anchor, bool) {
	ep.mu.Lock()
	last, genesis := ep.anchored, ep.genesis
	ep.mu.Unlock()
	if last.IsZero() || last.Number != number || genesis == (common.Hash{}) || !ep.isVerified() {
		return Anchor{}, false
	}
	answers, err := ep.send(ctx, []call{blockByNumber(number)}, false)
	if err != nil {
		return Anchor{Endpoint: ep.name, Err: fmt.Errorf("read blocks: %w", err)}, true
	}
	block, err := headerOf(answers[0])
	if err != nil || block.Hash != last.Hash {
		return Anchor{}, false
	}
	return Anchor{Endpoint: ep.name, Genesis: genesis, Block: block}, true
}
