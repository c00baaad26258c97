package sender

import (
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// reachAge is how long a failure proves that no node receives broadcasts. A process that sends nothing any more cannot
// disprove it.
const reachAge = time.Minute

// reach records whether broadcasts reach nodes.
type reach struct {
	mu      sync.Mutex
	since   time.Time // of the first failure since the last success; zero: the last broadcast reached a node
	last    time.Time // of the last failure
	failure error
}

// note records a broadcast. Any recognized answer about the transaction proves that it reached a node.
func (r *reach) note(result evm.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch result.Outcome {
	case evm.Unknown, evm.NotSent, evm.RateLimited:
		if now := time.Now(); r.since.IsZero() || now.Sub(r.last) > reachAge {
			r.since, r.last = now, now
		} else {
			r.last = now
		}
		r.failure = result.Err
	default:
		r.since, r.failure = time.Time{}, nil
	}
}

// Unreached returns since when this process's broadcasts have reached no node, and the cause of the last failure. The time
// is zero if the last broadcast reached one, and if none was made for a minute.
func (s *Sender) Unreached() (since time.Time, failure error) {
	s.reach.mu.Lock()
	defer s.reach.mu.Unlock()
	if time.Since(s.reach.last) > reachAge {
		return time.Time{}, nil
	}
	return s.reach.since, s.reach.failure
}
