package tracker_test

import (
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/chain"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/pool"
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

// What waits for a key gets it with the block that makes room, to be in the next one, and not when it is time to tend.
func TestWhatWaitsGetsAPlaceWithTheBlockThatMakesIt(t *testing.T) {
	f := setup(t, 1)
	f.Stop()
	f.options.Tracker = func(c *tracker.Config) { c.Tend, c.Lineage = time.Hour, nil }
	f.options.Chain = func(c *chain.Config) { c.PollInterval = 10 * time.Millisecond }
	f.options.Pool = func(c *pool.Config) { c.Cap = 1 }
	r := relaytest.Start(t, f.options)
	var txs []*relayer.Transaction
	for range 3 {
		txs = append(txs, r.Send(t, f.chain.Accounts[0].Address, 1, nil))
	}
	for _, tx := range txs {
		r.Reaches(t, tx, relayer.Broadcasted)
		f.chain.Commit()
	}
}
