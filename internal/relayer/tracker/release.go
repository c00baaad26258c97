package tracker

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// observe looks at how far keys get that this process does not hold, and names one that has made no progress for as long as makes
// a key stuck. Other processes may hold it, and only they can sign what a dead process has claimed, outbid what waits, and fill gaps.
// The time is stored, because the process that follows may change often. This process names a key once in that time.
func (r *round) observe(ctx context.Context) error {
	marks := map[common.Address]string{}
	for i, k := range r.keys {
		if slices.Contains(r.cfg.Terms.Held, k.Address) {
			continue
		}
		if marks[k.Address] = ""; k.PendingCount > 0 {
			marks[k.Address] = strconv.FormatUint(r.counts[i], 10)
		}
	}
	stalled, err := r.cfg.Store.Timers(ctx, "mined", r.head.Number, marks)
	if err != nil {
		return err
	}
	for key, t := range stalled {
		if t.Age > r.cfg.StuckAfter && time.Since(r.handed[key]) > r.cfg.StuckAfter {
			r.strandedKeys = key
		}
	}
	return nil
}

// handOver lets another process follow, and gives it time to notice. Where there is none, this one goes on.
func (t *Tracker) handOver(ctx context.Context) {
	t.cfg.Log.Warn("a key gets nowhere that this process does not hold: others may follow the chain. If none holds it, start one that does",
		"relayer", t.strandedKeys)
	t.handed[t.strandedKeys] = time.Now()
	t.strandedKeys = common.Address{}
	t.leave(context.WithoutCancel(ctx))
	t.lease.held = false
	for range 2 { // others look as often
		t.await(ctx, false)
	}
}
