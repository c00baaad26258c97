package coordinator_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// An epoch that no leader can have opened must be refused: the leader continues, and reports it repeatedly.
func TestLead_EpochOutOfReach_IsRefused(t *testing.T) {
	for name, seen := range map[string]uint64{"a month of milliseconds": 30 * 24 * 3600 * 1000, "far": 1 << 60, "the last": 1<<64 - 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := make(chan uint64, 1000)
				c := newSimCluster(t, 1, func(cfg *coordinator.Config) {
					cfg.Lead = func(_ context.Context, l coordinator.Leadership) (uint64, error) {
						attempts <- l.Epoch
						return seen, nil
					}
				})
				first := <-attempts
				for range 20 {
					require.Equal(t, first, <-attempts)
				}
				status, err := c.client("c1").GetStatus(t.Context(), &rollcallv1.GetStatusRequest{})
				require.NoError(t, err)
				require.Contains(t, status.Mirror.Error, "rollcall mirror take-over --force", "the status names the command to run")
				c.register("a")
			})
		})
	}
}
