package evm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

const sendMethod = "eth_sendRawTransaction"

// Raw is a signed transaction.
type Raw struct {
	Hash  common.Hash // in errors; the node's answer must equal it
	Bytes []byte      // the parameter of eth_sendRawTransaction
}

// Result is the outcome of sending one transaction.
type Result struct {
	Outcome  Outcome
	Endpoint string // endpoint that returned Outcome; empty if there is none
	Err      error  // the endpoint's error; nil if Accepted
	Reached  bool   // an endpoint accepted the transaction, or rejected it for a recognized reason
	// Rejected is a rejection that may be permanent, if every recognized answer is one; otherwise it is Unknown. Outcome
	// differs from it where another endpoint gave no recognized answer.
	Rejected Outcome
	// Unrecognized reports that Outcome is Unknown only because of words: each endpoint that may have the transaction has
	// refused it in words that are not recognized, and no other one has given a recognized answer.
	Unrecognized bool
}

// Send broadcasts transactions, to each endpoint in the given order. The result has one entry for each.
//
// Without Config.BroadcastAll the preferred endpoint receives all of them, and the next one those that it did not accept.
// With it, Send is [Client.SendToAll].
//
// The results of several endpoints are combined as follows. Accepted by any is Accepted. Otherwise, if one endpoint may
// have the transaction, the result is Unknown. Otherwise no endpoint has it, and the least final answer is returned:
// first one about the nonce, then a temporary one, then a permanent one, then not having reached an endpoint.
func (c *Client) Send(ctx context.Context, txs []Raw) []Result {
	return c.send(ctx, txs, c.cfg.BroadcastAll)
}

// SendToAll is Send to all endpoints. It helps a transaction that one of them has accepted and does not forward. It
// returns as soon as each transaction has been accepted by one endpoint; the other sends continue in the background, for four
// times Config.Timeout at most.
func (c *Client) SendToAll(ctx context.Context, txs []Raw) []Result {
	return c.send(ctx, txs, true)
}

func (c *Client) send(ctx context.Context, txs []Raw, all bool) []Result {
	t := newResults(len(txs))
	eps := c.candidates(sendMethod)
	if len(eps) == 0 {
		err := c.none(sendMethod)
		outcome := NotSent
		if isRateLimit(err) {
			outcome = RateLimited
		}
		for i := range txs {
			t.add(i, Result{Outcome: outcome, Err: err})
		}
		return t.results
	}
	if all && len(eps) > 1 {
		return c.sendAll(ctx, eps, txs, t)
	}
	for i, ep := range eps {
		left := t.needRetry()
		if len(left) == 0 || i > 0 && ctx.Err() != nil {
			break
		}
		attempt, cancel := share(ctx, len(eps)-i)
		ep.broadcast(attempt, txs, left, t, false)
		cancel()
	}
	return t.results
}

// sendAll sends to all endpoints concurrently.
func (c *Client) sendAll(ctx context.Context, eps []*endpoint, txs []Raw, t *results) []Result {
	every := make([]int, len(txs))
	for i := range every {
		every[i] = i
	}
	// A caller that has its answer, or gives up, does not cancel the other sends.
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.patience())
	unlink := context.AfterFunc(c.life, cancel)
	var wg sync.WaitGroup
	for _, ep := range eps {
		wg.Add(1)
		c.background.Go(func() {
			defer wg.Done()
			ep.broadcast(detached, txs, every, t, true)
		})
	}
	finished := make(chan struct{})
	c.background.Go(func() {
		wg.Wait()
		unlink()
		cancel()
		close(finished)
	})
	select {
	case <-finished:
	case <-t.allDone:
	case <-ctx.Done():
	}
	return t.snapshot(ctx.Err())
}

// broadcast sends some of the transactions to the endpoint, in order, and adds its answers to t. With patient, it waits for a
// rate limit to pass.
func (ep *endpoint) broadcast(ctx context.Context, txs []Raw, which []int, t *results, patient bool) {
	calls := make([]call, len(which))
	for i, k := range which {
		calls[i] = call{method: sendMethod, params: []any{hexutil.Bytes(txs[k].Bytes)}, answers: answersSend}
	}
	var q *query
	q = newQuery(ep, calls, func(i int, a answer) {
		result := ep.result(a, txs[which[i]].Hash)
		// A refusal of the second attempt does not mean that the endpoint did not take the first.
		if err := q.earlier[i]; err != nil {
			result = combine(ep.result(answer{err: err}, txs[which[i]].Hash), result)
		}
		if q.doubt[i] {
			result = combine(Result{Outcome: Unknown, Endpoint: ep.name, Err: result.Err}, result)
		}
		t.add(which[i], result)
	})
	q.ordered, q.patient = true, q.patient || patient
	err := ep.verify(ctx)
	if err == nil {
		err = q.run(ctx)
	}
	// The transactions after a failed request were not sent to this endpoint, because they are sent in order or not at
	// all.
	for _, i := range q.left {
		outcome := NotSent
		switch {
		case q.doubt[i], q.earlier[i] != nil:
			outcome = Unknown
		case isRateLimit(err):
			outcome = RateLimited
		}
		t.add(which[i], Result{Outcome: outcome, Endpoint: ep.name, Err: err})
	}
}

func (ep *endpoint) result(a answer, want common.Hash) Result {
	err := a.err
	if err == nil {
		var got common.Hash
		if got, err = parseHash(a.result); err == nil && want != (common.Hash{}) && got != want {
			err = fmt.Errorf("the endpoint calls the transaction %s", got)
		}
	}
	if err == nil {
		return Result{Outcome: Accepted, Endpoint: ep.name, Reached: true}
	}
	e, answered := errors.AsType[*RPCError](err)
	r := Result{
		Outcome: Classify(err), Endpoint: ep.name, Err: fmt.Errorf("send %s: %w", want, err), Reached: answered && answersSend(e),
	}
	if r.Outcome.MaybePermanent() {
		r.Rejected = r.Outcome
	}
	r.Unrecognized = answered && r.Outcome == Unknown
	return r
}

// precedence orders outcomes; when endpoints disagree, the first is returned.
var precedence = []Outcome{
	Accepted, AlreadyKnown, Unknown,
	NonceTooLow, ReplacementUnderpriced, NonceTooHigh,
	RateLimited, PoolFull, FeeCapTooLow, Underpriced, InsufficientFunds,
	IntrinsicGas, ExceedsBlockGas, TipAboveCap, Oversized, WrongChain, FeeCapExceeded, Refused,
	NotSent,
}

var rank = func() map[Outcome]int {
	ranks := make(map[Outcome]int, len(precedence))
	for i, o := range precedence {
		ranks[o] = i
	}
	return ranks
}()

// combine returns the result of two endpoints that takes precedence. Of two equal ones it is a node's answer.
func combine(a, b Result) Result {
	first, other := a, b
	_, answered := errors.AsType[*RPCError](b.Err)
	if rank[b.Outcome] < rank[a.Outcome] || b.Outcome == a.Outcome && answered {
		first, other = b, a
	}
	first.Rejected = combineRejected(a, b)
	first.Unrecognized = first.Unrecognized && (other.Unrecognized || !other.Reached && other.Outcome != Unknown)
	first.Reached = first.Reached || other.Reached
	return first
}

// combineRejected returns the rejection of two results that takes precedence, unless one has another recognized answer.
func combineRejected(a, b Result) Outcome {
	switch {
	case a.Rejected == Unknown && a.Reached, b.Rejected == Unknown && b.Reached:
		return Unknown
	case a.Rejected == Unknown:
		return b.Rejected
	case b.Rejected == Unknown, rank[a.Rejected] < rank[b.Rejected]:
		return a.Rejected
	default:
		return b.Rejected
	}
}

// MaybePermanent reports whether no node may ever accept the transaction, whatever its fee. A node may be wrong about
// that, or its operator's limits may be lower than those of other nodes.
func (o Outcome) MaybePermanent() bool {
	switch o {
	case IntrinsicGas, ExceedsBlockGas, Oversized, Refused, FeeCapExceeded:
		return true
	default:
		return false
	}
}

// conclusive reports whether no other endpoint needs to receive the transaction. One endpoint's rejection is not, because it
// may be about this node, its pool or its head, or false. Only a tip above the fee is wrong by the bytes alone everywhere.
func (o Outcome) conclusive() bool { return o.Done() || o == TipAboveCap }

// results collects the answers of endpoints for each transaction.
type results struct {
	mu       sync.Mutex
	results  []Result
	answered []bool
	open     int           // number of transactions not known to be done
	allDone  chan struct{} // closed when open is 0
}

func newResults(n int) *results {
	t := &results{results: make([]Result, n), answered: make([]bool, n), open: n, allDone: make(chan struct{})}
	if n == 0 {
		close(t.allDone)
	}
	return t
}

func (r *results) add(i int, result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.results[i]
	wasDone := r.answered[i] && before.Outcome.Done()
	if r.answered[i] {
		result = combine(before, result)
	}
	r.results[i], r.answered[i] = result, true
	if !wasDone && result.Outcome.Done() {
		if r.open--; r.open == 0 {
			close(r.allDone)
		}
	}
}

// needRetry returns the indexes of transactions that should go to another endpoint.
func (r *results) needRetry() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []int
	for i, result := range r.results {
		if !r.answered[i] || !result.Outcome.conclusive() {
			left = append(left, i)
		}
	}
	return left
}

// snapshot returns the results when the caller stops waiting. gaveUp is the reason, nil if the results are complete.
func (r *results) snapshot(gaveUp error) []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := slices.Clone(r.results)
	for i := range results {
		if gaveUp != nil && !results[i].Outcome.Done() {
			results[i] = Result{Outcome: Unknown, Err: gaveUp} // requests are under way
		}
	}
	return results
}
