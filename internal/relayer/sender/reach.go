package sender

import (
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// reachAge is how long a failure counts. A process that sends nothing any more has no newer results.
const reachAge = time.Minute

// reach records whether broadcasts reach nodes.
type reach struct {
	mu      sync.Mutex
	since   time.Time // of the first failure since the last success; zero: the last broadcast reached a node
	last    time.Time // of the last failure
	failure error
	failed  map[common.Hash]bool // transactions of the failures since then, at most reachLimit
}

// reachLimit bounds the transactions that reach keeps.
const reachLimit = 1000

// note records the result of a broadcast.
func (r *reach) note(hash common.Hash, result evm.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if result.Reached || r.since.IsZero() || now.Sub(r.last) > reachAge {
		r.since, r.failure, r.failed = time.Time{}, nil, nil
	}
	if result.Reached {
		return
	}
	if r.since.IsZero() {
		r.since, r.failed = now, map[common.Hash]bool{}
	}
	if r.last, r.failure = now, result.Err; len(r.failed) < reachLimit {
		r.failed[hash] = true
	}
}

// NodeHas records that a node has a transaction. If the broadcast of that transaction by this process counts as failed,
// only the node's answer was lost.
func (s *Sender) NodeHas(hash common.Hash) {
	r := &s.reach
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed[hash] {
		r.since, r.failure, r.failed = time.Time{}, nil, nil
	}
}

// Unreached returns for how long broadcasts of this process have failed to reach a node, from the first failure to the
// last one, and the cause of that. Both are zero if the last broadcast reached a node, and if none was made for a minute.
func (s *Sender) Unreached() (during time.Duration, failure error) {
	s.reach.mu.Lock()
	defer s.reach.mu.Unlock()
	if s.reach.since.IsZero() || time.Since(s.reach.last) > reachAge {
		return 0, nil
	}
	return s.reach.last.Sub(s.reach.since), s.reach.failure
}
