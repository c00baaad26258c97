package coordinator

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The number of entries left in the log must follow the size of recent entries, in both directions. A snapshot by Raft
// must count like one by run.
func TestSnapshotter_EntrySizesChange_TrailingLogsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := raft.NewInmemStore()
		n, stop, done := runSole(t, memnet.New(), store)
		write := func(id string) {
			l := n.currentLeader()
			_, err := n.register(t.Context(), l, &rollcallv1.RegisterServicesRequest{
				Services: []*rollcallv1.Service{{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://x"}}},
			}, &rollcallv1.WriteFence{Owner: fsm.Operator.Proto(), Epoch: l.Epoch})
			require.NoError(t, err)
		}
		kept := func() int {
			<-time.After(snapshotPeriod + time.Second)
			return int(n.raft.Load().ReloadableConfig().TrailingLogs)
		}
		require.Equal(t, maxTrailing, kept())

		n.snapshot.bytes.Add(logBudget) // simulates a few large writes
		require.Equal(t, minTrailing, kept())
		require.Zero(t, n.snapshot.bytes.Load())
		require.Equal(t, minTrailing, kept(), "nothing came since")
		write("a")
		require.Equal(t, maxTrailing, kept())

		require.NotZero(t, n.snapshot.bytes.Load())
		require.NoError(t, n.raft.Load().Snapshot().Error())
		require.Zero(t, n.snapshot.bytes.Load())
		require.Zero(t, n.snapshot.entries.Load())

		stop()
		require.NoError(t, <-done)
	})
}
