package admin

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The leader's view is returned; without a leader that of a coordinator that answers, and the reason.
func TestMembers_WithAndWithoutLeader_AreReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3)
		leader := c.leader()
		all, err := c.admin().Members(t.Context())
		require.NoError(t, err)
		require.Equal(t, []any{leader.Cluster, leader.Epoch, leader.Node, 3}, []any{all.Cluster, all.Epoch, all.Leader, len(all.Members)})
		for _, m := range all.Members {
			require.Equal(t, []any{m.ID + ":7400", true, true, m.ID == leader.Node}, []any{m.Address, m.Voter, m.Reachable, m.Leader})
			require.NotZero(t, m.Term)
		}

		c.stop(leader.Node)
		c.stop(c.leader().Node)
		for err == nil { // the last one may lead until it notices that it is alone
			pass(time.Second)
			began := time.Now()
			all, err = c.admin().Members(t.Context())
			require.Less(t, time.Since(began), timeout)
		}
		require.ErrorIs(t, err, gateway.ErrNoLeader)
		require.Empty(t, all.Leader)
		for _, m := range all.Members {
			require.Equal(t, c.stops[m.ID] != nil, m.Reachable)
		}
		_, err = c.admin().Services(t.Context(), Selection{Stale: true})
		require.NoError(t, err, "a copy can be read without a leader")

		for id := range c.stops {
			c.stop(id)
		}
		all, err = c.admin().Members(t.Context())
		require.ErrorIs(t, err, gateway.ErrNoLeader)
		require.Nil(t, all)
	})
}

func TestMembers_AddAndRemove_ChangeTheCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3)
		c.leader()
		a := c.admin()
		fourth := func() *Member {
			t.Helper()
			all, err := a.Members(t.Context())
			require.NoError(t, err)
			for _, m := range all.Members {
				if m.ID == "c4" {
					return &m
				}
			}
			return nil
		}
		require.ErrorContains(t, a.AddMember(t.Context(), "c4", "c4:7400", false), `no coordinator "c4" answers at c4:7400`)
		c.start("c4")
		require.NoError(t, a.AddMember(t.Context(), "c4", "c4:7400", true))
		require.False(t, fourth().Voter)
		require.NoError(t, a.AddMember(t.Context(), "c4", "c4:7400", false))
		for !fourth().Voter { // it catches up first
			pass(100 * time.Millisecond)
		}
		require.NoError(t, a.RemoveMember(t.Context(), "c4"))
		require.Nil(t, fourth())
		require.ErrorContains(t, a.RemoveMember(t.Context(), "c4"), `"c4" is not a member`)
	})
}

func TestTransfer_Named_LeadsAfterwards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3)
		before, a := c.leader(), c.admin()
		next := "c1"
		if before.Node == next {
			next = "c2"
		}
		l, transferred, err := a.Transfer(t.Context(), next)
		require.NoError(t, err)
		require.True(t, transferred)
		require.Equal(t, next, l.Node)
		require.Greater(t, l.Epoch, before.Epoch)
		l, transferred, err = a.Transfer(t.Context(), next)
		require.NoError(t, err)
		require.False(t, transferred)
		require.Equal(t, next, l.Node)
		l, transferred, err = a.Transfer(t.Context(), "")
		require.NoError(t, err)
		require.True(t, transferred)
		require.NotEqual(t, next, l.Node)
		_, _, err = a.Transfer(t.Context(), "absent")
		require.ErrorContains(t, err, `"absent" is not a voter`)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, l.Node, c.leader().Node)
	})
}

// A transfer that Raft gave up on may still happen: the leader that is seen afterwards decides.
func TestTransfer_OutcomeUnknown_LeaderDecides(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		to, next string // next leads after the transfer, if another node does
		answered bool   // by the leader that was asked
		leads    string // the result
		err      string
		unknown  bool
	}{
		"it happened":            {to: "c2", next: "c2", leads: "c2"},
		"any other was wanted":   {next: "c3", leads: "c3"},
		"another member leads":   {to: "c2", next: "c3", err: "c3 leads, epoch 6"},
		"no other leader soon":   {to: "c2", err: "c1 leads as far as is known, epoch 5, and may hand over yet (leadership transfer timeout); if it stays the leader, repeat the transfer", unknown: true},
		"done, and none is seen": {to: "c2", answered: true, err: "c1 leads as far as is known, epoch 5, and may hand over yet (it handed over); if it stays the leader, repeat the transfer", unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := make(chan struct{})
				f := &fake{
					leader: func() (string, uint64) {
						select {
						case <-asked:
							if tc.next != "" {
								return tc.next, 6
							}
						default:
						}
						return "c1", 5
					},
					transfer: func() error {
						close(asked)
						if tc.answered {
							return nil
						}
						return refusal(t, codes.Unknown, &rollcallv1.UnknownOutcome{Cause: "leadership transfer timeout"})
					},
				}
				l, transferred, err := f.admin(t).Transfer(t.Context(), tc.to)
				if tc.err == "" {
					require.NoError(t, err)
					require.True(t, transferred)
					require.Equal(t, tc.leads, l.Node)
					return
				}
				require.ErrorContains(t, err, tc.err)
				_, unknown := errors.AsType[*gateway.UnknownOutcomeError](err)
				require.Equal(t, tc.unknown, unknown)
			})
		})
	}
}

// A change is repeated while it was certainly not done. A call that ended without an answer may be done or not.
func TestChange_LeaderFails_OutcomeIsKnownOrUnknown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		remove  func(t *testing.T, f *fake, call int) error // the answer to each call, from the first
		calls   int                                         // 0 for many
		err     string
		unknown bool
		took    time.Duration
	}{
		"done": {calls: 1, remove: func(*testing.T, *fake, int) error { return nil }},
		"does not lead any more, at first": {calls: 3, took: 2 * leaderPause, remove: func(t *testing.T, _ *fake, call int) error {
			switch call {
			case 1:
				return refusal(t, codes.FailedPrecondition, &rollcallv1.NotLeader{})
			case 2:
				return refusal(t, codes.Unavailable, &rollcallv1.NotEstablished{})
			}
			return nil
		}},
		"is never established": {took: timeout, err: "the leader is not established yet", remove: func(t *testing.T, _ *fake, _ int) error {
			pass(leaderPause / 3) // so that the time ends between two calls
			return refusal(t, codes.Unavailable, &rollcallv1.NotEstablished{})
		}},
		"refuses": {calls: 1, err: "not a member", remove: func(*testing.T, *fake, int) error {
			return status.Error(codes.FailedPrecondition, "not a member")
		}},
		"has no quorum": {calls: 1, err: "the leader could not reach a quorum", remove: func(t *testing.T, _ *fake, _ int) error {
			return refusal(t, codes.Unavailable, &rollcallv1.NoQuorum{})
		}},
		"does not answer": {calls: 1, took: timeout, unknown: true, err: "context deadline exceeded", remove: func(*testing.T, *fake, int) error {
			pass(2 * timeout)
			return nil
		}},
		"ends": {calls: 1, unknown: true, err: "error reading from server: EOF", remove: func(_ *testing.T, f *fake, _ int) error {
			go f.server.Stop()
			pass(time.Second)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				f := new(fake)
				f.remove = func(context.Context) error { return tc.remove(t, f, int(calls.Add(1))) }
				a := f.admin(t)
				_, err := a.Leader(t.Context())
				require.NoError(t, err)
				began := time.Now()
				err = a.RemoveMember(t.Context(), "c4")
				t.Logf("%T %v", err, err)
				took := time.Since(began)
				if tc.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tc.err)
					require.NotContains(t, err.Error(), "rpc error: code = Unavailable")
				}
				unknown, is := errors.AsType[*gateway.UnknownOutcomeError](err)
				require.Equal(t, tc.unknown, is, "%v", err)
				if is {
					require.NotContains(t, unknown.Cause, "rpc error")
				}
				require.Equal(t, tc.took, took)
				if tc.calls > 0 {
					require.EqualValues(t, tc.calls, calls.Load())
				}
			})
		})
	}
}

// A call that never left this host is not done.
func TestChange_NeverSent_IsNotDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{remove: func(context.Context) error {
			t.Error("it was sent")
			return nil
		}}
		a := f.admin(t)
		_, err := a.Leader(t.Context())
		require.NoError(t, err)
		ctx, interrupt := context.WithCancel(t.Context())
		interrupt()
		err = a.RemoveMember(ctx, "c4")
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorAs(t, err, new(*gateway.UnknownOutcomeError))
	})
}
