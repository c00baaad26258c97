package mirror_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// eventually waits until a condition of a Writer and a real Redis holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, tick, what)
}

// shows waits until the set has exactly these members.
func shows(t *testing.T, client redis.UniversalClient, key string, want ...string) {
	t.Helper()
	slices.Sort(want)
	var last []string
	eventuallyOr := func() bool {
		last, _ = client.SMembers(context.Background(), key).Result()
		slices.Sort(last)
		return slices.Equal(last, want)
	}
	if !assertEventually(eventuallyOr) {
		require.Equal(t, want, last, key)
	}
}

func assertEventually(ok func() bool) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(tick) {
		if ok() {
			return true
		}
	}
	return false
}

// wide sets timeouts and a lease that a loaded machine can meet.
func wide(cfg mirror.Config) mirror.Config {
	cfg.Lease, cfg.Timeout = 5*time.Second, 10*time.Second
	return cfg
}

func TestWriter_RedisRestarts_WritesAgain(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	s.Stop()
	var book logbook
	w := start(t, mirror.Config{Client: newClient(t, s.URL()), Prefix: "p:", Logger: book.logger(), Audit: time.Second})
	w.Update(entries(mirror.Healthy, numbered(3)...), nil)
	eventually(t, "a line in the log", func() bool { return len(book.with(`msg="Redis connection failed"`)) >= 2 })
	require.Error(t, w.Status().Err)
	s.Restart()
	shows(t, s.Client(), "p:relayer:active", numbered(3)...)

	s.Kill()
	eventually(t, "the loss to be noticed", func() bool { return !w.Status().Connected })
	w.Update(slices.Concat(entries(mirror.Unhealthy, "oz-relayer-0"), entries(mirror.Healthy, "edge")), []string{"oz-relayer-2"})
	s.Restart() // with its data
	shows(t, s.Client(), "p:relayer:active", "oz-relayer-1", "edge")

	s.Stop()
	s.RestartEmpty()
	shows(t, s.Client(), "p:relayer:active", "oz-relayer-1", "edge")
	shows(t, s.Client(), "p:relayer:services", "oz-relayer-0", "oz-relayer-1", "edge")

	s.FlushAll()
	shows(t, s.Client(), "p:relayer:active", "oz-relayer-1", "edge")
	require.NoError(t, s.Client().ScriptFlush(t.Context()).Err())
	w.Update(entries(mirror.Healthy, "oz-relayer-0"), nil)
	shows(t, s.Client(), "p:relayer:active", "oz-relayer-0", "oz-relayer-1", "edge")
	require.NotEmpty(t, book.with("redis connection restored"))
	require.NoError(t, w.stop())
}

// A write remains in the socket of a hanging Redis beyond the lease, while its leader is deposed. It must be refused.
func TestFence_RedisHangsWithWriteInSocket_IsRefused(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	q := &quorum{leader: 1}
	var book logbook
	w := start(t, mirror.Config{Client: newClient(t, s.URL()), Confirm: q.confirms(1), Logger: book.logger()})
	w.Update(entries(mirror.Healthy, "a", "b"), nil)
	shows(t, s.Client(), active, "a", "b")
	for attempt := 0; ; attempt++ {
		require.Less(t, attempt, 10, "no write reached the socket")
		monitor := s.Monitor()
		s.Pause()
		w.Update(entries(mirror.Unhealthy, "a"), nil)
		// The first operation during the pause is the write, or a heartbeat or an audit just before it.
		eventually(t, "the hang to be noticed", func() bool { return !w.Status().Connected })
		q.lead(2)
		s.Resume()
		late := false
		for _, c := range monitor.Commands() {
			late = late || strings.HasPrefix(c.Args[0], "EVAL") && strings.Contains(strings.Join(c.Args, " "), `"op":"change"`)
			require.NotEqual(t, "SREM", c.Args[0])
		}
		require.Equal(t, []string{"a", "b"}, members(t, s.Client(), active))
		if late {
			break
		}
		w.Update(entries(mirror.Healthy, "a"), nil)
		q.lead(1)
		eventually(t, "the next try", func() bool { return w.Status().Err == nil })
	}
	eventually(t, "the deposition to be noticed", func() bool {
		err := w.Status().Err
		return err != nil && strings.Contains(err.Error(), errNotLeading.Error())
	})
	require.Equal(t, []string{"a", "b"}, members(t, s.Client(), active))
	q.lead(1)
	shows(t, s.Client(), active, "b")
}

func members(t *testing.T, client redis.UniversalClient, key string) []string {
	t.Helper()
	ids, err := client.SMembers(t.Context(), key).Result()
	require.NoError(t, err)
	slices.Sort(ids)
	return ids
}

// Redis fails over to a replica that had stopped replicating.
func TestWriter_RedisFailsOverToStaleCopy_RepairsIt(t *testing.T) {
	t.Parallel()
	s, replica := testredis.Start(t), testredis.Start(t)
	var book logbook
	w := start(t, mirror.Config{Client: newClient(t, s.URL()), Logger: book.logger()})
	w.Update(entries(mirror.Healthy, "a", "b"), nil)
	shows(t, s.Client(), active, "a", "b")
	replica.ReplicaOf(s)
	replica.Promote()
	w.Update(slices.Concat(entries(mirror.Unhealthy, "a"), entries(mirror.Healthy, "c")), nil)
	shows(t, s.Client(), active, "b", "c")

	s.ReplicaOf(replica) // the same address, like behind a service name, now with the old data
	require.Equal(t, []string{"a", "b"}, members(t, s.Client(), active))
	eventually(t, "the refusal to be reported", func() bool {
		err := w.Status().Err
		return err != nil && strings.Contains(err.Error(), "READONLY")
	})
	s.Promote()
	shows(t, s.Client(), active, "b", "c")
	eventually(t, "the rewrite to be logged", func() bool { return len(book.with("redis lost the mirror")) > 0 })
}

func TestWriter_RedisReturnsError_ReportsAndRecovers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server []string
		begin  func(t *testing.T, s *testredis.Server)
		code   string
		end    func(t *testing.T, s *testredis.Server)
	}{
		"OOM": {
			begin: func(t *testing.T, s *testredis.Server) {
				require.NoError(t, s.Client().ConfigSet(t.Context(), "maxmemory", "1").Err())
			},
			code: "OOM",
			end: func(t *testing.T, s *testredis.Server) {
				require.NoError(t, s.Client().ConfigSet(t.Context(), "maxmemory", "0").Err())
			},
		},
		"NOAUTH": {
			server: []string{"--requirepass", "secret"},
			begin:  func(*testing.T, *testredis.Server) {},
			code:   "NOAUTH",
			end: func(t *testing.T, s *testredis.Server) {
				require.NoError(t, s.Client().ConfigSet(t.Context(), "requirepass", "").Err())
			},
		},
		"NOREPLICAS": {
			begin: func(t *testing.T, s *testredis.Server) {
				require.NoError(t, s.Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			},
			code: "NOREPLICAS",
			end: func(t *testing.T, s *testredis.Server) {
				require.NoError(t, s.Client().ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t, test.server...)
			var book logbook
			test.begin(t, s)
			w := start(t, mirror.Config{Client: newClient(t, s.URL()+patient), Timeout: time.Minute, Logger: book.logger()})
			w.Update(entries(mirror.Healthy, "a"), nil)
			eventually(t, "the reason", func() bool {
				err := w.Status().Err
				return err != nil && strings.Contains(err.Error(), test.code)
			})
			require.Empty(t, members(t, s.Client(), active))
			require.NotEmpty(t, book.with("redis refused the mirror"))
			require.Empty(t, book.with("Redis connection failed"))
			test.end(t, s)
			shows(t, s.Client(), active, "a")
		})
	}
}

func TestWriter_RedisClusterWithoutHashTag_ReportsTheReason(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--cluster-enabled", "yes")
	require.NoError(t, s.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	eventually(t, "the cluster", func() bool { return s.Client().Set(t.Context(), "ready", "1", 0).Err() == nil })
	without := start(t, mirror.Config{Client: newClient(t, "redis+cluster://"+s.Addr())})
	eventually(t, "the reason", func() bool {
		err := without.Status().Err
		return err != nil && strings.Contains(err.Error(), "CROSSSLOT")
	})
	with := start(t, mirror.Config{Client: newClient(t, "redis+cluster://"+s.Addr()), Prefix: "{rollcall}:"})
	with.Update(entries(mirror.Healthy, "a"), nil)
	shows(t, s.Client(), "{rollcall}:relayer:active", "a")
}

// During several leader changes, deposed leaders continue to write their view. Redis's own command log must not
// contain a removal of a healthy service, and a polling reader must always find all of them.
func TestWriter_DeposedLeadersWrite_HealthyServicesStay(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	healthy := numbered(100)
	first := start(t, wide(mirror.Config{Client: newClient(t, s.URL()+patient), Epoch: 1}))
	first.Update(slices.Concat(entries(mirror.Healthy, healthy...), entries(mirror.Healthy, "falls")), nil)
	shows(t, s.Client(), active, append(slices.Clone(healthy), "falls")...)

	monitor := s.Monitor()
	var missing, polls atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		for ctx.Err() == nil {
			listed, err := s.Client().SMembers(context.WithoutCancel(ctx), active).Result()
			if err != nil || len(listed) < len(healthy) {
				missing.Add(1)
			}
			polls.Add(1)
		}
	}()
	deposed := []*running{first}
	for epoch := uint64(2); epoch <= 6; epoch++ {
		next := start(t, wide(mirror.Config{Client: newClient(t, s.URL()+patient), Epoch: epoch}))
		<-next.FirstClaim()
		for _, old := range deposed {
			old.Update(entries(mirror.Unhealthy, healthy...), nil) // its own network is cut
		}
		next.Update(slices.Concat(entries(mirror.Unknown, healthy...), entries(mirror.Unhealthy, "falls")), nil)
		next.Update(entries(mirror.Healthy, healthy...), nil)
		eventually(t, "the new leader's write", func() bool {
			epochs, _ := s.Client().HGet(ctx, "relayer:status:7", "epoch").Result()
			return epochs == fmt.Sprint(epoch)
		})
		deposed = append(deposed, next)
	}
	for _, old := range deposed[:5] {
		require.Error(t, old.wait())
	}
	shows(t, s.Client(), active, healthy...)
	cancel()
	<-polled
	require.Zero(t, missing.Load())
	require.Positive(t, polls.Load())

	removed := map[string]int{}
	for _, c := range monitor.Commands() {
		switch c.Args[0] {
		case "SREM":
			if c.Args[1] == active {
				for _, id := range c.Args[2:] {
					removed[id]++
				}
			}
		case "DEL", "UNLINK", "RENAME", "SMOVE", "SPOP", "FLUSHALL", "FLUSHDB", "SINTERSTORE", "SDIFFSTORE", "EXPIRE":
			require.NotContains(t, c.Args, active)
		}
	}
	require.Equal(t, map[string]int{"falls": 1}, removed)
}

func TestWriter_TenThousandServices_NewLeaderRemovesNone(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ids := numbered(10_000)
	monitor := s.Monitor()
	first := start(t, wide(mirror.Config{Client: newClient(t, s.URL()+patient), Epoch: 1}))
	begun := time.Now()
	first.Update(entries(mirror.Healthy, ids...), nil)
	shows(t, s.Client(), active, ids...)
	t.Logf("10,000 listed after %v", time.Since(begun))
	eventually(t, "the hashes", func() bool {
		n, _ := s.Client().SCard(t.Context(), "relayer:services").Result()
		return n == 10_000
	})
	t.Logf("their hashes after %v", time.Since(begun))
	require.NoError(t, first.stop())
	slow, err := s.Client().SlowLogGet(t.Context(), 100).Result()
	require.NoError(t, err)
	for _, entry := range slow {
		t.Logf("slow: %v, %.80s", entry.Duration, entry.Args)
	}

	second := start(t, wide(mirror.Config{Client: newClient(t, s.URL()+patient), Epoch: 2}))
	second.Update(entries(mirror.Unknown, ids...), nil)
	eventually(t, "the new leader's claim", func() bool { return second.ActiveOf("relayer") == 10_000 })
	second.Update(entries(mirror.Healthy, ids...), nil)
	eventually(t, "the new leader's hashes", func() bool {
		epoch, _ := s.Client().HGet(t.Context(), "relayer:status:9999", "epoch").Result()
		return epoch == "2"
	})
	require.Equal(t, ids, members(t, s.Client(), active))
	scripts := 0
	for _, c := range monitor.Commands() {
		require.NotEqual(t, "SREM", c.Args[0])
		if strings.HasPrefix(c.Args[0], "EVAL") && strings.Contains(strings.Join(c.Args, " "), `"op":"change"`) && len(c.Args) > 20_000 {
			scripts++
		}
	}
	require.LessOrEqual(t, scripts, 2, "one script, sent again in full if the server did not have it")
}

func TestTakeOver_OldClusterRuns_NewClusterClaims(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	client := newClient(t, s.URL()+patient)
	ctx := t.Context()
	m, err := mirror.Inspect(ctx, client, "p:")
	require.NoError(t, err)
	require.Zero(t, m)

	// The old cluster is still running.
	old := start(t, wide(mirror.Config{Client: client, Prefix: "p:", Cluster: "old", Epoch: 40, Interval: 5 * time.Second}))
	old.Update(slices.Concat(entries(mirror.Healthy, "a"), []*mirror.Entry{{ID: "w", Kind: "worker", URL: "u", Status: mirror.Healthy}}), nil)
	shows(t, client, "p:worker:active", "w")
	fresh := start(t, wide(mirror.Config{Client: client, Prefix: "p:", Cluster: "new", Epoch: 2}))
	require.ErrorContains(t, fresh.wait(), "rollcall mirror take-over")

	require.Error(t, mirror.TakeOver(ctx, client, "p:", ""))
	require.NoError(t, mirror.TakeOver(ctx, client, "p:", "new"))
	m, err = mirror.Inspect(ctx, client, "p:")
	require.NoError(t, err)
	require.Equal(t, "new", m.Cluster)
	require.Zero(t, m.Token)
	require.Equal(t, []string{"relayer", "worker"}, m.Kinds)
	require.Equal(t, []string{"a"}, members(t, client, "p:relayer:active"))
	require.ErrorContains(t, old.wait(), "mirrors cluster new")

	fresh = start(t, wide(mirror.Config{Client: client, Prefix: "p:", Cluster: "new", Epoch: 2}))
	fresh.Update(entries(mirror.Unknown, "a"), nil)
	shows(t, client, "p:worker:active")
	require.Equal(t, []string{"a"}, members(t, client, "p:relayer:active"))
	require.NoError(t, fresh.stop())

	// A mirror of the same cluster must be left unchanged, because its epoch fences older leaders.
	require.NoError(t, mirror.TakeOver(ctx, client, "p:", "new"))
	m, err = mirror.Inspect(ctx, client, "p:")
	require.NoError(t, err)
	require.EqualValues(t, 2, m.Token.Epoch)
	require.Equal(t, "node-2", m.Leader)
	require.Equal(t, 10*time.Second, m.Interval)
	require.WithinDuration(t, time.Now(), m.UpdatedAt, time.Minute)

	// The exception is an epoch that no leader can reach.
	lower := start(t, wide(mirror.Config{Client: client, Prefix: "p:", Cluster: "new", Epoch: 1}))
	higher := new(mirror.HigherEpochError)
	require.ErrorAs(t, lower.wait(), &higher)
	require.NoError(t, mirror.ForceTakeOver(ctx, client, "p:", "new"))
	m, err = mirror.Inspect(ctx, client, "p:")
	require.NoError(t, err)
	require.Zero(t, m.Token)
	require.Equal(t, []string{"a"}, members(t, client, "p:relayer:active"))
	lower = start(t, wide(mirror.Config{Client: client, Prefix: "p:", Cluster: "new", Epoch: 1}))
	lower.Update(entries(mirror.Healthy, "a", "b"), nil)
	shows(t, client, "p:relayer:active", "a", "b")
	require.NoError(t, lower.stop())
	require.NoError(t, s.Client().Set(ctx, "q:relayer:meta", "oops", 0).Err())
	require.NoError(t, mirror.TakeOver(ctx, client, "q:", "new"))
	m, err = mirror.Inspect(ctx, client, "q:")
	require.NoError(t, err)
	require.Equal(t, "new", m.Cluster)
}
