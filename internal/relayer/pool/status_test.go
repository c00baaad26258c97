package pool_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/httpapi"
	"github.com/rollcall-dev/rollcall/internal/relayer/pool"
	"github.com/rollcall-dev/rollcall/internal/relayer/relaytest"
)

// Pending is what is accepted and not mined, under a key also what waits for it.
func TestStatusCountsWhatWaits(t *testing.T) {
	f := setup(t, 2)
	r := f.start(t, func(c *pool.Config) { c.Cap = 2 })
	posted, other := strings.ToLower(f.ring.Addresses()[0].Hex()), strings.ToLower(f.ring.Addresses()[1].Hex())
	for range 5 {
		s := f.submission()
		s.RelayerID = posted
		_, err := r.Submit(t.Context(), s)
		require.NoError(t, err)
	}
	for id, want := range map[string]uint64{posted: 5, other: 0, relaytest.PoolID: 5} {
		status, err := r.Status(t.Context(), id, httpapi.StatusParts{Pending: true})
		require.NoError(t, err)
		require.Equal(t, want, status.Pending, id)
	}
}
