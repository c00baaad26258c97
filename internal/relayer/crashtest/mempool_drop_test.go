package crashtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A node whose pool is too small silently drops accepted transactions. All of them are mined.
func TestMempoolDrop_TransactionsAreMined(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{
		keys: 4, relayers: 2, inFlight: 100, confirmations: 2,
		geth: []string{"--txpool.accountslots", "4", "--txpool.globalslots", "16", "--txpool.accountqueue", "8", "--txpool.globalqueue", "16"},
	})
	sc.storm(300, 32, plan{length: 2 * time.Second}, 2*patience)
	require.Greater(t, sc.sent.Load(), int64(350), "nothing was dropped: what is this test for?")
}
