package modeltest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestSeeds checks that with random events in random order every accepted transaction is mined exactly once.
func TestSeeds(t *testing.T) {
	t.Parallel()
	databases := newShelf(t)
	for i := range *seeds {
		seed := *first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random(t, databases, seed)
			if t.Failed() {
				t.Logf("repeat: go test -tags hashicorpmetrics ./internal/relayer/modeltest -run 'TestSeeds' -modeltest.seed=%d -modeltest.seeds=1", seed)
			}
		})
	}
}

// random runs the history of a seed.
func random(t *testing.T, databases *shelf, seed uint64) {
	tr := newTrial(t, databases, seed, mishaps(seed))
	tr.faults.off = true
	for range 2 + seed%2 {
		tr.start()
	}
	tr.registered()
	tr.faults.mu.Lock()
	tr.faults.off = false
	tr.faults.mu.Unlock()
	dice := rand.New(rand.NewPCG(seed, 1))
	tick := time.NewTicker(8 * time.Millisecond)
	defer tick.Stop()
	for range 80 {
		<-tick.C
		tr.act(dice)
	}
	tr.settle(func() {
		if dice.IntN(6) == 0 {
			tr.upset(dice)
		}
	})
	tr.verify()
}

// mishaps returns the faults of a seed: many errors, some deaths and freezes.
func mishaps(seed uint64) func(step, int) kind {
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 2))
	deaths, frosts := 2, 3
	return func(s step, _ int) kind {
		mu.Lock()
		defer mu.Unlock()
		chance := 0.05
		if s == stepLook || s == "follow" {
			chance = 0.003
		}
		if dice.Float64() > chance {
			return none
		}
		switch n := dice.IntN(10); {
		case n < 1 && deaths > 0:
			deaths--
			return [...]kind{dieBefore, dieAfter}[dice.IntN(2)]
		case n < 3 && frosts > 0:
			frosts--
			return [...]kind{freezeBefore, freezeAfter}[dice.IntN(2)]
		case s == stepLook || s == stepSign:
			return [...]kind{failBefore, failAfter}[dice.IntN(2)]
		default:
			return [...]kind{failBefore, failAfter, late}[dice.IntN(3)]
		}
	}
}

// act does one random action.
func (tr *trial) act(dice *rand.Rand) {
	alive := tr.alive()
	if len(alive) == 0 {
		tr.start()
		return
	}
	p := alive[dice.IntN(len(alive))]
	some := func() *request {
		if len(tr.requests) == 0 {
			return nil
		}
		// The latest ones can still change.
		return tr.requests[max(0, len(tr.requests)-1-dice.IntN(6))]
	}
	switch n := dice.IntN(100); {
	case n < 42:
		target, life := poolID, time.Duration(0)
		if dice.IntN(5) == 0 {
			target = tr.keys[dice.IntN(len(tr.keys))].Address.Hex()
		}
		if dice.IntN(8) == 0 {
			life = time.Duration(20+dice.IntN(300)) * time.Millisecond
		}
		r := tr.newRequest(dice.IntN(3) > 0, target, life)
		tr.call(func(ctx context.Context) { _ = tr.submit(ctx, p, r) })
	case n < 49:
		// The same request again, at another process: also while the first one handles it.
		if r := some(); r != nil && r.key != "" {
			tr.call(func(ctx context.Context) { _ = tr.submit(ctx, p, r) })
		}
	case n < 56:
		if r := some(); r != nil && r.accepted() != uuid.Nil {
			tr.call(func(ctx context.Context) { _ = tr.cancel(ctx, p, r) })
		}
	case n < 63:
		if r := some(); r != nil && r.accepted() != uuid.Nil {
			tr.call(func(ctx context.Context) { _ = tr.replace(ctx, p, r) })
		}
	case n < 79:
		b := tr.world.seal(1 + dice.IntN(3))
		tr.log.add("world: block %d with %d", b.Number, len(b.txs))
	case n < 84:
		tr.upset(dice)
	case n < 88:
		tr.log.add("world: half of the pools is forgotten")
		tr.world.forget(func() bool { return dice.IntN(2) == 0 })
	case n < 90:
		tr.log.add("world: the next is forgotten")
		tr.world.mu.Lock()
		tr.world.forgets++
		tr.world.mu.Unlock()
	case n < 93:
		tr.log.add("world: second node held back: %v", !tr.world.held)
		tr.world.hold(!tr.world.held)
	case n < 98:
		tr.foreignSender(dice.IntN(len(tr.keys)))
	default:
		if len(alive) > 1 {
			tr.log.add("%s: is asked to stop", p.name)
			p.stop()
		} else {
			tr.start()
		}
	}
}

// upset replaces some of the newest blocks.
func (tr *trial) upset(dice *rand.Rand) {
	depth, lost := 1+dice.IntN(deepest), dice.IntN(2) == 0
	tr.log.add("world: the last %d blocks are replaced, lost: %v", depth, lost)
	tr.world.reorganize(depth, dice.IntN(3), lost)
}
