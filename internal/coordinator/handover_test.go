package coordinator_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// messages is a log that keeps what was said.
type messages struct {
	slog.Handler
	mu   *sync.Mutex
	said map[string]int
}

func newMessages() *messages {
	return &messages{Handler: slog.DiscardHandler, mu: new(sync.Mutex), said: make(map[string]int)}
}

func (m *messages) Enabled(context.Context, slog.Level) bool { return true }
func (m *messages) WithAttrs([]slog.Attr) slog.Handler       { return m }
func (m *messages) WithGroup(string) slog.Handler            { return m }
func (m *messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said[r.Message]++
	return nil
}

func (m *messages) count(message string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said[message]
}

func (m *messages) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.said)
}

// Raft knows only who has how much of the log: a voter that is down is as good as any until somebody writes.
func TestHandsOverThoughAVoterIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newMessages()
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = slog.New(log) })
		c.await("c2 leads", func() bool {
			leader, _ := c.leader()
			if leader != "c2" {
				_, _ = c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: "c2"})
			}
			return leader == "c2"
		})
		c.register("a")
		pass(time.Second)
		c.stop("c1")
		log.reset()

		c.stop("c2")
		require.Equal(t, 1, log.count("leadership handed over"))
		require.Zero(t, log.count("leadership not handed over"))
	})
}

func TestTransferFindsAVoterThatAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.await("c2 leads", func() bool {
			leader, _ := c.leader()
			if leader != "c2" {
				_, _ = c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: "c2"})
			}
			return leader == "c2"
		})
		c.register("a")
		pass(time.Second)
		stores := c.nodes["c1"].stores
		c.stop("c1")
		_, err := c.admin("c2").TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{})
		require.NoError(t, err)
		c.await("c3 leads", func() bool { leader, _ := c.leader(); return leader == "c3" })

		// What connects c3 to c1 dates from before c1 stopped.
		c.start("c1", stores)
		c.await("c1 answers", func() bool {
			_, err := c.client("c1").Ping(t.Context(), &rollcallv1.PingRequest{})
			return err == nil
		})
		_, err = c.admin("c3").TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: "c1"})
		require.NoError(t, err)
		c.await("c1 leads", func() bool { leader, _ := c.leader(); return leader == "c1" })
	})
}

// A voter that was away answers at once when it is back, while what replicates to it waits for seconds before it tries
// again. A second transfer to it would block in Raft for ever, which a bubble notices at its end, and so would writes.
func TestTransferToAVoterThatLagsIsTriedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newMessages()
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = slog.New(log) })
		c.await("c2 leads", func() bool {
			leader, _ := c.leader()
			if leader != "c2" {
				_, _ = c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: "c2"})
			}
			return leader == "c2"
		})
		c.net.Isolate("c1")
		pass(30 * time.Second)
		c.register("a")
		c.net.Heal()
		transfer := func(to string) error {
			_, err := c.admin("c2").TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: to})
			return err
		}
		c.await("c1 answers", func() bool {
			_, err := c.client("c1").Ping(t.Context(), &rollcallv1.PingRequest{})
			return err == nil
		})
		require.ErrorContains(t, transfer("c1"), "leadership transfer timeout")
		for range 3 {
			err := transfer("c1")
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "caught up")
		}
		c.register("b")

		pass(30 * time.Second)
		require.NoError(t, transfer("c1"), "it has caught up")
		c.await("c1 leads", func() bool { leader, _ := c.leader(); return leader == "c1" })
	})
}

func TestTransferToAVoterThatIsDownIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		down := c.follower()
		c.stop(down)
		_, err := c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{To: down})
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, down+" does not answer")
	})
}

func TestTransferWithNobodyToTakeItIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		c.register("a")
		leader, epoch := c.leader()
		_, err := c.admin(leader).TransferLeadership(t.Context(), &rollcallv1.TransferLeadershipRequest{})
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		again, same := c.leader()
		require.Equal(t, leader, again)
		require.Equal(t, epoch, same)
	})
}
