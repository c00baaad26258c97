package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func within(t *testing.T, c *Client, d time.Duration) Leader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	l, err := c.Leader(ctx)
	require.NoError(t, err)
	return l
}

func TestLeader_SeveralNodes_IsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n2", 7)
		l := within(t, f.client("n1", "n2", "n3"), time.Millisecond)
		require.Equal(t, Leader{Cluster: "cluster-a", Node: "n2", Address: "n2:7400", Epoch: 7}, l)
	})
}

func TestLeader_SeveralClaims_HighestEpochWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.set(func() {
			for id, epoch := range map[string]uint64{"n1": 3, "n2": 5, "n3": 4} {
				n := f.nodes[address(id)]
				n.epoch, n.leader = epoch, n
			}
		})
		require.Equal(t, "n2", within(t, f.client("n1", "n2", "n3"), time.Millisecond).Node)
	})
}

func TestLeader_OnlyHints_IsNotFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n2", 4)
		f.set(func() { f.nodes[address("n2")].leader = nil }) // not established yet
		c := f.client("n1", "n2", "n3")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Leader(ctx)
		require.ErrorIs(t, err, ErrNoLeader)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "n1:7400: n1 reports n2 as the leader; n2:7400: n2 has no leader")

		f.lead("n2", 5)
		require.Equal(t, uint64(5), within(t, c, 60*time.Millisecond).Epoch)
	})
}

func TestLeader_OneAddressKnown_IsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n3", 1)
		require.Equal(t, "n3:7400", within(t, f.client("n1"), time.Millisecond).Address)
	})
}

func TestLeader_AdvertisedAddress_IsPreferred(t *testing.T) {
	t.Parallel()
	t.Run("preferred", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1")
			f.lead("n1", 1)
			f.set(func() {
				f.nodes["balancer:1"] = f.nodes[address("n1")]
				f.nodes["outside:1"] = f.nodes[address("n1")]
				f.nodes[address("n1")].clientAddress = "outside:1"
			})
			cfg := f.config()
			cfg.Coordinators = []string{"balancer:1"}
			require.Equal(t, "outside:1", within(t, f.clientWith(cfg), time.Millisecond).Address)
		})
	})
	t.Run("not resolved", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1", "n2")
			f.lead("n1", 1)
			f.set(func() { // addresses of published ports
				for inside, outside := range map[string]string{"n1": "localhost:1", "n2": "localhost:2"} {
					f.nodes[outside] = f.nodes[address(inside)]
					delete(f.nodes, address(inside))
				}
			})
			cfg := f.config()
			cfg.Coordinators = []string{"localhost:1", "localhost:2"}
			require.Equal(t, "localhost:1", within(t, f.clientWith(cfg), 100*time.Millisecond).Address)
		})
	})
}

func TestLeader_OtherNodeHangs_IsFoundInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n3", 1)
		f.set(func() { f.nodes[address("n1")].hangs = true })
		require.Equal(t, "n3", within(t, f.client("n1", "n2", "n3"), 60*time.Millisecond).Node)
	})
}

func TestLeader_Killed_IsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n1", 1)
		c := f.client("n1", "n2", "n3")
		require.Equal(t, "n1", within(t, c, time.Second).Node)
		synctest.Wait()
		f.kill("n1")
		pass(300 * time.Millisecond) // an election; the followers still name the dead leader
		f.lead("n2", 2)
		// The broken connection is enough: no ping interval of 500 ms and no ping timeout has passed.
		require.Equal(t, Leader{Cluster: "cluster-a", Node: "n2", Address: "n2:7400", Epoch: 2}, within(t, c, 60*time.Millisecond))
	})
}

func TestLeader_Hangs_IsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n1", 1)
		c := f.client("n1", "n2", "n3")
		within(t, c, time.Second)
		f.lead("n3", 2)
		f.set(func() { f.nodes[address("n1")].hangs = true })
		pass(550*time.Millisecond + 200*time.Millisecond + 55*time.Millisecond) // ping interval, its timeout, a round
		require.Equal(t, "n3", within(t, c, time.Millisecond).Node)
	})
}

func TestLeader_BecameFollower_IsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n1", 1)
		c := f.client("n1", "n2", "n3")
		within(t, c, time.Second)
		f.lead("n2", 2) // no node died
		pass(550 * time.Millisecond)
		require.Equal(t, "n2", within(t, c, time.Millisecond).Node)
	})
}

func TestLeader_Known_OnlyItIsPolled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n1", 1)
		within(t, f.client("n1", "n2", "n3"), time.Second)
		synctest.Wait()
		f.set(func() {
			for _, n := range f.nodes {
				n.pings = 0
			}
		})
		pass(10 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		require.InDelta(t, 20, f.nodes[address("n1")].pings, 2)
		require.Zero(t, f.nodes[address("n2")].pings)
		require.Zero(t, f.nodes[address("n3")].pings)
	})
}

func TestLeader_Unknown_NodesArePolledFast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		c := f.client("n1", "n2")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.Leader(ctx)
		require.ErrorIs(t, err, ErrNoLeader)
		f.mu.Lock()
		defer f.mu.Unlock()
		require.InDelta(t, 200, f.nodes[address("n1")].pings, 20)
		require.InDelta(t, 200, f.nodes[address("n2")].pings, 20)
	})
}

func TestLeader_LowerEpoch_IsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n2", 9)
		c := f.client("n1", "n2", "n3")
		within(t, c, time.Second)
		f.kill("n2")
		synctest.Wait()
		f.lead("n1", 8) // a former leader that was paused meanwhile
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.Leader(ctx)
		require.ErrorIs(t, err, ErrNoLeader)
		f.lead("n1", 9)
		require.Equal(t, uint64(9), within(t, c, 100*time.Millisecond).Epoch)
	})
}

func TestLeader_SameNodeWithLowerEpoch_IsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		f.lead("n1", 3)
		c := f.client("n1", "n2")
		within(t, c, time.Second)
		f.lead("n1", 2)
		pass(time.Second)
		require.ErrorIs(t, c.missing(), ErrNoLeader)
	})
}

func TestLeader_AnotherNodeAtItsAddress_IsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 3)
		c := f.client("n1")
		within(t, c, time.Second)
		f.set(func() { f.nodes[address("n1")].id = "n9" })
		pass(time.Second)
		require.Equal(t, "n9", within(t, c, 0).Node)
	})
}

func TestLeader_FollowersHaveHigherEpoch_IsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("", 5)
		f.set(func() { n := f.nodes[address("n1")]; n.epoch, n.leader = 4, n })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := f.client("n1", "n2", "n3").Leader(ctx)
		require.ErrorIs(t, err, ErrNoLeader)
	})
}

func TestLeaders_SameNodeWithNewEpoch_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		f.lead("n1", 1)
		c := f.client("n1", "n2")
		var seen []uint64
		for l := range c.Leaders(t.Context()) {
			if seen = append(seen, l.Epoch); len(seen) == 3 {
				break
			}
			f.lead("n1", l.Epoch+2)
		}
		require.Equal(t, []uint64{1, 3, 5}, seen)
	})
}

func TestLeader_ForeignCluster_IsRejected(t *testing.T) {
	t.Parallel()
	foreign := func(f *fleet, ids ...string) {
		f.set(func() {
			for _, id := range ids {
				f.nodes[address(id)].cluster = "cluster-b"
			}
		})
	}
	t.Run("rebuilt", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1", "n2")
			f.lead("n1", 1)
			c := f.client("n1", "n2")
			within(t, c, time.Second)
			f.lead("n1", 2)
			foreign(f, "n1", "n2")
			pass(time.Second)
			_, err := c.Leader(t.Context()) // at once
			require.Equal(t, &ForeignClusterError{Expected: "cluster-a", Actual: "cluster-b", Address: "n2:7400"}, anyAddress(err, "n2:7400"))
			require.Error(t, c.missing())
		})
	})
	t.Run("one of them", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1", "n2", "n3")
			f.lead("n1", 1)
			c := f.client("n1", "n2", "n3")
			within(t, c, time.Second)
			f.set(func() { n := f.nodes[address("n2")]; n.cluster, n.leader, n.epoch = "cluster-b", n, 99 })
			f.kill("n1")
			synctest.Wait()
			f.set(func() { n := f.nodes[address("n3")]; n.leader, n.epoch = n, 2 })
			require.Equal(t, Leader{Cluster: "cluster-a", Node: "n3", Address: "n3:7400", Epoch: 2}, within(t, c, time.Second))
		})
	})
	t.Run("nothing says which", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1", "n2")
			f.lead("n1", 1)
			foreign(f, "n2")
			_, err := f.client("n1", "n2").Leader(t.Context())
			require.IsType(t, &ForeignClusterError{}, err)
		})
	})
	t.Run("configured", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1", "n2")
			f.lead("n1", 1)
			cfg := f.config("n1", "n2")
			cfg.Cluster = "cluster-b"
			_, err := f.clientWith(cfg).Leader(t.Context())
			require.IsType(t, &ForeignClusterError{}, err)
		})
	})
}

// anyAddress makes errors comparable if they depend on the first node that responds.
func anyAddress(err error, address string) error {
	if e, ok := errors.AsType[*ForeignClusterError](err); ok {
		e.Address = address
	}
	return err
}

func TestLeader_RestartedAfterLongOutage_IsFoundSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		c := f.client("n1")
		f.lead("n1", 1)
		within(t, c, time.Second)
		f.kill("n1")
		pass(time.Minute) // long enough for any backoff to reach its maximum
		f.start("n1")
		f.lead("n1", 2)
		require.Equal(t, uint64(2), within(t, c, 700*time.Millisecond).Epoch)
	})
}

func TestClient_Closed_CallsFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		c := f.client("n1")
		done := make(chan error)
		go func() {
			_, err := c.Leader(t.Context())
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-done, ErrClosed)
		require.NoError(t, c.Close())
		_, err := c.Leader(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		_, err = c.Conn("n1:7400")
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestNewClient_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := NewClient(ClientConfig{Coordinators: []string{"n1"}, PingInterval: time.Microsecond, PingTimeout: -time.Second})
	require.ErrorContains(t, err, `"n1" is not host:port`)
	require.ErrorContains(t, err, "ping interval: 1µs is shorter than 1ms")
	require.ErrorContains(t, err, "ping timeout: -1s")
	_, err = NewClient(ClientConfig{})
	require.ErrorContains(t, err, "at least one address")
}
