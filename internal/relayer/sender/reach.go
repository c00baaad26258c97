package sender

import (
	"sync"
	"time"

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
}

// note records the result of a broadcast.
func (r *reach) note(result evm.Result) {
	if result.Reached {
		r.reached()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.since.IsZero() || now.Sub(r.last) > reachAge {
		r.since = now
	}
	r.last, r.failure = now, result.Err
}

func (r *reach) reached() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since, r.failure = time.Time{}, nil
}

// NodeHas records that a node has a transaction that this process sent, although the node did not confirm it then.
func (s *Sender) NodeHas() { s.reach.reached() }

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
