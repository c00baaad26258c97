package coordinator

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// progress is the watchdog's view of Raft.
type progress struct {
	commit   atomic.Uint64
	follower atomic.Bool
	transfer atomic.Bool // does not end
}

func (p *progress) CommitIndex() uint64 { return p.commit.Load() }
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
				w := newWatchdog(p)
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
