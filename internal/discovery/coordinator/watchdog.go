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
	// commitLimit is how long a leader may commit nothing while writes are pending.
	commitLimit = 10 * time.Second
	// slowestLink is a bandwidth, in bytes per second. The limit grows by a second for each of these many bytes, so that a
	// large command on a slow link does not look like a hang.
	slowestLink = 64 << 10
	watchPeriod = time.Second
)

// watchdog detects a leader that can no longer commit but still suppresses elections. Causes are a hung disk
// (hashicorp/raft #503, #614), or a leadership transfer that never ends (#696). Only the end of the process allows a new leader
// then. Time is counted in ticks of the running process, so that a paused process does not count as hung.
//
// A leader whose majority needs a follower that is far behind can commit only after that follower has caught up, for
// example from a snapshot. Another leader would need the same follower, and the end of the process would cancel the
// transfer. So the time restarts while a follower makes progress, but only if the commit waits for followers. It does
// not if the leader has not stored the pending entry, or if a majority has stored all that the leader has. Then the
// leader's own disk is the obstacle, and another follower's progress must not hide it.
type watchdog struct {
	raft      raftProgress
	followers *replication

	mu      sync.Mutex
	pending map[*pendingWrite]struct{}
	refused bool // Raft's last result refused a write because of a transfer
}

// raftProgress is the part of *raft.Raft that the watchdog reads. Tests replace it because they cannot hang Raft's
// disk.
type raftProgress interface {
	CommitIndex() uint64
	// LastIndex returns the index of the last entry that the leader has stored.
	LastIndex() uint64
	State() raft.RaftState
	GetConfiguration() raft.ConfigurationFuture
	Barrier(timeout time.Duration) raft.Future
}

type pendingWrite struct {
	w    *watchdog
	size int
}

func newWatchdog(r raftProgress, followers *replication) *watchdog {
	return &watchdog{raft: r, followers: followers, pending: make(map[*pendingWrite]struct{})}
}

// begin records a pending commit.
func (w *watchdog) begin(size int) *pendingWrite {
	p := &pendingWrite{w, size}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[p] = struct{}{}
	return p
}

// end records the result of a pending commit.
func (p *pendingWrite) end(err error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	delete(p.w.pending, p)
	if err == nil || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		p.w.refused = err != nil
	}
}

// probe checks whether a transfer is still running, which Raft reports only to writers. Without the probe, a leader
// without writes would look stuck long after the transfer ended. done is closed when the result is known.
func (w *watchdog) probe() (done chan struct{}) {
	done = make(chan struct{})
	p := w.begin(0)
	go func() {
		defer close(done)
		p.end(w.raft.Barrier(watchPeriod).Error())
	}()
	return done
}

// run returns an error if this leader is stuck.
func (w *watchdog) run(ctx context.Context) error {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	var stuck time.Duration
	last := w.raft.CommitIndex()
	var probe chan struct{} // nil if no probe is running
	for {
		select {
		case <-ctx.Done():
			if probe != nil {
				select {
				case <-probe:
				case <-time.After(watchPeriod): // Raft may forget pending barriers on its shutdown
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
		// A transfer that does not end refuses new writes, which no follower's progress changes.
		catchingUp := w.followers.takeProgress() && !refused && w.waitsForFollowers(commit)
		if catchingUp || commit != last || w.raft.State() != raft.Leader || (!waiting && !refused) {
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

// waitsForFollowers reports whether this leader has stored entries after commit, and no majority has all of them.
func (w *watchdog) waitsForFollowers(commit uint64) bool {
	last := w.raft.LastIndex()
	return last > commit && !w.followers.majorityHas(w.raft.GetConfiguration().Configuration().Servers, last)
}

func (w *watchdog) waiting() (waiting bool, bytes int, refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.pending {
		bytes += p.size
	}
	return len(w.pending) > 0, bytes, w.refused
}
