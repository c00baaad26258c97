package coordinator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// An epoch that no leader can have opened must be refused: the leader continues, and reports it repeatedly.
func TestEpochOutOfReachIsRefused(t *testing.T) {
	for name, seen := range map[string]uint64{"far": 1 << 60, "the last": 1<<64 - 1, "beyond the last": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := make(chan uint64, 1000)
				c := newSimCluster(t, 1, func(cfg *coordinator.Config) {
					cfg.Lead = func(_ context.Context, l coordinator.Leadership) error {
						attempts <- l.Epoch
						return &coordinator.ReestablishError{AtLeast: seen}
					}
				})
				first := <-attempts
				for range 20 {
					require.Equal(t, first, <-attempts)
				}
				status, err := c.client("c1").GetStatus(t.Context(), &rollcallv1.GetStatusRequest{})
				require.NoError(t, err)
				require.Contains(t, status.Mirror.Error, "rollcall mirror take-over --force", "whoever looks is told what to do")
				c.register("a")
			})
		})
	}
}

// The entry that opens an epoch may be in flight when a restore begins, which would undo the restore.
func TestRestoreWhileAnEpochIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := make(chan struct{})
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			cfg.Lead = func(ctx context.Context, l coordinator.Leadership) error {
				select {
				case <-ctx.Done():
					return nil
				case <-again:
					return &coordinator.ReestablishError{AtLeast: l.Epoch + 1}
				}
			}
		})
		c.register("a")
		leader, epoch := c.leader()
		snapshot := c.takeSnapshot(leader)
		c.net.SetLatency(10 * time.Millisecond)
		stream, err := c.admin(leader).RestoreSnapshot(t.Context())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&rollcallv1.RestoreSnapshotRequest{Chunk: snapshot}))
		pass(100 * time.Millisecond)
		require.NoError(t, stream.CloseSend()) // arrives in 10 ms, while the entry takes 20
		pass(5 * time.Millisecond)
		again <- struct{}{}
		resp := new(rollcallv1.RestoreSnapshotResponse)
		err = stream.RecvMsg(resp)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		c.await("it is open", func() bool { _, now := c.leader(); return now > epoch })
		resp, err = c.restore(leader, snapshot, false)
		require.NoError(t, err)
		require.Greater(t, resp.Epoch, epoch)
		c.register("b")
	})
}
