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
	Hash  common.Hash // in errors; and what the node answers has to be the same
	Bytes []byte      // as eth_sendRawTransaction takes it
}

// Result is what became of sending one transaction.
type Result struct {
	Outcome  Outcome
	Endpoint string // whose answer Outcome is; empty if there is none
	Err      error  // what was said; nil if Accepted
}

// Send broadcasts transactions, each endpoint getting them in the order given. The result has one entry for each.
//
// Without Config.BroadcastAll the preferred endpoint gets all of them, and the next gets those for which the answer
// may be another there: it was not reached, it limits the rate, its pool is full, its head lags behind. With it all
// endpoints get all; Send returns as soon as each transaction has been accepted somewhere, and the others finish on
// their own.
//
// What several endpoints say is put together like this: accepted by any is Accepted. Otherwise, if one may have it
// without having said so, that is Unknown. Otherwise none has it, and the answer that asks for the least final
// conclusion stands: one about the nonce before one that may pass before one that stays before not having been
// reached.
func (c *Client) Send(ctx context.Context, txs []Raw) []Result {
	t := newTally(len(txs))
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
	if c.cfg.BroadcastAll && len(eps) > 1 {
		return c.sendAll(ctx, eps, txs, t)
	}
	for i, ep := range eps {
		left := t.needRetry()
		if len(left) == 0 || i > 0 && ctx.Err() != nil {
			break
		}
		attempt, cancel := share(ctx, len(eps)-i)
		ep.broadcast(attempt, txs, left, t)
		cancel()
	}
	return t.results
}

// sendAll sends to all endpoints beside each other.
func (c *Client) sendAll(ctx context.Context, eps []*endpoint, txs []Raw, t *results) []Result {
	every := make([]int, len(txs))
	for i := range every {
		every[i] = i
	}
	// A caller who has its answer, or gives up, does not end what is under way to the others.
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(c.life, cancel)
	var wg sync.WaitGroup
	for _, ep := range eps {
		wg.Add(1)
		c.background.Go(func() {
			defer wg.Done()
			ep.broadcast(detached, txs, every, t)
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

// broadcast sends some of the transactions to the endpoint and adds what it says to the tally.
func (ep *endpoint) broadcast(ctx context.Context, txs []Raw, which []int, t *results) {
	err := ep.verify(ctx)
	for len(which) > 0 && err == nil {
		n := min(ep.batchLimit(), len(which))
		chunk := which[:n]
		calls := make([]call, n)
		for i, k := range chunk {
			calls[i] = call{method: sendMethod, params: []any{hexutil.Bytes(txs[k].Bytes)}, answers: answersSend}
		}
		var answers []answer
		answers, err = ep.exchange(ctx, calls, n > 1)
		if e, ok := errors.AsType[*batchRefusedError](err); ok {
			// Sending the same bytes again is harmless, should the endpoint have read any.
			ep.shrinkBatches(n, e)
			err = nil
			continue
		}
		if err != nil {
			for _, k := range chunk {
				t.add(k, Result{Outcome: Classify(err), Endpoint: ep.name, Err: err})
			}
			which = which[n:]
			break
		}
		if first := firstCut(answers); first >= 0 && n > 1 {
			if first == 0 {
				ep.shrinkBatches(n, errMissing)
			}
			answers = answers[:first]
		}
		for i, a := range answers {
			t.add(chunk[i], ep.result(a, txs[chunk[i]].Hash))
		}
		which = which[len(answers):]
	}
	// What follows a request that failed was not sent to this endpoint: in order or not at all.
	for _, k := range which {
		outcome := NotSent
		if isRateLimit(err) {
			outcome = RateLimited
		}
		t.add(k, Result{Outcome: outcome, Endpoint: ep.name, Err: err})
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
		return Result{Outcome: Accepted, Endpoint: ep.name}
	}
	return Result{Outcome: Classify(err), Endpoint: ep.name, Err: fmt.Errorf("send %s: %w", want, err)}
}

// precedence puts outcomes in the order in which they stand when endpoints disagree.
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

// combine is what two endpoints say together.
func combine(a, b Result) Result {
	if rank[b.Outcome] < rank[a.Outcome] {
		return b
	}
	return a
}

// nodeSpecific says that another endpoint may well answer otherwise: the outcome is about this node, its pool or its head.
func (o Outcome) nodeSpecific() bool {
	switch o {
	case Unknown, NonceTooHigh, Underpriced, FeeCapTooLow, InsufficientFunds, PoolFull, RateLimited, ExceedsBlockGas, Oversized,
		FeeCapExceeded, Refused, NotSent:
		return true
	}
	return false
}

// results collects what endpoints say of transactions.
type results struct {
	mu      sync.Mutex
	results []Result
	heard   []bool
	open    int           // not known to be done
	allDone chan struct{} // closed when none is open
}

func newTally(n int) *results {
	t := &results{results: make([]Result, n), heard: make([]bool, n), open: n, allDone: make(chan struct{})}
	if n == 0 {
		close(t.allDone)
	}
	return t
}

func (t *results) add(i int, r Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.results[i]
	wasDone := t.heard[i] && before.Outcome.Done()
	if t.heard[i] {
		r = combine(before, r)
	}
	t.results[i], t.heard[i] = r, true
	if !wasDone && r.Outcome.Done() {
		if t.open--; t.open == 0 {
			close(t.allDone)
		}
	}
}

// needRetry are the transactions that should go to another endpoint.
func (t *results) needRetry() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	var left []int
	for i, r := range t.results {
		if !t.heard[i] || r.Outcome.nodeSpecific() {
			left = append(left, i)
		}
	}
	return left
}

// snapshot is what is known when the caller stops waiting; gaveUp is why, nil if all that matters is known.
func (t *results) snapshot(gaveUp error) []Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	results := slices.Clone(t.results)
	for i := range results {
		if gaveUp != nil && !results[i].Outcome.Done() {
			results[i] = Result{Outcome: Unknown, Err: gaveUp} // requests are under way
		}
	}
	return results
}
