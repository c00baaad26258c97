package coordinator

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// hangingLog is a log on a disk that hangs while hangs is set, until goOn is closed.
type hangingLog struct {
	raft.LogStore
	hangs atomic.Bool
	hung  atomic.Bool // a write hangs, or did
	goOn  chan struct{}
}

func (l *hangingLog) StoreLogs(logs []*raft.Log) error {
	if l.hangs.Load() {
		l.hung.Store(true)
		<-l.goOn
	}
	return l.LogStore.StoreLogs(logs)
}

// runSole runs a single-node cluster at a:7400 until it leads.
func runSole(t *testing.T, network *memnet.Network, log raft.LogStore) (n *Node, stop func(), done <-chan error) {
	listener, err := network.Listen("a:7400")
	require.NoError(t, err)
	n, err = Open(t.Context(), Config{
		ID: "a", Peers: []Peer{{"a", "a:7400"}}, Listener: listener,
		Stores: &Stores{Log: log, Stable: raft.NewInmemStore(), Snapshots: raft.NewInmemSnapshotStore()},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	for n.currentLeader() == nil {
		<-time.After(10 * time.Millisecond)
	}
	return n, stop, ended
}

// A node that is stopped with a hung disk must end in bounded time with the reason.
func TestShutdown_DiskHangs_EndsWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &hangingLog{LogStore: raft.NewInmemStore(), goOn: make(chan struct{})}
		n, stop, done := runSole(t, memnet.New(), log)

		log.hangs.Store(true)
		l, written := n.currentLeader(), make(chan error, 1)
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

		// The rest must end too, for the bubble.
		close(log.goOn)
		<-written //nolint:errcheck // any result
		require.NoError(t, r.Shutdown().Error())
		<-time.After(time.Minute)
		n.grpc.Stop()
		n.peers.close()
		require.NoError(t, n.port.Close())
	})
}

// hangingSnapshots is a disk that hangs on writing a snapshot, until goOn is closed.
type hangingSnapshots struct {
	raft.SnapshotStore
	begun, goOn chan struct{}
}

func (s *hangingSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	close(s.begun)
	<-s.goOn
	return s.SnapshotStore.Create(version, index, term, c, cIndex, trans)
}

func TestShutdown_SnapshotHangs_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, err := memnet.New().Listen("a:7400")
		require.NoError(t, err)
		store := raft.NewInmemStore()
		snapshots := &hangingSnapshots{SnapshotStore: raft.NewInmemSnapshotStore(), begun: make(chan struct{}), goOn: make(chan struct{})}
		n, err := Open(t.Context(), Config{
			ID: "a", Peers: []Peer{{"a", "a:7400"}}, Listener: listener,
			Stores: &Stores{Log: store, Stable: store, Snapshots: snapshots},
		})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		for n.currentLeader() == nil {
			<-time.After(10 * time.Millisecond)
		}
		n.snapshot.bytes.Add(logBudget)
		<-snapshots.begun
		r := n.raft.Load()
		stop()
		select {
		case err := <-done:
			require.ErrorContains(t, err, "writing a snapshot has not ended")
		case <-time.After(time.Minute):
			close(snapshots.goOn)
			require.Fail(t, "it does not end", <-done)
			return
		}

		// The rest must end too, for the bubble.
		close(snapshots.goOn)
		require.NoError(t, r.Shutdown().Error())
		<-time.After(time.Minute)
		n.grpc.Stop()
		n.peers.close()
		require.NoError(t, n.port.Close())
	})
}

// Raft forgets unread requests on shutdown, and never answers their handlers. The node must stop all the same. There
// is no bubble, because it would wait for those handlers too.
func TestShutdown_RaftForgetsAWrite_Ends(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	store := raft.NewInmemStore()
	log := &hangingLog{LogStore: store, goOn: make(chan struct{})}
	n, err := Open(t.Context(), Config{
		ID: "a", Peers: []Peer{{"a", addr}}, Listener: listener,
		Stores: &Stores{Log: log, Stable: store, Snapshots: raft.NewInmemSnapshotStore()},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	require.Eventually(t, func() bool { return n.currentLeader() != nil }, 2*time.Minute, time.Millisecond)
	r := n.raft.Load()

	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	pending := func() int {
		n.watchdog.mu.Lock()
		defer n.watchdog.mu.Unlock()
		return len(n.watchdog.pending)
	}
	require.Eventually(t, func() bool { return pending() == 0 }, 2*time.Minute, time.Millisecond)
	log.hangs.Store(true)
	written := make(chan error, inFlight)
	for i := range inFlight { // one being written to disk, one that Raft has not read
		go func() {
			_, err := rollcallv1.NewDiscoveryServiceClient(conn).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
				Writer:   &rollcallv1.Writer{Owner: fsm.Operator.Proto()},
				Services: []*rollcallv1.Service{{Id: "x", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://x"}}},
			})
			written <- err
		}()
		// Until Raft writes the first one, it could take the second one into the same batch.
		require.Eventually(t, func() bool { return pending() == i+1 && log.hung.Load() }, 2*time.Minute, time.Millisecond)
	}

	stop()
	require.Eventually(t, func() bool { return r.State() == raft.Shutdown }, 2*time.Minute, time.Millisecond)
	close(log.goOn)
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "it does not end")
	}
	for range inFlight {
		require.Error(t, <-written)
	}
	// The callers have their errors from the node's end. The other write is recorded as ended soon after, from Raft.
	require.Eventually(t, func() bool { return pending() == 1 }, 2*time.Minute, time.Millisecond, "the one that Raft forgot")
}

// A node without a successor must finish its running writes before Raft stops.
func TestShutdown_SoleVoter_FinishesItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		log := &hangingLog{LogStore: raft.NewInmemStore(), goOn: make(chan struct{})}
		_, stop, done := runSole(t, network, log)
		conn, err := grpc.NewClient("passthrough:///a:7400", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return network.Dial(ctx, "client", addr) }))
		require.NoError(t, err)
		defer conn.Close()

		log.hangs.Store(true)
		const writes = inFlight + 2 // so many in Raft, the others queued
		written := make(chan error, writes)
		for i := range writes {
			go func() {
				_, err := rollcallv1.NewDiscoveryServiceClient(conn).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
					Writer:   &rollcallv1.Writer{Owner: fsm.Operator.Proto()},
					Services: []*rollcallv1.Service{{Id: fmt.Sprintf("x-%d", i), Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://x"}}},
				})
				written <- err
			}()
		}
		synctest.Wait()
		stop()
		<-time.After(drainLimit / 2)
		log.hangs.Store(false)
		close(log.goOn)
		for range writes {
			require.NoError(t, <-written)
		}
		require.NoError(t, <-done)
	})
}
