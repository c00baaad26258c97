package coordinator

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testutil/memnet"
)

// progress is the watchdog's view of Raft.
type progress struct {
	commit   atomic.Uint64
	last     atomic.Uint64 // the last entry on the leader's disk
	follower atomic.Bool
	transfer atomic.Bool // does not end
}

func (p *progress) CommitIndex() uint64 { return p.commit.Load() }
func (p *progress) LastIndex() uint64   { return p.last.Load() }

func (p *progress) GetConfiguration() raft.ConfigurationFuture { return threeVoters{} }

func (p *progress) State() raft.RaftState {
	if p.follower.Load() {
		return raft.Follower
	}
	return raft.Leader
}

func (p *progress) Barrier(time.Duration) raft.Future {
	if p.transfer.Load() {
		return answered{raft.ErrLeadershipTransferInProgress}
	}
	p.commit.Add(1)
	return answered{}
}

// answered is a completed future.
type answered struct{ err error }

func (a answered) Error() error { return a.err }

// threeVoters is the configuration of a cluster that a leads.
type threeVoters struct{ raft.IndexFuture }

func (threeVoters) Configuration() raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}}}
}

// slowSnapshot is a snapshot on a disk. Each Read takes a second, and none returns after the disk hangs.
type slowSnapshot struct {
	parts int
	hang  <-chan struct{} // if set, the Read after the last part waits for it
}

func (s *slowSnapshot) Read(p []byte) (int, error) {
	<-time.After(time.Second)
	if s.parts--; s.parts >= 0 {
		return len(p), nil
	}
	if s.hang != nil {
		<-s.hang
	}
	return 0, io.EOF
}

func TestWatchdog_FollowerCatchesUp_EndsOnlyTheStuckLeader(t *testing.T) {
	request := func(last uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: last - 1, Entries: make([]*raft.Log, 1)}
	}
	// catchUp makes c acknowledge one more entry each five seconds.
	catchUp := func(r *replication) {
		for i := range uint64(8) {
			<-time.After(5 * time.Second)
			r.begin("c", request(1+i))(true)
		}
	}
	cases := map[string]struct {
		last uint64 // on the leader's disk; 100 are committed
		play func(t *testing.T, r *replication)
		dead bool
	}{
		"entry by entry": {last: 200, play: func(_ *testing.T, r *replication) { catchUp(r) }},
		"entry by entry, and then no more": {last: 200, play: func(_ *testing.T, r *replication) {
			catchUp(r)
			<-time.After(commitLimit + watchPeriod)
		}, dead: true},
		"it repeats its last entry": {last: 200, play: func(_ *testing.T, r *replication) {
			for range 4 {
				<-time.After(5 * time.Second)
				r.begin("c", request(1))(true)
			}
		}, dead: true},
		"it refuses entries": {last: 200, play: func(_ *testing.T, r *replication) {
			for i := range uint64(4) {
				<-time.After(5 * time.Second)
				r.begin("c", request(1+i))(false)
			}
		}, dead: true},
		"the leader's disk hangs": {last: 100, play: func(_ *testing.T, r *replication) { catchUp(r) }, dead: true},
		"the leader's disk hangs, and b has all that it holds": {last: 200, play: func(_ *testing.T, r *replication) {
			r.begin("b", request(200))(true)
			catchUp(r)
		}, dead: true},
		"a snapshot that the follower restores for a minute": {last: 200, play: func(t *testing.T, r *replication) {
			i := r.install(&slowSnapshot{parts: 3})
			n, err := io.Copy(io.Discard, i)
			require.NoError(t, err)
			require.NotZero(t, n)
			<-time.After(time.Minute)
			i.end(true)
		}},
		"a snapshot that the leader reads for a minute": {last: 200, play: func(t *testing.T, r *replication) {
			i := r.install(&slowSnapshot{parts: 60})
			_, err := io.Copy(io.Discard, i)
			require.NoError(t, err)
			i.end(true)
		}},
		"a snapshot that fails": {last: 200, play: func(t *testing.T, r *replication) {
			i := r.install(&slowSnapshot{parts: 3})
			_, err := io.Copy(io.Discard, i)
			require.NoError(t, err)
			i.end(false)
			<-time.After(commitLimit + watchPeriod)
		}, dead: true},
		"a snapshot to a follower that cannot be reached": {last: 200, play: func(_ *testing.T, r *replication) {
			for range 4 {
				i := r.install(&slowSnapshot{parts: 3})
				<-time.After(5 * time.Second)
				i.end(false)
			}
		}, dead: true},
		"a snapshot on the leader's disk, which hangs": {last: 200, play: func(t *testing.T, r *replication) {
			hang := make(chan struct{})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				i := r.install(&slowSnapshot{parts: 3, hang: hang})
				_, _ = io.Copy(io.Discard, i)
				i.end(false)
			}()
			t.Cleanup(func() { close(hang); <-ended })
			<-time.After(20 * time.Second)
		}, dead: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(progress)
				p.commit.Store(100)
				p.last.Store(tc.last)
				r := new(replication)
				w := newWatchdog(p, r)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				done := make(chan error, 1)
				go func() { done <- w.run(ctx) }()
				synctest.Wait()
				w.begin(0)
				tc.play(t, r)
				stop()
				if err := <-done; tc.dead {
					require.ErrorContains(t, err, "this leader has committed nothing for 10s")
				} else {
					require.NoError(t, err)
				}
			})
		})
	}
}

// A snapshot's bytes and its restore count as the follower's progress when Raft's own transport sends it.
func TestTransport_InstallSnapshot_RecordsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		open := func(id string) *raft.NetworkTransport {
			l, err := network.Listen(id + ":7400")
			require.NoError(t, err)
			n := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
				Stream: memStream{l, network.Dialer(id)}, MaxPool: 1, Timeout: time.Minute, Logger: hclog.NewNullLogger(),
			})
			t.Cleanup(func() {
				n.CloseStreams()
				require.NoError(t, n.Close())
				<-time.After(time.Second) // messages in flight arrive
			})
			return n
		}
		leader, follower := open("a"), open("b")
		r := new(replication)
		trans := &transport{NetworkTransport: leader, replication: r}
		require.False(t, r.takeProgress())
		snapshot := strings.Repeat("x", 1<<20)
		sent := make(chan error, 1)
		go func() {
			req := &raft.InstallSnapshotRequest{Size: int64(len(snapshot))}
			sent <- trans.InstallSnapshot("b", "b:7400", req, new(raft.InstallSnapshotResponse), strings.NewReader(snapshot))
		}()
		rpc := <-follower.Consumer()
		n, err := io.Copy(io.Discard, rpc.Reader)
		require.NoError(t, err)
		require.Len(t, snapshot, int(n))
		for range 3 { // the follower restores it
			<-time.After(10 * time.Second)
			require.True(t, r.takeProgress())
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
		require.NoError(t, <-sent)
		require.True(t, r.takeProgress(), "it has the snapshot")
		require.False(t, r.takeProgress())
	})
}

// memStream is a stream layer of Raft in memory.
type memStream struct {
	net.Listener
	dial func(ctx context.Context, addr string) (net.Conn, error)
}

func (s memStream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.dial(ctx, string(address))
}

func TestWatchdog_StuckAndSlowLeaders_EndsOnlyTheStuck(t *testing.T) {
	transfer := raft.ErrLeadershipTransferInProgress
	cases := map[string]struct {
		play func(w *watchdog, p *progress)
		dead bool
	}{
		"nothing pending":          {func(*watchdog, *progress) {}, false},
		"pending, nothing commits": {func(w *watchdog, _ *progress) { w.begin(100) }, true},
		"pending, but a follower by now": {func(w *watchdog, p *progress) {
			w.begin(100)
			p.follower.Store(true)
		}, false},
		"slow: one commit in nine seconds": {func(w *watchdog, p *progress) {
			wr := w.begin(100)
			for range 10 {
				<-time.After(9 * time.Second)
				p.commit.Add(1)
			}
			wr.end(nil)
		}, false},
		"large on a slow link": {func(w *watchdog, p *progress) {
			wr := w.begin(4 << 20)
			<-time.After(60 * time.Second)
			p.commit.Add(1)
			wr.end(nil)
		}, false},
		"done in time": {func(w *watchdog, _ *progress) {
			wr := w.begin(100)
			<-time.After(8 * time.Second)
			wr.end(nil)
		}, false},
		"a transfer that does not end": {func(w *watchdog, p *progress) {
			p.transfer.Store(true)
			for range 20 {
				w.begin(100).end(transfer)
				<-time.After(time.Second)
			}
		}, true},
		"a transfer that does not end, and one write in it": {func(w *watchdog, p *progress) {
			p.transfer.Store(true)
			w.begin(100).end(transfer)
		}, true},
		"a transfer that ends, and no write after it": {func(w *watchdog, p *progress) {
			p.transfer.Store(true)
			w.begin(100).end(transfer)
			<-time.After(5 * time.Second)
			p.transfer.Store(false)
		}, false},
		"a transfer that ends": {func(w *watchdog, p *progress) {
			w.begin(100).end(transfer)
			<-time.After(5 * time.Second)
			w.begin(100).end(nil)
			p.commit.Add(1)
		}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(progress)
				w := newWatchdog(p, new(replication))
				done := make(chan error, 1)
				ctx := t.Context()
				go func() { done <- w.run(ctx) }()
				synctest.Wait()
				tc.play(w, p)
				select {
				case err := <-done:
					require.True(t, tc.dead, "%v", err)
					require.Error(t, err)
				case <-time.After(15 * time.Second):
					require.False(t, tc.dead)
				}
			})
		})
	}
}

func TestApplyError_NotDoneAndUnknown_AreDistinct(t *testing.T) {
	for _, err := range []error{raft.ErrNotLeader, raft.ErrLeadershipTransferInProgress, raft.ErrEnqueueTimeout} {
		require.ErrorIs(t, applyError(err), errNotEstablished)
	}
	for _, err := range []error{raft.ErrLeadershipLost, raft.ErrRaftShutdown, raft.ErrAbortedByRestore, errors.New("other")} {
		var unknown *unknownError
		require.ErrorAs(t, applyError(err), &unknown)
		require.ErrorIs(t, unknown, err)
	}
}
