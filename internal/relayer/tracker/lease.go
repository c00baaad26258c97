package tracker

import (
	"context"
	"fmt"
	"time"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// claim takes the tracker lease, or renews it after a round that succeeded. After a failed round the lease expires.
func (t *Tracker) claim(ctx context.Context) error {
	elected, err := t.lease.Claim(ctx)
	if elected {
		t.logged = false
		if !t.lease.Trial() { // a trial is logged when a round has succeeded, because there may be one every few seconds
			t.logFollowing()
		}
		t.last, t.hinted, t.headAt, t.behind = evm.Header{}, evm.Header{}, time.Time{}, 0
		t.taken = time.Now()
		t.noteFees(nil)
		t.forget()
		if t.confirmed, err = t.cfg.Store.FinalBlock(ctx); err != nil {
			t.lease.Drop()
			return err
		}
	}
	if t.lease.Held() {
		t.cfg.Metrics.following.Set(1)
	} else {
		t.cfg.Metrics.idle()
	}
	return err
}

// logFollowing logs once that this process has the lease.
func (t *Tracker) logFollowing() {
	if !t.logged {
		t.logged = true
		t.cfg.Log.Info("following the chain", "epoch", t.lease.Epoch())
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
		if time.Since(t.taken) >= faultTerms*t.cfg.Term { // a new holder has not tried to send yet
			t.declines = 0
		}
		return nil
	}
	if time.Since(t.taken) < t.cfg.Term || time.Since(t.declined) < faultTerms*t.cfg.Term<<min(max(t.declines-1, 0), 4) {
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
	t.leave(t.lease.StandBack(ctx))
}

// leave records that the lease was released, or why that failed.
func (t *Tracker) leave(err error) {
	t.cfg.Metrics.idle()
	if err != nil {
		t.cfg.Log.Warn("lease not released; it expires by itself", "err", err)
	}
}
