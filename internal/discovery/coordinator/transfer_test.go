package coordinator_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// messages is a log handler that stores its messages.
type messages struct {
	slog.Handler
	mu     *sync.Mutex
	counts map[string]int
}

func newMessages() *messages {
	return &messages{Handler: slog.DiscardHandler, mu: new(sync.Mutex), counts: make(map[string]int)}
}

func (m *messages) Enabled(context.Context, slog.Level) bool { return true }
func (m *messages) WithAttrs([]slog.Attr) slog.Handler       { return m }
func (m *messages) WithGroup(string) slog.Handler            { return m }
func (m *messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[r.Message]++
	return nil
}

func (m *messages) count(message string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[message]
}

func (m *messages) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.counts)
}

// transfer asks a node to hand the leadership to another; with "" the node chooses.
func (c *simCluster) transfer(from, to string) error {
	client := c.admin(from)
	_, err := client.TransferLeadership(c.t.Context(), &rollcallv1.TransferLeadershipRequest{To: to})
	return err
}

// lead makes a node the leader.
func (c *simCluster) lead(id string) {
	c.t.Helper()
	c.await(id+" leads", func() bool {
		leader, _ := c.leader()
		if leader != id {
			_ = c.transfer(leader, id)
		}
		return leader == id
	})
}

// Raft chooses a successor by log length alone, so a dead voter is as good as any without writes. The transfer must
// succeed.
func TestShutdown_VoterIsDown_HandsLeadershipOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newMessages()
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = slog.New(log) })
		c.lead("c2")
		c.register("a")
		pass(time.Second)
		c.stop("c1")
		log.reset()

		c.stop("c2")
		require.Equal(t, 1, log.count("leadership handed over"))
		require.Zero(t, log.count("leadership not handed over"))
	})
}

func TestTransferLeadership_NoTarget_PicksAVoterThatAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.lead("c2")
		c.register("a")
		pass(time.Second)
		stores := c.nodes["c1"].stores
		c.stop("c1")
		err := c.transfer("c2", "")
		require.NoError(t, err)
		c.await("c3 leads", func() bool { leader, _ := c.leader(); return leader == "c3" })

		// The connection from c3 to c1 dates from before c1 stopped.
		c.start("c1", stores)
		c.await("c1 answers", func() bool {
			_, err := c.client("c1").Ping(t.Context(), &rollcallv1.PingRequest{})
			return err == nil
		})
		err = c.transfer("c3", "c1")
		require.NoError(t, err)
		c.await("c1 leads", func() bool { leader, _ := c.leader(); return leader == "c1" })
	})
}

// lagging returns a cluster led by c2, whose c1 has been away. Heartbeats reach c1 again, but the log is sent to it
// only after a backoff of ten seconds. A transfer to it would leave a notice in Raft that blocks the next one
// (hashicorp/raft #696), forever in a leader that stops. The bubble detects that at its end.
func lagging(t *testing.T) (*simCluster, *messages) {
	t.Helper()
	log := newMessages()
	c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = slog.New(log) })
	for i := range 20 {
		c.lead("c2")
		c.net.Isolate("c1")
		c.register(fmt.Sprintf("away-%d", i))
		pass(30 * time.Second)
		log.reset()
		c.await("the next wait begins", func() bool { return log.count("failed to appendEntries to") > 0 })
		c.net.Heal()
		c.await("c1 has a leader", func() bool {
			p, err := c.client("c1").Ping(t.Context(), &rollcallv1.PingRequest{})
			return err == nil && p.Leader != nil
		})
		// If c1 stood for election before it received c2's heartbeat, there is a new term without a pending notice.
		leader, _ := c.leader()
		if leader == "c2" && c.nodes["c1"].Directory().State().Index() < c.nodes["c2"].Directory().State().Index() {
			log.reset()
			return c, log
		}
	}
	require.FailNow(t, "c1 never lags")
	return nil, nil
}

func TestTransferLeadership_VoterLags_IsNotChosen(t *testing.T) {
	t.Run("by an operator", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := lagging(t)
			for range 3 {
				err := c.transfer("c2", "c1")
				require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
				require.ErrorContains(t, err, "c1 does not answer, or has not caught up")
			}
			c.register("b")

			pass(30 * time.Second)
			require.NoError(t, c.transfer("c2", "c1"), "it has caught up")
			c.await("c1 leads", func() bool { leader, _ := c.leader(); return leader == "c1" })
		})
	})
	t.Run("by who stops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, log := lagging(t)
			c.stop("c2")
			require.Equal(t, 1, log.count("leadership handed over"), "to c3")
		})
	})
	t.Run("by who stops, and has no other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, log := lagging(t)
			c.stop("c3")
			log.reset()
			c.stop("c2")
			require.Zero(t, log.count("leadership handed over"))
			require.Equal(t, 1, log.count("leadership not handed over"))
		})
	})
}

// Until a connection breaks, a dead voter looks alive: it is chosen, and the outcome is unknown.
func TestTransferLeadership_VoterJustDied_OutcomeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.lead("c2")
		c.net.Isolate("c1")
		results := make(chan error)
		for range 4 { // of several operators, one is first
			go func() { results <- c.transfer("c2", "c1") }()
		}
		var unknown int
		for range 4 {
			switch err := <-results; status.Code(err) {
			case codes.Unknown:
				unknown++
			default:
				require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			}
		}
		require.Equal(t, 1, unknown)
		c.register("a") // writes continue
		require.Equal(t, codes.FailedPrecondition, status.Code(c.transfer("c2", "c1")))

		c.net.Heal()
		c.lead("c1") // by a message in flight, or by another request
	})
}

func TestTransferLeadership_VoterIsDown_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		down := c.follower()
		c.stop(down)
		pass(time.Second) // messages to it fail
		err := c.transfer(leader, down)
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, down+" does not answer")
	})
}

func TestTransferLeadership_NoOtherVoter_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		c.register("a")
		leader, epoch := c.leader()
		err := c.transfer(leader, "")
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		again, same := c.leader()
		require.Equal(t, leader, again)
		require.Equal(t, epoch, same)
	})
}
