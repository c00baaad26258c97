package tracker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// A process that takes over the lease finds a stuck key still stuck, until it moves on.
func TestStuckKey_LeaseMoves_StaysStuck(t *testing.T) {
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) { c.StuckAfter = 100 * time.Millisecond }
	})
	stuckSince := func(r *relayertest.Relayer) time.Time {
		keys, err := r.Store.Keys(t.Context())
		require.NoError(t, err)
		return keys[0].StuckSince
	}
	tx := f.send()
	require.Eventually(t, func() bool { return !stuckSince(f.Relayer).IsZero() }, 2*time.Minute, 10*time.Millisecond)
	f.Stop()

	rounds := make(chan struct{})
	f.options.Tracker = func(c *tracker.Config) {
		c.StuckAfter, c.Events = time.Hour, relayertest.OnRound(c.Events, tell(rounds))
	}
	next := relayertest.Launch(t, f.options)
	for range 10 {
		<-rounds
	}
	require.False(t, stuckSince(next).IsZero())
	f.chain.Commit()
	next.Reaches(t, tx, relayer.Mined)
	require.Eventually(t, func() bool { return stuckSince(next).IsZero() }, 2*time.Minute, 10*time.Millisecond)
}
