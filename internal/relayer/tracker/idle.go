package tracker

import (
	"context"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// A round asks nodes for two counts and a balance of each key, and for the chain. Providers sell calls. So while nothing is
// pending, complete rounds are so far apart that they take idleShare calls in a Config.Tend, and fixedCalls besides those for
// keys, but not farther than mostIdle.
const (
	idleShare  = 2
	fixedCalls = 16
	keyCalls   = 3
	leastIdle  = 5
	// mostIdle leaves time to read a balance again before allocations ignore it.
	mostIdle = store.BalanceAge * 2 / 3
)

// idlePause returns the time between complete rounds while nothing is pending.
func idlePause(keys int, tend time.Duration) time.Duration {
	return min(mostIdle, time.Duration(max(leastIdle, (keyCalls*keys+fixedCalls)/idleShare))*tend)
}

// idleState is what the last complete round has found.
type idleState struct {
	at   time.Time                 // zero: no round was complete since this process took the lease
	used map[common.Address]uint64 // the nonces of each key that the chain has used
}

// isIdle reports whether a round has nothing to do: no transaction is open, the database has not failed over, the last complete
// round was not long ago, and it found the keys as they are recorded. The next complete round sees what others did meanwhile with the keys, or sent to them.
func (t *Tracker) isIdle(ctx context.Context, keys []*relayer.Key) (bool, error) {
	if t.quiet.at.IsZero() || time.Since(t.quiet.at) >= idlePause(len(keys), t.cfg.Tend) || t.failed || t.last.IsZero() {
		return false, nil
	}
	if len(t.unexplained)+len(t.ahead)+len(t.disputed) > 0 {
		return false, nil
	}
	addresses := make([]common.Address, len(keys))
	for i, k := range keys {
		used, known := t.quiet.used[k.Address]
		if !known || used != k.NextNonce || k.PendingCount > 0 || !k.Compared || !k.Enabled {
			return false, nil
		}
		addresses[i] = k.Address
	}
	work, err := t.cfg.Store.HasWork(ctx, addresses)
	return !work, err
}

// noteIdle records a round that was left out.
func (t *Tracker) noteIdle() {
	t.headAt = time.Time{}
	t.cfg.Metrics.round.SetToCurrentTime()
	t.cfg.Metrics.rounds.WithLabelValues("ok").Inc()
	t.cfg.Events.Idle()
}

// noteComplete records a complete round.
func (r *round) noteComplete() {
	r.quiet = idleState{at: time.Now(), used: map[common.Address]uint64{}}
	for i, k := range r.keys {
		r.quiet.used[k.Address] = r.sure[i]
	}
}
