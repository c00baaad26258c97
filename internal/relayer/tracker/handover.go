package tracker

import (
	"context"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// stall is how many nonces of a key the chain has used, and since when no more.
type stall struct {
	mined uint64
	since time.Time
}

// observe looks at how far keys get that this process does not hold, and names one that has got nowhere for as long as makes a key
// stuck. Others may hold it, and it takes that to sign what a dead process has claimed, to outbid what waits, and to fill gaps. It
// is no shorter, since whoever follows next waits anew before it outbids anything.
func (r *round) observe() (stranded common.Address) {
	for i, k := range r.keys {
		s, known := r.stalls[k.Address]
		switch {
		case k.PendingCount == 0 || slices.Contains(r.cfg.Terms.Held, k.Address):
			delete(r.stalls, k.Address)
		case !known || s.mined != r.counts[i]:
			r.stalls[k.Address] = stall{r.counts[i], time.Now()}
		case time.Since(s.since) > r.cfg.StuckAfter:
			stranded = k.Address
		}
	}
	return stranded
}

// handOver lets another process follow, and gives it time to notice. Where there is none, this one goes on.
func (t *Tracker) handOver(ctx context.Context) {
	t.cfg.Log.Warn("a key gets nowhere that this process does not hold: others may follow the chain. If none holds it, start one that does",
		"relayer", t.stranded)
	t.stranded = common.Address{}
	t.leave(context.WithoutCancel(ctx))
	t.lease.held = false
	for range 2 { // others look as often
		t.await(ctx, false)
	}
}
