package evm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// View reads the chain as one endpoint has it up to one block, so that its results agree: a count of mined
// transactions, a receipt and a header can be compared. If the endpoint no longer has the block, reads fail with
// ErrStale: after a reorganization, or when another node answers behind the same name. Take a new View then. A View
// never asks another endpoint. An error without an answer carries no information about the chain.
//
// Its methods are safe for concurrent use.
type View struct {
	c  *Client
	ep *endpoint
	h  Header

	oneByOne atomic.Bool // receipts are not read by block

	mu        sync.Mutex
	canonical map[uint64]common.Hash // blocks known to lead to h
}

// blockByNumber returns the call for a block, which a healthy endpoint may lack.
func blockByNumber(n uint64) call {
	return call{method: "eth_getBlockByNumber", params: []any{hexutil.Uint64(n), false}, answers: blockUnknown, decode: checkHeader}
}

// genesisBlock returns the call for the first block. Nodes that prune old blocks refuse it with different errors, or return
// an incomplete block.
func genesisBlock() call {
	c := blockByNumber(0)
	c.answers, c.decode = anyError, nil
	return c
}

func blockByHash(hash common.Hash) call {
	return call{method: "eth_getBlockByHash", params: []any{hash, false}, answers: blockUnknown, decode: checkHeader}
}

func blockByTag(tag string) call {
	return call{method: "eth_getBlockByNumber", params: []any{tag, false}}
}

// viewMethods are the methods that a View reads with. An endpoint that fails one of them is a bad choice for a View.
var viewMethods = []string{
	headMethod, "eth_getBlockByNumber", "eth_getTransactionCount", "eth_getTransactionCount" + pendingKey, "eth_getTransactionReceipt",
}

// Latest returns a View of the newest block of the best endpoint that answers, except for some, named as View.Endpoint does. An
// endpoint at which a View's read failed recently comes after the others. A caller that starts over excepts those that it has
// tried, because the failure may not be recorded in their health. ErrNoEndpoint means that there is no other.
func (c *Client) Latest(ctx context.Context, except ...string) (*View, error) {
	eps := slices.DeleteFunc(c.candidates(viewMethods...), func(ep *endpoint) bool { return slices.Contains(except, ep.name) })
	if len(eps) == 0 {
		return nil, fmt.Errorf("read the newest block: %w", c.none(viewMethods...))
	}
	var v *View
	err := eachOf(ctx, eps, func(ctx context.Context, ep *endpoint) error {
		h, err := c.newest(ctx, ep)
		v = c.view(ep, h)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the newest block: %w", err)
	}
	return v, nil
}

// LatestOf returns a View of the newest block of one endpoint, named as View.Endpoint and Status do.
func (c *Client) LatestOf(ctx context.Context, endpoint string) (*View, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return nil, err
	}
	h, err := c.newest(ctx, ep)
	if err != nil {
		return nil, fmt.Errorf("read the newest block: %w", err)
	}
	return c.view(ep, h), nil
}

// ViewAt returns a View of a block at one endpoint. ErrStale means that the block is not on the endpoint's chain.
func (c *Client) ViewAt(ctx context.Context, endpoint string, hash common.Hash) (*View, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return nil, err
	}
	answers, err := ep.ask(ctx, []call{blockByHash(hash)})
	if err != nil {
		return nil, fmt.Errorf("read block %s: %w", hash, err)
	}
	h, err := headerOf(answers[0])
	if errors.Is(err, ErrMissing) {
		return nil, staleError(ep.name, 0, hash, "unknown")
	}
	if err != nil {
		return nil, fmt.Errorf("read block %s: %w", hash, err)
	}
	v := c.view(ep, h)
	// Nodes also keep blocks that are on no chain.
	_, err = v.ask(ctx, nil, h.Number)
	return v, err
}

func (c *Client) named(endpoint string) (*endpoint, error) {
	for _, ep := range c.endpoints {
		if ep.name == endpoint {
			return ep, nil
		}
	}
	return nil, fmt.Errorf("%w of the name %q", ErrNoEndpoint, endpoint)
}

func (c *Client) view(ep *endpoint, h Header) *View {
	h.seal = nil // of some sources only
	return &View{c: c, ep: ep, h: h, canonical: map[uint64]common.Hash{h.Number: h.Hash}}
}

// PendingEverywhere returns the highest count that any endpoint reports for [View.PendingNonces]. It fails unless all
// of them answer. An endpoint whose history differs is not asked.
func (c *Client) PendingEverywhere(ctx context.Context, addrs []common.Address) ([]uint64, error) {
	highest := make([]uint64, len(addrs))
	for _, ep := range c.endpoints {
		if ep.leftOut() {
			continue
		}
		var pending []uint64
		v, err := c.LatestOf(ctx, ep.name)
		if err == nil {
			pending, err = v.PendingNonces(ctx, addrs)
		}
		if err != nil {
			return nil, fmt.Errorf("ask all endpoints for what is pending (one that does not come back has to be taken out of the configuration): %w", err)
		}
		for i, n := range pending {
			highest[i] = max(highest[i], n)
		}
	}
	return highest, nil
}

// Header returns the header of the block.
func (v *View) Header() Header { return v.h }

// Endpoint returns the name of the endpoint that the View reads from.
func (v *View) Endpoint() string { return v.ep.name }

// ask sends calls, and reads the headers of some blocks, to find out what is on the chain that leads to the View's
// block. Then it reads the View's block in a separate request, because nodes may process a batch in any order. If that
// block is still there, the others lead to it. Without blocks to check, ask returns the answers unchecked.
func (v *View) ask(ctx context.Context, calls []call, check ...uint64) ([]answer, error) {
	n := len(calls)
	for _, number := range check {
		if number != v.h.Number {
			calls = append(calls, blockByNumber(number))
		}
	}
	var answers []answer
	if len(calls) > 0 {
		var err error
		if answers, err = v.ep.askPatiently(ctx, calls); err != nil {
			return nil, err
		}
		for _, a := range answers {
			if IsNoAnswer(a.err) {
				return nil, a.err
			}
		}
	}
	if len(check) == 0 {
		return answers, nil
	}
	last, err := v.ep.askPatiently(ctx, []call{blockByNumber(v.h.Number)})
	if err != nil {
		return nil, err
	}
	now, err := headerOf(last[0])
	if errors.Is(err, ErrMissing) {
		return nil, v.stale("gone")
	} else if err != nil {
		return nil, err
	}
	if now.Hash != v.h.Hash {
		return nil, v.stale("replaced by " + now.Hash.TerminalString())
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, a := range answers[n:] {
		h, err := headerOf(a)
		if err != nil {
			return nil, err
		}
		v.canonical[h.Number] = h.Hash
	}
	return answers[:n], nil
}

// Distrust records that the endpoint's answers to a method are false, which only the caller can tell. [Client.Latest] prefers
// another endpoint for a quarter of a second and more, until this one answers the method again. It returns an error without
// an answer that wraps why.
func (v *View) Distrust(method string, why error) error { return v.ep.distrust(method, why) }

func (ep *endpoint) distrust(method string, why error) error {
	ep.mu.Lock()
	ep.methodFailed(method, why.Error(), false)
	ep.mu.Unlock()
	return ep.transportError(true, why)
}

func (v *View) stale(why string) error { return staleError(v.ep.name, v.h.Number, v.h.Hash, why) }

// fault returns the error of an answer about the View's block: ErrStale if the endpoint does not know that block.
func (v *View) fault(err error) error {
	if e, ok := errors.AsType[*RPCError](err); ok && blockUnknown(e) {
		return v.stale(e.Message)
	}
	return err
}

// atBlock returns EIP-1898's parameter for the View's block.
func (v *View) atBlock() any {
	return map[string]any{"blockHash": v.h.Hash, "requireCanonical": true}
}

// Nonces returns the number of mined transactions of each account up to the View's block.
func (v *View) Nonces(ctx context.Context, addrs []common.Address) ([]uint64, error) {
	if until := v.ep.noBlockHash.Load(); until != nil && time.Now().Before(*until) {
		return v.noncesByNumber(ctx, addrs)
	}
	counts, err := v.counts(ctx, addrs, v.atBlock(), unsupported)
	if e, ok := errors.AsType[*RPCError](err); !ok || !unsupported(e) {
		return counts, err
	}
	counts, byNumber := v.noncesByNumber(ctx, addrs)
	if byNumber == nil {
		v.ep.log.Info("endpoint takes no block hashes, blocks are checked before and after", "err", err, "for", unsupportedPardon)
		v.ep.noBlockHash.Store(new(time.Now().Add(unsupportedPardon)))
	}
	return counts, byNumber
}

// noncesByNumber is Nonces for endpoints that do not accept block hashes. The number refers to the View's block before
// the read, when the View was made, and afterwards; so it did in between.
func (v *View) noncesByNumber(ctx context.Context, addrs []common.Address) ([]uint64, error) {
	counts, err := v.counts(ctx, addrs, hexutil.Uint64(v.h.Number), nil)
	if err != nil {
		return nil, err
	}
	_, err = v.ask(ctx, nil, v.h.Number)
	return counts, err
}

// PendingNonces returns the number of transactions of each account that are mined or, without a gap, in the endpoint's
// pool. The endpoint reports its current state, regardless of the View's block.
func (v *View) PendingNonces(ctx context.Context, addrs []common.Address) ([]uint64, error) {
	return v.counts(ctx, addrs, "pending", nil)
}

// counts reads transaction counts; answered reports which errors are answers, as in call.
func (v *View) counts(ctx context.Context, addrs []common.Address, block any, answered func(*RPCError) bool) ([]uint64, error) {
	if len(addrs) == 0 {
		return nil, nil
	}
	calls, counts := make([]call, len(addrs)), make([]uint64, len(addrs))
	for i, a := range addrs {
		calls[i] = call{
			method: "eth_getTransactionCount", params: []any{a, block}, answers: answered,
			decode: func(result []byte) (err error) { counts[i], err = parseUint(result); return err },
		}
	}
	answers, err := v.ep.askPatiently(ctx, calls)
	if err != nil {
		return nil, fmt.Errorf("count transactions: %w", err)
	}
	for i, a := range answers {
		if err := v.fault(a.err); err != nil {
			return nil, fmt.Errorf("count transactions of %s: %w", addrs[i], err)
		}
	}
	return counts, nil
}

// Tagged returns the header of the block that the endpoint tags as "safe" or "finalized", at most the View's own.
// ErrMissing means that no such block leads to the View's block, or that the endpoint does not support the tag. Any other
// error of the endpoint carries no information about the tag, and another endpoint may have the block.
func (v *View) Tagged(ctx context.Context, tag string) (Header, error) {
	// An endpoint without the tag is a worse choice for the next View.
	h, err := v.ep.tagged(ctx, tag, nil)
	if err != nil {
		return Header{}, fmt.Errorf("read the %s block: %w", tag, err)
	}
	answers, err := v.ask(ctx, []call{blockByNumber(h.Number)}, v.h.Number)
	if err != nil {
		return Header{}, fmt.Errorf("read the %s block: %w", tag, err)
	}
	on, err := headerOf(answers[0])
	switch {
	case err != nil:
		return Header{}, fmt.Errorf("read the %s block %d: %w", tag, h.Number, err)
	case on.Hash != h.Hash:
		return Header{}, fmt.Errorf("%s block %s is not on the chain: %w", tag, h.Hash, ErrMissing)
	case h.Number > v.h.Number: // the chain has grown since the View was taken, and the View's block leads to the tagged one
		return v.h, nil
	}
	return h, nil
}

// Headers returns the headers of the blocks from from to to, which lead to the View's block; to is at most that. They
// are linked: each is the parent of the next.
func (v *View) Headers(ctx context.Context, from, to uint64) ([]Header, error) {
	if from > to || to > v.h.Number {
		return nil, fmt.Errorf("headers %d to %d at block %d: %w", from, to, v.h.Number, ErrMissing)
	}
	calls := make([]call, 0, to-from+1)
	for n := from; n <= to; n++ {
		calls = append(calls, blockByNumber(n))
	}
	answers, err := v.ask(ctx, calls, v.h.Number)
	if err != nil {
		return nil, fmt.Errorf("read headers %d to %d: %w", from, to, err)
	}
	headers := make([]Header, len(answers))
	for i, a := range answers {
		if headers[i], err = headerOf(a); err != nil {
			return nil, fmt.Errorf("read header %d: %w", from+uint64(i), err)
		}
		if headers[i].Number != from+uint64(i) || i > 0 && headers[i].Parent != headers[i-1].Hash {
			return nil, v.stale("the blocks before it changed")
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, h := range headers {
		v.canonical[h.Number] = h.Hash
	}
	return headers, nil
}
