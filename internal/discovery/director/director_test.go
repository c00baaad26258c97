package director

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestDirector_LargeFleetRegisters_LogsFewLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(1000)...)
		b.start()
		pause(900 * time.Millisecond)
		require.Len(t, b.active(), 1000)
		require.Len(t, b.logs.relayers("relayer found healthy"), 10)
		require.Empty(t, b.logs.with("more relayers found healthy"), "not before the second is over")
		pause(200 * time.Millisecond)
		more := b.logs.with("more relayers found healthy")
		require.Len(t, more, 1)
		require.Equal(t, 990.0, more[0]["count"])

		b.dir.register(entry("late", "relayer", url("late"), nil))
		pause(time.Second)
		require.Contains(t, b.logs.relayers("relayer found healthy"), "late")
	})
}

func TestRecovery_ServiceDoesNotAnswer_IsLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(5)...)
		b.dir.register(entry("watcher", "escrow", url("watcher"), nil))
		b.net.set(hangs, url("a-01"))
		b.net.set(refuses, url("a-02"))
		b.start()
		pause(100 * time.Millisecond)
		require.Equal(t, "recovering", b.directorState(), "one has not answered yet")
		require.Equal(t, []string{"a-00", "a-03", "a-04"}, b.active(), "the director does not wait for it")
		pause(time.Second)
		require.Equal(t, "running", b.directorState())
		require.Equal(t, []string{"a-00", "a-03", "a-04"}, b.active())
		require.Equal(t, []string{"watcher"}, b.redis.Members("escrow:active"))
		require.Equal(t, []string{"a-01", "a-02"}, b.logs.relayers("relayer found unhealthy"))
		require.Empty(t, b.logs.with("relayer removed"), "it was not there before")
		require.NoError(t, b.stop())
	})
}

func TestDirector_EmptyDirectory_IsRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{}).start()
		pause(0)
		require.Equal(t, "running", b.directorState())
		b.redis.SAdd("relayer:active", "ghost")
		pause(time.Minute)
		require.Empty(t, b.active())
	})
}

func TestDirector_LateRegistration_EndsTheStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{MinLive: map[string]int{"relayer": 2, "escrow": 1}}).start()
		pause(time.Second)
		require.Equal(t, "stalled", b.directorState())
		stalls := b.Status().Stalls
		require.Len(t, stalls, 2)
		require.Equal(t, "escrow", stalls[0].Kind)
		require.EqualValues(t, 1, stalls[0].Needed)
		require.Equal(t, "relayer", stalls[1].Kind)
		require.EqualValues(t, 2, stalls[1].Needed)
		require.Zero(t, stalls[1].Available)

		b.dir.register(entry("watcher", "escrow", url("watcher"), nil), relayer("a"))
		pause(0)
		require.Equal(t, "stalled", b.directorState())
		require.EqualValues(t, 1, b.Status().Stalls[0].Available)
		require.Equal(t, []string{"a"}, b.active(), "a stall removes no service from the list")

		b.net.set(refuses, url("b"))
		b.dir.register(relayer("b"))
		pause(time.Second)
		require.Equal(t, "stalled", b.directorState(), "it is there, but not alive")
		b.net.set(nil, url("b"))
		pause(10 * time.Second)
		require.Equal(t, "running", b.directorState())
		require.Empty(t, b.Status().Stalls)

		b.net.set(refuses, url("a"))
		pause(10 * time.Second)
		require.Equal(t, "stalled", b.directorState(), "falling below is stalled again")
		require.Equal(t, []string{"b"}, b.active())
		b.net.set(nil, url("a"))
		pause(10 * time.Second)
		require.Equal(t, "running", b.directorState())
		require.EqualValues(t, 3, value(t, b.metrics.stalls), "three times a kind fell below")
	})
}

func TestDirector_Deregistration_RemovesTheServiceAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(3)...)
		b.start()
		pause(0)
		b.dir.deregister("a-01")
		pause(0)
		require.Equal(t, []string{"a-00", "a-02"}, b.active(), "at once")
		require.Nil(t, b.of("a-01"))
		lines := b.logs.with("relayer removed")
		require.Len(t, lines, 1)
		require.Equal(t, "deregistered", lines[0]["reason"])
		require.Equal(t, "a-01", lines[0]["service"])
		n := b.net.checked(url("a-01"))
		pause(time.Minute)
		require.Equal(t, n, b.net.checked(url("a-01")), "it is no longer checked")
		require.Empty(t, b.redis.Hash("relayer:status:svc:a-01"))
		require.EqualValues(t, 1, value(t, b.metrics.deregistered))

		b.net.set(refuses, url("a-02"))
		pause(10 * time.Second)
		b.dir.deregister("a-02")
		pause(0)
		require.Len(t, b.logs.with("relayer removed"), 2, "it was removed once, when it failed")
	})
}

func TestDirector_ServiceFailsAndRecovers_IsRemovedAndRestored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(3)...)
		b.start()
		pause(0)
		b.net.set(refuses, url("a-01"))
		pause(10 * time.Second)
		require.Equal(t, []string{"a-00", "a-02"}, b.active())
		lines := b.logs.with("relayer removed")
		require.Len(t, lines, 1)
		require.Equal(t, "WARN", lines[0]["level"])
		require.Equal(t, "a-01", lines[0]["service"])
		require.Equal(t, "connection refused", lines[0]["reason"])
		require.NotEmpty(t, lines[0]["at"])
		require.NotEmpty(t, lines[0]["time"])
		s := b.of("a-01")
		require.Equal(t, rollcallv1.Verdict_VERDICT_DOWN, s.Verdict)
		require.False(t, s.Active)
		require.EqualValues(t, 1, s.Failures)
		require.Equal(t, "connection refused", s.Reason)
		pause(time.Second)
		require.Equal(t, "unhealthy", b.redis.Hash("relayer:status:svc:a-01")["status"])

		pause(10 * time.Second)
		require.Len(t, b.logs.with("relayer removed"), 1, "it is removed once")
		b.net.set(nil, url("a-01"))
		pause(10 * time.Second)
		require.Equal(t, []string{"a-00", "a-01", "a-02"}, b.active())
		lines = b.logs.with("relayer recovered")
		require.Len(t, lines, 1)
		require.Equal(t, "a-01", lines[0]["service"])
		require.NotEmpty(t, lines[0]["reason"])
		require.EqualValues(t, 1, value(t, b.metrics.failed))
		require.EqualValues(t, 1, value(t, b.metrics.recoveries))
		b.neverRemoved("a-00", "a-02")
	})
}

func TestDirector_LeaderChange_InheritsTheListedServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := setup(t, Config{})
		old.dir.register(relayers(6)...)
		old.net.set(refuses, url("a-05"))
		old.start()
		pause(time.Second)
		require.NoError(t, old.stop())
		require.Equal(t, []string{"a-00", "a-01", "a-02", "a-03", "a-04"}, old.active())

		// Without a leader, one service is deregistered, one dies, one returns, and one moves.
		b := setup(t, Config{Epoch: 2, Mirror: mirror.Config{Store: old.redis}})
		b.redis = old.redis
		b.dir.register(relayers(6)...)
		b.dir.deregister("a-01")
		b.dir.register(entry("a-03", "relayer", "http://elsewhere:3000", nil))
		b.net.set(slow(300*time.Millisecond, nil), "*")
		b.net.set(hangs, url("a-02"))
		b.start()
		pause(100 * time.Millisecond)
		require.Equal(t, []string{"a-00", "a-02", "a-03", "a-04"}, b.active(),
			"only who is not in the directory is gone before a check")
		for _, s := range b.Status().Services {
			require.Equal(t, rollcallv1.Verdict_VERDICT_UNKNOWN, s.Verdict)
			require.Equal(t, s.Id != "a-05", s.Active)
		}
		require.Equal(t, "healthy", b.redis.Hash("relayer:status:svc:a-00")["status"], "inherited")
		pause(300 * time.Millisecond)
		require.Equal(t, []string{"a-00", "a-02", "a-03", "a-04", "a-05"}, b.active())
		pause(time.Second)
		require.Equal(t, []string{"a-00", "a-03", "a-04", "a-05"}, b.active())
		b.neverRemoved("a-00", "a-03", "a-04")
		require.Equal(t, []string{"a-01", "a-02"}, b.logs.relayers("relayer removed"))
		require.Equal(t, []string{"a-05"}, b.logs.relayers("relayer found healthy"))

		var claim int
		for i, w := range b.redis.Log() {
			if w.Token.Epoch == 2 {
				claim = i
				break
			}
		}
		require.Equal(t, mirror.OpClaim, b.redis.Log()[claim].Op)
	})
}

func TestDirector_ProbesNothingBeforeTheClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(3)...)
		b.redis.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
			if op == mirror.OpClaim {
				<-time.After(100 * time.Millisecond)
			}
			do()
			return nil
		})
		b.start()
		pause(90 * time.Millisecond)
		require.Zero(t, b.net.checked(url("a-00")))
		pause(20 * time.Millisecond)
		require.NotZero(t, b.net.checked(url("a-00")))
	})
}

func TestDirector_RedisIsAway_ChecksContinue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(3)...)
		b.redis.SetHook(func(context.Context, mirror.Op, func()) error { return errors.New("connection refused") })
		b.start()
		pause(20 * time.Second)
		require.Equal(t, "running", b.directorState())
		require.Equal(t, 3, b.net.checked(url("a-00")))
		m := b.Status().Mirror
		require.False(t, m.Connected)
		require.Contains(t, m.Error, "connection refused")
		require.Nil(t, m.LastWrite)
		b.net.set(refuses, url("a-01"))
		pause(10 * time.Second)
		b.redis.SetHook(nil)
		pause(10 * time.Second)
		require.Equal(t, []string{"a-00", "a-02"}, b.active())
		m = b.Status().Mirror
		require.True(t, m.Connected)
		require.Empty(t, m.Error)
		require.NotZero(t, m.Seq)
		require.NotNil(t, m.LastWrite)
	})
}

func TestDirector_Deposed_RemovesNoService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(3)...)
		b.start()
		pause(10 * time.Second)
		b.deposed.Store(true)
		b.net.set(refuses, "*")
		pause(30 * time.Second)
		require.Len(t, b.active(), 3)
		require.Empty(t, b.logs.with("relayer removed"), "no removal is logged")
		require.Zero(t, value(t, b.metrics.failed))
	})
}

// The leader changes while Redis is away, so its content is unknown. The status must show the new leader's check
// results. When Redis returns, listed services that are dead must be removed and reported.
func TestDirector_LeaderChangeWhileRedisIsAway_RemovesDeadServicesLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := setup(t, Config{})
		old.dir.register(relayers(4)...)
		old.start()
		pause(time.Second)
		old.redis.SetHook(func(context.Context, mirror.Op, func()) error { return errors.New("connection refused") })
		require.NoError(t, old.stop())

		b := setup(t, Config{Epoch: 2, Mirror: mirror.Config{Store: old.redis}})
		b.redis = old.redis
		b.dir.register(relayers(4)...)
		b.dir.deregister("a-03")
		b.net.set(refuses, url("a-01"))
		b.net.set(slow(300*time.Millisecond, nil), url("a-02"))
		b.start()
		active := func() (ids []string) {
			for _, s := range b.Status().Services {
				if s.Active {
					ids = append(ids, s.Id)
				}
			}
			return ids
		}
		pause(100 * time.Millisecond)
		require.Equal(t, []string{"a-00"}, active())
		require.Contains(t, b.Status().Notes[0], "redis has not answered this leader yet")
		pause(10 * time.Second)
		require.Equal(t, []string{"a-00", "a-02"}, active())
		require.Equal(t, []string{"a-00", "a-01", "a-02", "a-03"}, b.active())
		require.Empty(t, b.logs.with("relayer removed"), "it has not been")
		require.Equal(t, []string{"a-01"}, b.logs.relayers("relayer found unhealthy"))

		b.redis.SetHook(nil)
		pause(10 * time.Second)
		require.Equal(t, []string{"a-00", "a-02"}, b.active())
		require.Equal(t, []string{"a-00", "a-02"}, active())
		require.Empty(t, b.Status().Notes)
		require.Equal(t, []string{"a-01", "a-03"}, b.logs.relayers("relayer removed"))
		require.EqualValues(t, 1, value(t, b.metrics.failed))
		require.EqualValues(t, 1, value(t, b.metrics.deregistered))
		b.neverRemoved("a-00", "a-02")
	})
}

func TestDirector_ServiceChanges_OnlyNewURLDropsTheVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayer("a"), relayer("b"))
		b.net.set(refuses, url("b"))
		b.start()
		pause(time.Second)
		writes := len(b.redis.Log())
		n := b.net.checked(url("a"))
		labeled := entry("a", "relayer", url("a"), map[string]string{"zone": "x"})
		b.dir.register(labeled)
		pause(0)
		require.Equal(t, rollcallv1.Verdict_VERDICT_UP, b.of("a").Verdict)
		require.Equal(t, n, b.net.checked(url("a")))
		require.Len(t, b.redis.Log(), writes, "readers of Redis see no labels")

		// A service at a new URL is unknown: a listed one must stay listed until checked, another must not be added
		// before.
		b.net.set(slow(300*time.Millisecond, errors.New("status 503")), "http://new-a")
		b.net.set(slow(300*time.Millisecond, nil), "http://new-b")
		b.dir.register(entry("a", "relayer", "http://new-a", nil), entry("b", "relayer", "http://new-b", nil))
		pause(100 * time.Millisecond)
		require.Equal(t, []string{"a"}, b.active())
		for _, id := range []string{"a", "b"} {
			s := b.of(id)
			require.Equal(t, rollcallv1.Verdict_VERDICT_UNKNOWN, s.Verdict)
			require.Nil(t, s.LastCheck)
			require.Equal(t, "http://new-"+id, s.Url)
		}
		pause(300 * time.Millisecond)
		require.Equal(t, []string{"b"}, b.active())
		require.Equal(t, "running", b.directorState(), "a registration does not begin a recovery")
	})
}

func TestDirector_KindChanges_MovesToTheOtherSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{MinLive: map[string]int{"relayer": 1}})
		b.dir.register(relayer("a"))
		b.start()
		pause(time.Second)
		b.dir.register(entry("a", "escrow", url("a"), nil))
		pause(0)
		require.Empty(t, b.active())
		require.Equal(t, []string{"a"}, b.redis.Members("escrow:active"))
		require.Equal(t, "stalled", b.directorState())
	})
}

func TestDirector_CommandTouchesServiceTwice_LastOperationWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayer("a"), relayer("b"), relayer("d"))
		b.start()
		pause(time.Second)
		n := b.net.checked(url("a"))
		b.net.set(refuses, url("a"))
		b.net.set(slow(100*time.Millisecond, nil), url("d"))
		f := b.dir.fence()
		b.dir.do(deregisterOp(f, "a", "d"), registerOp(f, relayer("a"), relayer("d")),
			registerOp(f, relayer("c")), deregisterOp(f, "b", "c"))
		pause(0)
		require.Equal(t, n+1, b.net.checked(url("a")), "a new service is checked at once")
		require.Equal(t, []string{"d"}, b.active(), "a service that returns at once stays listed")
		require.Len(t, b.Status().Services, 2)
		pause(time.Minute)
		require.Equal(t, []string{"d"}, b.active())
		require.Zero(t, b.net.checked(url("c")))
	})
}

func TestDirector_DirectoryRestored_RecoversWithoutRemovals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(4)...)
		b.start()
		pause(time.Second)
		other := newDirectory(1)
		other.register(relayer("a-00"), entry("a-01", "relayer", "http://moved", nil), relayer("new"))
		b.net.set(slow(200*time.Millisecond, nil), "*")
		require.NoError(t, b.dir.Restore(other.snapshot()))
		pause(0)
		require.Equal(t, []string{"a-00", "a-01"}, b.active())
		require.Equal(t, "recovering", b.directorState())
		require.Equal(t, rollcallv1.Verdict_VERDICT_UP, b.of("a-00").Verdict)
		pause(300 * time.Millisecond)
		require.Equal(t, []string{"a-00", "a-01", "new"}, b.active())
		require.Equal(t, "running", b.directorState())
		b.dir.register(relayer("later"))
		pause(300 * time.Millisecond)
		require.Contains(t, b.active(), "later", "the new feed is followed")
	})
}

func TestRun_HigherEpochInRedis_Ends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.redis.HSet("relayer:meta", "cluster", "c-1", "epoch", "41", "seq", "0", "leader", "n-9")
		higher, err := b.Run(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 41, higher)
	})
}

func TestRun_RedisOfAnotherCluster_IsRefusedUntilTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(2)...)
		b.redis.HSet("relayer:meta", "cluster", "theirs", "epoch", "7", "seq", "1", "leader", "x")
		b.redis.SAdd("relayer:active", "theirs-1")
		b.start()
		pause(40 * time.Second)
		require.Equal(t, []string{"theirs-1"}, b.active(), "nothing of theirs is touched")
		require.Empty(t, b.redis.Log())
		require.Equal(t, "running", b.directorState(), "checks continue")
		require.GreaterOrEqual(t, b.net.checked(url("a-00")), 4)
		m := b.Status().Mirror
		require.False(t, m.Connected)
		require.Contains(t, m.Error, "take-over")
		lines := b.logs.with("mirror refused: redis belongs to another cluster")
		require.NotEmpty(t, lines)
		require.Equal(t, "ERROR", lines[0]["level"])
		require.Equal(t, "theirs", lines[0]["foreign"])
		// The same must hold between two attempts.
		b.redis.SetHook(func(_ context.Context, _ mirror.Op, do func()) error {
			<-time.After(100 * time.Millisecond)
			do()
			return nil
		})
		for range 500 {
			pause(30 * time.Millisecond)
			require.Contains(t, b.Status().Mirror.Error, "take-over")
		}
		b.redis.SetHook(nil)

		b.redis.HSet("relayer:meta", "cluster", "c-1", "epoch", "0", "seq", "0") // taken over
		pause(20 * time.Second)
		require.Equal(t, []string{"a-00", "a-01"}, b.active())
		for _, w := range b.redis.Log() {
			if w.Op == mirror.OpChange {
				require.Len(t, w.Sets[0].Add, 2, "the new writer received all services")
				break
			}
		}
		require.True(t, b.Status().Mirror.Connected)
		require.Empty(t, b.Status().Mirror.Error)
	})
}

func TestRun_Stopped_FinishesRunningChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finished := make(chan struct{}, 1)
		b := setup(t, Config{})
		b.dir.register(relayer("a"))
		b.net.set(func(ctx context.Context) error {
			defer func() { finished <- struct{}{} }()
			return slow(400*time.Millisecond, nil)(ctx)
		}, "*")
		b.start()
		pause(100 * time.Millisecond)
		began := time.Now()
		require.NoError(t, b.stop())
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		<-finished
	})
}

// A deposed leader, or one that finds a higher epoch, must not wait for hanging checks. A stopped leader must wait a
// second.
func TestRun_ChecksHang_EndsInTime(t *testing.T) {
	t.Parallel()
	hanging := func(t *testing.T, ended <-chan struct{}) *bench {
		b := setup(t, Config{Ended: ended, Health: health.Config{Timeout: 9 * time.Second}})
		b.dir.register(relayers(3)...)
		b.net.set(hangs, "*")
		b.start()
		pause(100 * time.Millisecond)
		require.Equal(t, 1, b.net.checked(url("a-00")))
		return b
	}
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		b := hanging(t, ended)
		began := time.Now()
		close(ended)
		require.NoError(t, b.stop())
		require.Zero(t, time.Since(began))
		require.Empty(t, b.logs.with("health check failed"))
	})
	synctest.Test(t, func(t *testing.T) {
		b := hanging(t, make(chan struct{}))
		began := time.Now()
		require.NoError(t, b.stop())
		require.Equal(t, time.Second, time.Since(began))
	})
	synctest.Test(t, func(t *testing.T) {
		b := hanging(t, nil)
		b.redis.HSet("relayer:meta", "epoch", "7")
		began := time.Now()
		require.NoError(t, b.wait())
		require.LessOrEqual(t, time.Since(began), time.Second, "a heartbeat's time")
	})
}

func TestStatus_RunningDirector_ListsItsServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{Health: health.Config{Interval: 5 * time.Second}})
		require.Equal(t, rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING, b.Status().Director, "before Run too")
		b.dir.register(relayers(2)...)
		b.net.set(slow(120*time.Millisecond, nil), "*")
		b.start()
		pause(time.Second)
		got := b.Status()
		require.Equal(t, "c-1", got.Cluster)
		require.Equal(t, "n-1", got.Leader)
		require.EqualValues(t, 1, got.Epoch)
		require.Equal(t, 5*time.Second, got.Interval.AsDuration())
		for _, w := range b.redis.Log() {
			require.Equal(t, 5*time.Second, w.Interval, "readers of the mirror see the checks' interval")
		}
		require.Empty(t, got.Notes)
		require.Len(t, got.Services, 2)
		for i, s := range got.Services {
			require.Equal(t, fmt.Sprintf("a-%02d", i), s.Id)
			require.Equal(t, "relayer", s.Kind)
			require.Equal(t, url(s.Id), s.Url)
			require.Equal(t, rollcallv1.Verdict_VERDICT_UP, s.Verdict)
			require.True(t, s.Active)
			require.Equal(t, 120*time.Millisecond, s.Latency.AsDuration())
			require.False(t, s.LastCheck.AsTime().IsZero())
			require.Zero(t, s.Failures)
			require.Empty(t, s.Reason)
		}
	})
}

func TestStatus_Service_HasItsLastCheck(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]*rollcallv1.ServiceStatus{
		"unknown": {Verdict: rollcallv1.Verdict_VERDICT_UNKNOWN},
		"up": {
			Verdict: rollcallv1.Verdict_VERDICT_UP, Active: true,
			LastCheck: &timestamppb.Timestamp{Seconds: 1 << 33, Nanos: 999_999_999}, Latency: &durationpb.Duration{Nanos: 1},
		},
		"down": {
			Verdict:   rollcallv1.Verdict_VERDICT_DOWN,
			LastCheck: &timestamppb.Timestamp{Seconds: 1 << 33}, Latency: &durationpb.Duration{Seconds: 3600, Nanos: 5000},
			Failures: 1 << 20, Reason: strings.Repeat("é", 100),
		},
		"checked in no time": {
			Verdict: rollcallv1.Verdict_VERDICT_UP, LastCheck: &timestamppb.Timestamp{Nanos: 1}, Latency: &durationpb.Duration{},
		},
	} {
		want.Id, want.Kind, want.Url = "a-00", "relayer", url("a-00")
		s := &service{entry: &fsm.Entry{ID: want.Id, Kind: want.Kind}, state: &mirror.Entry{
			URL: want.Url, Status: map[string]mirror.Status{"unknown": mirror.Unknown, "down": mirror.Unhealthy}[name],
			Latency: want.Latency.AsDuration(), Failures: int(want.Failures), Reason: want.Reason,
		}}
		if want.Verdict == rollcallv1.Verdict_VERDICT_UP {
			s.state.Status = mirror.Healthy
		}
		if want.LastCheck != nil {
			s.state.LastCheck = want.LastCheck.AsTime()
		}
		require.True(t, proto.Equal(want, new(serviceStatus).fill(s, want.Active)), name)
	}
}

// Any text of a Redis error must be encodable, or the status could not be reported.
func TestStatus_RedisErrorIsNotUTF8_CanBeEncoded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.redis.SetHook(func(context.Context, mirror.Op, func()) error { return errors.New("\xff") })
		b.start()
		pause(time.Second)
		s := b.Status()
		require.Contains(t, s.Mirror.Error, "?")
		_, err := proto.Marshal(s)
		require.NoError(t, err)
	})
}

func TestNew_InvalidConfig_NamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := New(Config{MassFailureThreshold: 1.5, MassFailureHold: -1, MinLive: map[string]int{"Relayer": 1, "escrow": -1}})
	for _, part := range []string{"no directory", "threshold 1.5", "hold -1ns", `"Relayer"`, "escrow, -1"} {
		require.ErrorContains(t, err, part)
	}
	_, err = New(Config{Directory: fsm.New(), Health: health.Config{Interval: time.Hour}})
	require.ErrorContains(t, err, "interval 1h")
	_, err = New(Config{Directory: fsm.New(), Mirror: mirror.Config{Store: mirrortest.NewMemory()}})
	require.ErrorContains(t, err, "no cluster id")
}

// Under registrations, moves, deregistrations, failures and recoveries during a recovery, the result must match the
// directory and the network. A service that is always healthy and registered must never be removed.
func TestRecovery_ChangesMeanwhile_MatchDirectoryAndNetwork(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { changesDuringRecovery(t, seed) })
		})
	}
}

func changesDuringRecovery(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	ms := func(n int) time.Duration { return time.Duration(rnd.IntN(n)) * time.Millisecond }
	b := setup(t, Config{Epoch: 2, MinLive: map[string]int{"relayer": 3}, Health: health.Config{
		Interval: time.Second, Rise: 1 + rnd.IntN(2), Fall: 1 + rnd.IntN(2),
	}})
	// State of the previous leader: some services live, some gone.
	b.redis.HSet("relayer:meta", "cluster", "c-1", "epoch", "1", "seq", "9", "leader", "n-0")
	stable := []string{"s-0", "s-1", "s-2", "s-3"}
	b.redis.SAdd("relayer:active", stable...)
	b.redis.SAdd("relayer:active", "ghost", "m-1", "m-2")
	for _, id := range stable {
		b.dir.register(relayer(id))
		b.net.set(slow(ms(200), nil), url(id))
	}
	// Redis and the quorum respond slowly.
	delays := make(chan time.Duration, 10_000)
	for range cap(delays) {
		delays <- ms(60)
	}
	b.redis.SetHook(func(_ context.Context, _ mirror.Op, do func()) error {
		<-time.After(<-delays)
		do()
		return nil
	})

	want := make(map[string]bool) // id → alive
	change := func() {
		id := fmt.Sprintf("m-%d", rnd.IntN(8))
		switch _, there := want[id]; {
		case there && rnd.IntN(3) == 0:
			delete(want, id)
			b.dir.deregister(id)
		default:
			u := fmt.Sprintf("http://%s/%d", id, rnd.IntN(2))
			alive := rnd.IntN(3) > 0
			b.net.set(slow(ms(700), map[bool]error{false: errors.New("status 503")}[alive]), u)
			if alive && rnd.IntN(4) == 0 {
				alive = false
				b.net.set(hangs, u)
			} else if alive {
				b.net.set(slow(ms(300), nil), u)
			}
			want[id] = alive
			b.dir.register(entry(id, "relayer", u, map[string]string{"n": fmt.Sprint(rnd.IntN(3))}))
		}
	}
	for range rnd.IntN(6) {
		change()
	}
	b.start()
	for range 5 + rnd.IntN(40) {
		change()
		if rnd.IntN(20) == 0 { // an operator restores the current directory
			require.NoError(t, b.dir.Restore(b.dir.snapshot()))
		}
		pause(ms(100))
	}
	pause(8 * time.Second)

	alive := slices.Clone(stable)
	for id, up := range want {
		if up {
			alive = append(alive, id)
		}
	}
	slices.Sort(alive)
	require.Equal(t, alive, b.active())
	require.Equal(t, "running", b.directorState())
	b.neverRemoved(stable...)
	var listed []string
	for _, s := range b.Status().Services {
		require.Equal(t, s.Active, s.Verdict == rollcallv1.Verdict_VERDICT_UP, s.Id)
		listed = append(listed, s.Id)
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.DeleteFunc(listed, func(id string) bool {
		return slices.Contains(stable, id)
	}))
	require.NoError(t, b.stop())
}
