package tracker

import (
	"context"
	"fmt"
	"time"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// lease is this process's state of the tracker lease. Two processes that consider themselves its holder do no harm.
type lease struct {
	held    bool
	taken   time.Time
	epoch   int64
	logged  bool      // that this process follows the chain
	good    time.Time // when a round last succeeded under it; zero: none did
	failing bool      // the last round failed: the lease is not renewed
	yield   time.Time // until then another process goes first
}

// yieldTerms is for how many terms a process without a successful round lets other processes go first.
const yieldTerms = 3

// yieldTends is how long the lease must then be free before this process takes it. The unit is Config.Tend, the interval at
// which the others check. A single process therefore resumes within that time when its nodes are back.
const yieldTends = 3

// stopLimit is how long each statement about the lease may take after the process was told to stop.
const stopLimit = time.Second

// claim takes the lease, or renews it after a round that succeeded. After a failed round the lease expires.
//
// claim waits for its statement up to stopLimit after stopped ended. The server could otherwise execute it after the release,
// and the lease of a stopped process would last for a term.
func (t *Tracker) claim(stopped context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stopped))
	defer cancel()
	defer context.AfterFunc(stopped, func() { time.AfterFunc(stopLimit, cancel) })()
	if t.lease.held && t.lease.failing {
		return nil
	}
	var free time.Duration
	yielding := time.Now().Before(t.lease.yield)
	if yielding {
		free = yieldTends * t.cfg.Tend
	}
	ok, epoch, err := t.cfg.Store.AcquireTrackerLease(ctx, t.cfg.Name, t.cfg.Term, free)
	if ok && !t.lease.held {
		t.lease.epoch, t.lease.logged = epoch, false
		if !yielding { // a trial is logged when a round has succeeded, because there may be one every few seconds
			t.logFollowing()
		}
		t.last, t.hinted, t.headAt, t.behind = evm.Header{}, evm.Header{}, time.Time{}, 0
		t.lease.good, t.lease.taken = time.Time{}, time.Now()
		t.noteFees(nil)
		t.forget()
		if t.confirmed, err = t.cfg.Store.FinalBlock(ctx); err != nil {
			return err
		}
	}
	if t.lease.held = ok; ok {
		t.cfg.Metrics.following.Set(1)
	} else {
		t.cfg.Metrics.idle()
	}
	return err
}

// succeeded records a round's outcome, and reports whether a round has succeeded within a term. A process that has just
// taken the lease has one round for that.
func (l *lease) succeeded(err error, term time.Duration) bool {
	if l.failing = err != nil; !l.failing {
		l.good, l.yield = time.Now(), time.Time{}
	}
	return time.Since(l.good) < term
}

// logFollowing logs once that this process has the lease.
func (t *Tracker) logFollowing() {
	if !t.lease.logged {
		t.lease.logged = true
		t.cfg.Log.Info("following the chain", "epoch", t.lease.epoch)
	}
}

// faultTerms is how many terms pass at least between two releases of the lease for a send fault. It doubles with each release
// after which the fault is still there, up to 16 times: the other processes may have the same fault, or all nodes reject one
// transaction in words that are not recognized.
const faultTerms = 12

// sendFault returns why this process could not send for a term, although its rounds succeed; nil if it could. Only the
// process with the lease sends again, bumps and signs no-ops, so another one should have the lease. sendFault also returns
// nil within faultTerms of the last release.
func (t *Tracker) sendFault() error {
	during, err := t.cfg.Sender.Unreached()
	t.mu.Lock()
	fees := t.fees
	t.mu.Unlock()
	if err == nil && fees.failure == nil {
		if time.Since(t.lease.taken) >= faultTerms*t.cfg.Term { // a new holder has not tried to send yet
			t.declines = 0
		}
		return nil
	}
	if time.Since(t.lease.taken) < t.cfg.Term || time.Since(t.declined) < faultTerms*t.cfg.Term<<min(max(t.declines-1, 0), 4) {
		return nil
	}
	switch {
	case err != nil && during >= t.cfg.Term:
		return fmt.Errorf("no node receives transactions: %w", err)
	case fees.failure != nil && fees.last.Sub(fees.since) >= t.cfg.Term:
		return fmt.Errorf("the fees are unknown: %w", fees.failure)
	default:
		return nil
	}
}

// feesFault is a failure to read the fees.
type feesFault struct {
	since   time.Time // of the first in a row
	last    time.Time
	failure error // nil if the last read succeeded
}

// noteFees records the result of reading the fees.
func (t *Tracker) noteFees(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.fees.failure == nil {
		t.fees.since = now
	}
	t.fees.last, t.fees.failure = now, err
}

// standBack releases the lease: this process's nodes do not work, and another's may.
func (t *Tracker) standBack(ctx context.Context) {
	t.leave(context.WithoutCancel(ctx))
	t.lease = lease{yield: time.Now().Add(yieldTerms * t.cfg.Term)}
}
