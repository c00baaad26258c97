package tracker

import (
	"context"
	"encoding/hex"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

const (
	// revertLookups bounds the transactions of a round whose revert data is read, and revertsAtOnce how many concurrently.
	revertLookups, revertsAtOnce = 32, 4
	// revertPatience is how long a round waits for the data.
	revertPatience = time.Second
	// revertBytes is how many bytes of the data are stored.
	revertBytes = 1024
)

// addRevertData adds the revert data to reverted transactions, if an endpoint provides it in time. Nothing else depends on
// it. The text is that of OpenZeppelin's policy include_revert_data (openzeppelin-relayer #802).
func (r *round) addRevertData(ctx context.Context, mined []store.Mined) {
	if r.cfg.RevertData == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, revertPatience)
	defer cancel()
	var lookups errgroup.Group
	lookups.SetLimit(revertsAtOnce)
	left := revertLookups
	for i := range mined {
		m := &mined[i]
		if m.Succeeded || left == 0 {
			continue
		}
		left--
		lookups.Go(func() error {
			data, err := r.cfg.RevertData(ctx, m.Hash, m.BlockHash)
			switch {
			case err != nil:
				r.cfg.Log.Debug("revert data not available", "hash", m.Hash, "err", err)
			case len(data) > revertBytes:
				m.Reason = "Transaction reverted on-chain (revert_data: 0x" + hex.EncodeToString(data[:revertBytes]) + "…)"
			case len(data) > 0:
				m.Reason = "Transaction reverted on-chain (revert_data: 0x" + hex.EncodeToString(data) + ")"
			}
			return nil
		})
	}
	_ = lookups.Wait() // the functions return no errors
}
