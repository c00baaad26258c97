package service_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
)

// The pending count includes accepted transactions that are not mined, and for a key those queued for it.
func TestStatus_PendingCount_IncludesQueued(t *testing.T) {
	f := setup(t, 2)
	r := f.start(t, func(c *service.Config) { c.Cap = 2 })
	posted, other := strings.ToLower(f.ring.Addresses()[0].Hex()), strings.ToLower(f.ring.Addresses()[1].Hex())
	for range 5 {
		s := f.submission()
		s.RelayerID = posted
		_, err := r.Submit(t.Context(), s)
		require.NoError(t, err)
	}
	for id, want := range map[string]uint64{posted: 5, other: 0, relayertest.PoolID: 5} {
		status, err := r.Status(t.Context(), id, relayer.StatusParts{Pending: true})
		require.NoError(t, err)
		require.Equal(t, want, status.Pending, id)
	}
}
