package coordinator_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// A leader may die between a restore and the next epoch, so the restored snapshot must not have an earlier epoch.
func TestRestoreNeverLowersAnEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := make(chan []byte, 1)
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			cfg.Lead = func(ctx context.Context, l coordinator.Leadership) error {
				if l.Epoch < 100 {
					var snapshot bytes.Buffer
					if err := l.Directory.State().WriteSnapshot(&snapshot); err != nil {
						return err
					}
					old <- snapshot.Bytes()
					return &coordinator.ReestablishError{AtLeast: 100}
				}
				<-ctx.Done()
				return nil
			}
		})
		snapshot := <-old
		c.await("a later epoch", func() bool { _, epoch := c.leader(); return epoch >= 100 })
		c.register("a")
		for id, n := range c.nodes {
			c.await(id+" has all", func() bool { return n.Directory().State().Len() == 1 })
		}
		c.net.SetLatency(5 * time.Millisecond)

		ctx, stop := context.WithCancel(t.Context())
		lowest := make(chan uint64, 1)
		go func() {
			low := uint64(1000)
			for ctx.Err() == nil {
				for _, n := range c.nodes {
					low = min(low, n.Directory().State().Epoch())
				}
				pass(time.Millisecond)
			}
			lowest <- low
		}()
		leader, _ := c.leader()
		resp, err := c.restore(leader, snapshot, false)
		require.NoError(t, err)
		require.EqualValues(t, 0, resp.Services)
		require.EqualValues(t, 101, resp.Epoch)
		stop()
		require.EqualValues(t, 100, <-lowest)
	})
}

// slowSnapshots stores snapshots slowly.
type slowSnapshots struct {
	raft.SnapshotStore
	takes time.Duration
}

func (s *slowSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	pass(s.takes)
	return s.SnapshotStore.Create(version, index, term, c, cIndex, trans)
}

// The commit watchdog must give a restore time in proportion to its size.
func TestLongRestoreIsNotTakenForAHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := new(slowSnapshots)
		c := newSimCluster(t, 1, func(cfg *coordinator.Config) {
			slow.SnapshotStore = cfg.Stores.Snapshots
			cfg.Stores.Snapshots = slow
		})
		leader, _ := c.leader()
		for i := range 20 {
			var services []*rollcallv1.Service
			for j := range 100 {
				s := service(fmt.Sprintf("s-%d-%d", i, j))
				s.WorkerRef.Labels = labels(5, 200)
				services = append(services, s)
			}
			_, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: services})
			require.NoError(t, err)
		}
		snapshot := c.takeSnapshot(leader)
		require.Greater(t, len(snapshot), 2<<20)

		slow.takes = 20 * time.Second
		written := make(chan error, 1)
		go func() {
			pass(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := c.client(leader).DeregisterServices(ctx, &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: []string{"s-0-0"}})
			written <- err
		}()
		_, err := c.restore(leader, snapshot, false)
		require.NoError(t, err)
		<-written //nolint:errcheck // any result
		select {
		case err := <-c.nodes[leader].done:
			delete(c.nodes, leader)
			require.FailNow(t, "the process ended", err)
		default:
		}
	})
}

func TestRestoresAreReceivedOneAtATimeAndWithoutPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		snapshot := c.takeSnapshot(leader)

		silent, err := c.admin(leader).RestoreSnapshot(t.Context())
		require.NoError(t, err)
		require.NoError(t, silent.Send(&rollcallv1.RestoreSnapshotRequest{Chunk: snapshot[:10]}))
		synctest.Wait()
		_, err = c.restore(leader, snapshot, false)
		require.Equal(t, codes.Aborted, status.Code(err), "%v", err)

		pass(time.Minute)
		err = silent.RecvMsg(new(rollcallv1.RestoreSnapshotResponse))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "nothing was restored")
		_, err = c.restore(leader, snapshot, false)
		require.NoError(t, err)
	})
}

// The next start must remove the files of an interrupted restore, and no others.
func TestLeftoversOfRestoresAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"restore-1", "restore-2", "other"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat("x", 100)), 0o600))
	}
	n, err := coordinator.Open(t.Context(), coordinator.Config{
		ID: "a", Listen: "127.0.0.1:0", Peers: []coordinator.Peer{{ID: "a", Address: "127.0.0.1:1"}}, DataDir: dir,
	})
	require.NoError(t, err)
	require.NoError(t, n.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"other", "raft"}, names)
}

// A restored epoch must be accepted up to the same limit as one in Redis, because later epochs must remain.
func TestSnapshotOfAnEpochOutOfReachIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, epoch := c.leader()
		_, err := c.restore(leader, foreign(t, 1<<60), true)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		_, now := c.leader()
		require.Equal(t, epoch, now)
		_, err = c.restore(leader, foreign(t, 1<<30), true)
		require.NoError(t, err)
	})
}
