package tracker_test

import (
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relaytest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// A subscription's heads are followed when they come: nothing here polls within an hour.
func TestSubscribedHeadsAreFollowedAtOnce(t *testing.T) {
	f := setup(t, 1, func(o *relaytest.Options) {
		ws := "ws" + o.RPC[0][len("http"):]
		o.Chain = func(c *chain.Config) {
			c.Subscribe, c.PollInterval, c.HealthInterval, c.Silence = ws, time.Hour, time.Hour, time.Hour
		}
	})
	f.Stop()
	f.options.Tracker = func(c *tracker.Config) { c.Tend, c.Lineage = time.Hour, nil } // what is not believed yet is looked at again after that
	r := relaytest.Start(t, f.options)
	for range 3 {
		tx := r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
		f.chain.Commit()
		r.Reaches(t, tx, relayer.Mined)
	}
}
