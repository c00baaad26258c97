package tracker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// The lease moves so often that no process holds it for any waiting time. Transactions are bumped and keys found stuck
// nevertheless.
func TestAges_LeaseMovesOften_BumpsAndFindsStuck(t *testing.T) {
	f := setup(t, 1, func(o *relayertest.Options) {
		before(t, o).SetRules(known)
		o.Tracker = func(c *tracker.Config) {
			c.BumpAfter, c.StuckAfter = map[relayer.Speed]time.Duration{relayer.Fast: 2 * time.Second}, 3*time.Second
		}
	})
	tx := f.send()
	away := func() { // another process holds the lease for a moment
		f.exec(`UPDATE relayer_pools SET tracker = 'another', tracker_until = now() + interval '200 milliseconds'`)
	}
	require.Eventually(t, func() bool {
		f.chain.Commit()
		away()
		return f.latest(tx).Number > 1
	}, 2*time.Minute, 800*time.Millisecond)
	require.Eventually(t, func() bool {
		away()
		return !f.key().StuckSince.IsZero()
	}, 2*time.Minute, 800*time.Millisecond)
}
