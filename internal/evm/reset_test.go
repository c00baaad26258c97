package evm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatus_OnlyEndpointFallsBack_ReportsReset(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	c.poll(t.Context(), c.endpoints[0])
	f.set(func() { f.head = 87 })
	c.poll(t.Context(), c.endpoints[0])
	require.Equal(t, "13 blocks behind what it has shown before: its chain was reset, or another node answers now", c.Status().Endpoints[0].Reason)
}
