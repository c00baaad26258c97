package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// commitLimit is how long a leader may have something pending and commit nothing.
	commitLimit = 10 * time.Second
	// slowestLink is the bandwidth below which a large command would look like a hang: it earns a second for
	// each of these many bytes.
	slowestLink = 64 << 10
	watchPeriod = time.Second
)

// watchdog notices a leader that can no longer commit but keeps its followers quiet: a hung disk (hashicorp/raft
// #503, #614), or a leadership transfer that never ends (#696). Ending the process is the only way to a new
// leader then. Time is counted in ticks of the running process, so that a paused one is not taken for a hung one.
type watchdog struct {
	raft raftProgress

	mu      sync.Mutex
	pending map[*pendingWrite]struct{}
	refused bool // Raft refuses writes for a transfer, by the last word it gave
}

// raftProgress is what the watchdog looks at: *raft.Raft, whose disk cannot be made to hang in a test.
type raftProgress interface {
	CommitIndex() uint64
	State() raft.RaftState
	Barrier(timeout time.Duration) raft.Future
}

type pendingWrite struct {
	w    *watchdog
	size int
}

func newWatchdog(r raftProgress) *watchdog {
	return &watchdog{raft: r, pending: make(map[*pendingWrite]struct{})}
}

// begin notes that Raft has something to commit.
func (w *watchdog) begin(size int) *pendingWrite {
	p := &pendingWrite{w, size}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[p] = struct{}{}
	return p
}

// end notes how that ended.
func (p *pendingWrite) end(err error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	delete(p.w.pending, p)
	if err == nil || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		p.w.refused = err != nil
	}
}

// probe finds out whether a transfer is still under way, which Raft tells nobody who does not write: without it a
// leader that nobody writes to would look stuck long after the transfer ended. done is closed when it has.
func (w *watchdog) probe() (done chan struct{}) {
	done = make(chan struct{})
	p := w.begin(0)
	go func() {
		defer close(done)
		p.end(w.raft.Barrier(watchPeriod).Error())
	}()
	return done
}

// run returns an error when this leader is stuck.
func (w *watchdog) run(ctx context.Context) error {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	var stuck time.Duration
	last := w.raft.CommitIndex()
	var probe chan struct{} // nil while there is none under way
	for {
		select {
		case <-ctx.Done():
			if probe != nil {
				select {
				case <-probe:
				case <-time.After(watchPeriod): // Raft may forget who waits when it is shut down
				}
			}
			return nil
		case <-probe:
			probe = nil
			continue
		case <-tick.C:
		}
		commit := w.raft.CommitIndex()
		waiting, bytes, refused := w.waiting()
		if refused && probe == nil {
			probe = w.probe()
		}
		if commit != last || w.raft.State() != raft.Leader || (!waiting && !refused) {
			last, stuck = commit, 0
			continue
		}
		stuck += watchPeriod
		limit := commitLimit + time.Duration(bytes)*time.Second/slowestLink
		if stuck < limit {
			continue
		}
		if refused {
			return fmt.Errorf("this leader has refused writes for %v because of a leadership transfer that does not end; ending, so that another coordinator leads", stuck)
		}
		return fmt.Errorf("this leader has committed nothing for %v although writes are pending; its disk may hang; ending, so that another coordinator leads", stuck)
	}
}

func (w *watchdog) waiting() (waiting bool, bytes int, refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.pending {
		bytes += p.size
	}
	return len(w.pending) > 0, bytes, w.refused
}
