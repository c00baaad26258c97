package tracker

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// observe tracks the progress of keys that this process does not hold. It selects one that has made no progress for
// StuckAfter. Only a process that holds the key can sign for nonces allocated by a dead process, bump transactions, and
// fill gaps. The time is stored, because the tracking process may change often. This process selects a key once in that
// time.
func (r *round) observe(ctx context.Context) error {
	marks := map[common.Address]string{}
	for i, k := range r.keys {
		if slices.Contains(r.cfg.Allocation.Held, k.Address) {
			continue
		}
		if marks[k.Address] = ""; k.PendingCount > 0 {
			marks[k.Address] = strconv.FormatUint(r.sure[i], 10)
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

// handOver releases the lease and gives other processes time to take it. If there is none, this process continues.
func (t *Tracker) handOver(ctx context.Context) {
	t.cfg.Log.Warn("a key gets nowhere that this process does not hold: others may follow the chain. If none holds it, start one that does",
		"key", t.strandedKeys)
	t.handed[t.strandedKeys] = time.Now()
	t.strandedKeys = common.Address{}
	t.leave(t.lease.Release(ctx))
	for range 2 { // the interval at which others check
		t.await(ctx, false)
	}
}
