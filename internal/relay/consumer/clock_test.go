package consumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream/upstreamtest"
)

// A relayer without idempotency keys whose clock is off has a transaction of which its answer was lost. It is found.
func TestConsumer_RelayersClockIsOff_FindsTheTransaction(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind": -10 * time.Minute, "ahead": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upstreamtest.Start(t, upstreamtest.Options{Key: key, Now: func() time.Time { return time.Now().Add(off) }})
			w := setup(t, r)
			r.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
				r.Fail(upstreamtest.Submit, nil)
				upstreamtest.AcceptAndDrop(c)
			})
			id := w.post(1)
			w.consume()
			tx := w.reaches(id, relay.Submitted)
			require.Equal(t, r.Transactions()[0].ID, tx.RelayerTx)
			require.Len(t, r.Transactions(), 1)
			w.drained()
		})
	}
}
