package coordinator

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/memnet"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// hangingLog is a log on a disk that hangs once it is told to, until go on is closed.
type hangingLog struct {
	raft.LogStore
	hangs atomic.Bool
	goOn  chan struct{}
}

func (l *hangingLog) StoreLogs(logs []*raft.Log) error {
	if l.hangs.Load() {
		<-l.goOn
	}
	return l.LogStore.StoreLogs(logs)
}

// A node that is told to stop ends in bounded time, and says why it did not end well, though its disk hangs.
func TestStopEndsWithAHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, err := memnet.New().Listen("a:7400")
		require.NoError(t, err)
		store := raft.NewInmemStore()
		log := &hangingLog{LogStore: store, goOn: make(chan struct{})}
		n, err := Open(t.Context(), Config{
			ID: "a", Peers: []Peer{{"a", "a:7400"}}, Listener: listener,
			Stores: &Stores{Log: log, Stable: store, Snapshots: raft.NewInmemSnapshotStore()},
		})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		for n.reigning() == nil {
			<-time.After(10 * time.Millisecond)
		}

		log.hangs.Store(true)
		l, written := n.reigning(), make(chan error, 1)
		go func() {
			_, err := n.register(t.Context(), l, &rollcallv1.RegisterServicesRequest{
				Services: []*rollcallv1.Service{{Id: "x", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://x"}}},
			}, &rollcallv1.WriteFence{Owner: fsm.Operator.Proto(), Epoch: l.Epoch})
			written <- err
		}()
		synctest.Wait()
		r := n.raft.Load()
		stop()
		select {
		case err := <-done:
			require.ErrorContains(t, err, "disk may hang")
		case <-time.After(time.Minute):
			require.Fail(t, "it does not end")
		}

		// For the test's sake the rest ends too.
		close(log.goOn)
		<-written
		require.NoError(t, r.Shutdown().Error())
		<-time.After(time.Minute)
		n.grpc.Stop()
		n.peers.close()
		require.NoError(t, n.port.Close())
	})
}
