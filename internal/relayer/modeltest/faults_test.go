package modeltest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// central are the steps between a request and the record of its broadcast.
var central = []step{"claim: commit", stepSign, "store attempts", stepSend, "record broadcasts"}

// usual says which faults are tried without -modeltest.all: at the central steps each kind, and some a second time; at the
// others those that leave most behind.
func usual(s step, k kind, nth int) bool {
	switch {
	case !slices.Contains(central, s):
		return nth == 1 && slices.Contains([]kind{failBefore, failAfter, dieAfter, freezeBefore}, k)
	case nth == 2:
		return slices.Contains([]kind{dieAfter, freezeBefore, late}, k)
	default:
		return nth == 1
	}
}

// steps are all that have a name.
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

// TestFaults: one fault at each step, and each transaction is mined exactly once all the same.
func TestFaults(t *testing.T) {
	t.Parallel()
	databases := newShelf(t)
	for _, s := range steps() {
		for _, k := range kinds {
			if k == late && (s == stepLook || s == stepSign) {
				continue // nobody minds
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

	// Accepted, as many as the keys take and some more, which wait.
	for i := range 8 {
		life := time.Duration(0)
		if i == 5 {
			life = 150 * time.Millisecond
		}
		// Without a key nobody asks again: who was told that nothing was stored relies on that.
		tr.post(poolID, i%2 == 0 && s != "claim: commit", life)
	}
	tr.until("all were posted", func() bool { return tr.answered() >= 8 })
	tr.until("the pools are full", func() bool { return tr.world.waiting() >= 12 })
	// Canceled and replaced: what is on its way, and what waits.
	for _, i := range []int{0, 7} {
		tr.any(func(ctx context.Context, p *process) { tr.cancel(ctx, p, tr.requests[i]) })
	}
	for _, i := range []int{2, 3, 4} {
		tr.any(func(ctx context.Context, p *process) { tr.replace(ctx, p, tr.requests[i]) })
	}
	tr.until("some are canceled", func() bool { return tr.requests[0].isCanceled() })
	tr.world.seal(1)
	tr.until("they are known to be mined", func() bool { return tr.is(`SELECT count(*) > 0 FROM relayer_txs WHERE status = 'mined'`) })
	// Given up by the chain, and lost: sent again.
	tr.reorganize(1, true)
	tr.until("they are put back", func() bool { return tr.is(`SELECT count(*) = 0 FROM relayer_txs WHERE status = 'mined'`) })
	tr.until("they are mined again", func() bool {
		tr.world.seal(2)
		return tr.is(`SELECT count(*) > 0 FROM relayer_txs WHERE status = 'mined'`)
	})
	tr.drain()
	// A stranger takes a nonce that is ours, before we know. Sometimes we know before the post comes.
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
	// A stranger takes another, in blocks that are given up for others, where it stands again: it is never deep. In the end
	// it is gone, and the nonce is ours after all.
	tr.foreignSender(0)
	tr.post(tr.keys[0].Address.Hex(), true, 0)
	tr.until("it was posted", func() bool { return tr.answered() > posts })
	tr.world.seal(1)
	for range 5 {
		tr.reorganize(1, false)
		tr.until("the head was looked at", tr.looked)
	}
	tr.reorganize(1, true)
	// A stranger's nonce that the store follows, and that a reorganization then leaves to nobody.
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

// post has a request made, and made again by the other process when it is refused; in its own time.
func (tr *trial) post(target string, idempotent bool, life time.Duration) {
	r := tr.newRequest(idempotent, target, life)
	tr.any(func(ctx context.Context, p *process) { _ = tr.submit(ctx, p, r) })
}

// any calls the processes that live, in turn.
func (tr *trial) any(do func(ctx context.Context, p *process)) {
	alive := tr.alive()
	if len(alive) == 0 {
		return
	}
	tr.calls++
	p := alive[tr.calls%len(alive)]
	tr.call(func(ctx context.Context) { do(ctx, p) })
}

// until waits for something that a fault may keep from happening: after one it does not wait for long.
func (tr *trial) until(what string, holds func() bool) {
	began := time.Now()
	tick := time.NewTicker(12 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		waited := time.Since(began)
		if waited > 5*time.Second || waited > 250*time.Millisecond && tr.faults.any() {
			tr.log.add("world: not so far: %s", what)
			return
		}
		<-tick.C
	}
	tr.log.add("world: %s", what)
}

// drain seals until all is mined and final, if no fault keeps it from that.
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

// is asks the store, of which $1 is the chain.
func (tr *trial) is(query string, args ...any) (holds bool) {
	err := tr.db.QueryRow(context.Background(), query+` AND chain_id = $1`, append([]any{tr.world.chainID}, args...)...).Scan(&holds)
	return err == nil && holds
}

// count is how many of a key's transactions are mined.
func (tr *trial) count(key int) uint64 {
	tr.world.mu.Lock()
	defer tr.world.mu.Unlock()
	return tr.world.nodes[0].head.nonces[tr.keys[key].Address]
}

// looked says whether a tracker has been through with the head.
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
