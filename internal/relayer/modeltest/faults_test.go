package modeltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// central are the steps between a request and the record of its broadcast.
var central = []step{"claim: commit", stepSign, "store attempts", stepSend, "record broadcasts"}

// usual reports which faults are tried without -modeltest.all. At the central steps these are all kinds, and some a
// second time. At the others they are those with the most consequences. With -short, failBefore is tried at the
// central steps only.
func usual(s step, k kind, nth int) bool {
	switch {
	case !slices.Contains(central, s) && k == failBefore && testing.Short():
		return false
	case !slices.Contains(central, s):
		return nth == 1 && slices.Contains([]kind{failBefore, failAfter, dieAfter, freezeBefore}, k)
	case nth == 2:
		return slices.Contains([]kind{dieAfter, freezeBefore, late}, k)
	default:
		return nth == 1
	}
}

// steps returns all named steps.
func steps() []step {
	all := []step{stepLook, stepSign, stepSend, "fill: commit", "replace: attempt"}
	for _, s := range statements {
		all = append(all, s.step)
	}
	for _, commit := range commitOf {
		all = append(all, commit)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestFaults injects one fault at each step, and requires that each transaction is mined exactly once.
func TestFaults(t *testing.T) {
	t.Parallel()
	databases := newShelf(t)
	for _, s := range steps() {
		for _, k := range kinds {
			if k == late && (s == stepLook || s == stepSign) {
				continue // such a fault has no effect
			}
			for nth := 1; nth <= 3; nth++ {
				if !*every && !usual(s, k, nth) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d", s, k, nth), func(t *testing.T) {
					t.Parallel()
					fixed(t, databases, s, k, nth)
				})
			}
		}
	}
}

// fixed runs the one history in which every step happens, with a fault at the nth time of one of them.
func fixed(t *testing.T, databases *shelf, s step, k kind, nth int) {
	tr := newTrial(t, databases, 1, func(at step, n int) kind {
		if at == s && n == nth {
			return k
		}
		return none
	})
	tr.start()
	tr.start()
	tr.registered()

	// As many as the keys accept and some more, which are queued.
	for i := range 8 {
		life := time.Duration(0)
		if i == 5 {
			life = 150 * time.Millisecond
		}
		// Without an idempotency key a caller does not repeat a request. It relies on the answer that nothing was
		// stored.
		tr.post(poolID, i%2 == 0 && s != "claim: commit", life)
	}
	tr.until("all were posted", func() bool { return tr.answered() >= 8 })
	tr.until("the pools are full", func() bool { return tr.world.waiting() >= 12 })
	// Cancel and replace both sent and queued transactions.
	for _, i := range []int{0, 7} {
		r := tr.requests[i] // others are added while the callers run
		tr.any(func(ctx context.Context, p *process) { tr.insist(ctx, p, r, tr.cancel) })
	}
	for _, i := range []int{2, 3, 4} {
		r := tr.requests[i]
		tr.any(func(ctx context.Context, p *process) { tr.insist(ctx, p, r, tr.replace) })
	}
	tr.until("some are canceled", func() bool { return tr.requests[0].isCanceled() })
	tr.world.seal(1)
	tr.until("they are known to be mined", func() bool { return tr.is(`SELECT count(*) > 0 FROM relayer_txs WHERE status = 'mined'`) })
	// Removed by the chain, and lost: sent again.
	tr.reorganize(1, true)
	tr.until("they are put back", func() bool { return tr.is(`SELECT count(*) = 0 FROM relayer_txs WHERE status = 'mined'`) })
	tr.until("they are mined again", func() bool {
		tr.world.seal(2)
		return tr.is(`SELECT count(*) > 0 FROM relayer_txs WHERE status = 'mined'`)
	})
	tr.drain()
	// A foreign sender uses an assigned nonce before the relayers detect it. Sometimes they detect it before the post
	// arrives.
	posts := 8
	for range 20 {
		tr.foreignSender(0)
		tr.post(tr.keys[0].Address.Hex(), true, 0)
		posts++
		tr.until("it was posted", func() bool { return tr.answered() >= posts })
		tr.drain()
		if tr.is(`SELECT count(*) > 0 FROM relayer_txs WHERE kind = 'foreign'`) {
			break
		}
	}
	// A foreign sender uses another nonce, in blocks that are repeatedly replaced and contain it again: it never gets
	// deep. In the end it is removed, and the relayers use the nonce after all.
	tr.foreignSender(0)
	tr.post(tr.keys[0].Address.Hex(), true, 0)
	tr.until("it was posted", func() bool { return tr.answered() > posts })
	tr.world.seal(1)
	for range 5 {
		tr.reorganize(1, false)
		tr.until("the head was looked at", tr.looked)
	}
	tr.reorganize(1, true)
	// A foreign sender's nonce that the store follows, and that a reorganization then frees again.
	tr.foreignSender(1)
	tr.world.seal(4)
	tr.until("the store follows", func() bool {
		return tr.is(`SELECT next_nonce = $2 FROM relayer_keys WHERE address = $3`, tr.count(1), lower(tr.keys[1].Address))
	})
	tr.reorganize(1, true)
	tr.until("the gap is filled", func() bool {
		return tr.is(`SELECT count(*) > 0 FROM relayer_txs WHERE kind = 'noop' AND status <> 'allocated'`)
	})
	tr.settle(func() {})
	tr.verify()
	if tr.faults.struck == 0 {
		if nth == 1 {
			t.Error("the step did not happen")
		}
		t.Log("the step did not happen so often")
	}
}

// post makes a request.
func (tr *trial) post(target string, idempotent bool, life time.Duration) {
	r := tr.newRequest(idempotent, target, life)
	tr.any(func(ctx context.Context, p *process) { tr.insist(ctx, p, r, tr.submit) })
}

// insist repeats a call that a slow machine prevented from storing anything, or whose outcome a repetition resolves: not
// after a fault, for which the call is made.
func (tr *trial) insist(ctx context.Context, p *process, r *request, do func(context.Context, *process, *request) error) {
	for began := time.Now(); ; {
		err := do(ctx, p, r)
		repeatable := errors.Is(err, relayer.ErrUnavailable) || errors.Is(err, relayer.ErrUnknown) && r.key != ""
		if !repeatable || tr.faults.any() || p.isDead() || time.Since(began) > slowMachine {
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
	}
}

// any calls do with the running processes, in turn.
func (tr *trial) any(do func(ctx context.Context, p *process)) {
	alive := tr.alive()
	if len(alive) == 0 {
		return
	}
	tr.calls++
	p := alive[tr.calls%len(alive)]
	tr.call(func(ctx context.Context) { do(ctx, p) })
}

// until waits for a condition that a fault may prevent: after a fault it does not wait long.
func (tr *trial) until(what string, holds func() bool) {
	began := time.Now()
	tick := time.NewTicker(12 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		waited := time.Since(began)
		if waited > slowMachine || waited > 250*time.Millisecond && tr.faults.any() {
			tr.log.add("world: not so far: %s", what)
			return
		}
		<-tick.C
	}
	tr.log.add("world: %s", what)
}

// drain seals until all is mined and final, if no fault prevents it.
func (tr *trial) drain() {
	tr.until("all is final", func() bool {
		tr.world.seal(4)
		return tr.open() == ""
	})
}

func (tr *trial) reorganize(depth int, lost bool) {
	tr.log.add("world: the last %d blocks are replaced, lost: %v", depth, lost)
	tr.world.reorganize(depth, 1, lost)
	if lost {
		tr.world.forget(func() bool { return true })
	}
}

// is returns the boolean result of a query in the store; $1 is the chain.
func (tr *trial) is(query string, args ...any) (holds bool) {
	err := tr.db.QueryRow(context.Background(), query+` AND chain_id = $1`, append([]any{tr.world.chainID}, args...)...).Scan(&holds)
	return err == nil && holds
}

// count returns how many of a key's transactions are mined.
func (tr *trial) count(key int) uint64 {
	tr.world.mu.Lock()
	defer tr.world.mu.Unlock()
	return tr.world.nodes[0].head.nonces[tr.keys[key].Address]
}

// looked reports whether a tracker has processed the head.
func (tr *trial) looked() bool {
	tr.world.mu.Lock()
	head := tr.world.nodes[0].head.Hash
	tr.world.mu.Unlock()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.followed == head
}

func (tr *trial) answered() (n int) {
	for _, r := range tr.requests {
		r.mu.Lock()
		if r.answered {
			n++
		}
		r.mu.Unlock()
	}
	return n
}

func (r *request) isCanceled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.canceled
}

func (f *faults) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.struck > 0
}
