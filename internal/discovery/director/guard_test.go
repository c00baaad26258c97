package director

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
)

// guarded returns a director with ten relayers that are up, and a guard that holds when more than half of them fail.
func guarded(t *testing.T, cfg Config) *bench {
	cfg.MassFailureThreshold = 0.5
	b := setup(t, cfg)
	b.dir.register(relayers(10)...)
	b.start()
	pause(20 * time.Second)
	require.Len(t, b.active(), 10)
	return b
}

func TestGuard_MassFailure_HoldsRemovals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{MassFailureHold: 30 * time.Second})
		// The leader's own network fails, except for two services.
		b.net.set(refuses, "*")
		b.net.set(slow(time.Millisecond, nil), url("a-00"), url("a-01"))
		pause(10 * time.Second)
		require.Len(t, b.active(), 10)
		status := b.Status()
		require.EqualValues(t, 8, status.Mirror.Held)
		require.Len(t, status.Notes, 1)
		require.Contains(t, status.Notes[0], "holds 8 removals of kind relayer until 2000-")
		require.Contains(t, status.Notes[0], "8 of 10 failed at once")
		require.EqualValues(t, 1, value(t, b.metrics.holds))
		require.Len(t, b.logs.with("guard holds removals"), 1)
		require.Empty(t, b.logs.with("relayer removed"))
		pause(time.Second)
		hash := b.redis.Hash("relayer:status:svc:a-05")
		require.Equal(t, "unhealthy", hash["status"], "readers see the check result")
		require.Equal(t, "connection refused", hash["reason"])
		require.True(t, b.of("a-05").Active)

		// One more fails in the meantime: it is held too, without another sample.
		b.net.set(refuses, url("a-01"))
		pause(10 * time.Second)
		require.EqualValues(t, 9, b.Status().Mirror.Held)

		// The hold must end in time.
		pause(12 * time.Second)
		require.Equal(t, []string{"a-00"}, b.active())
		require.Zero(t, b.Status().Mirror.Held)
		require.Empty(t, b.Status().Notes)
		require.Len(t, b.logs.with("relayer removed"), 9)
		require.EqualValues(t, 9, value(t, b.metrics.failed))
		lines := b.logs.with("guard releases removals")
		require.Len(t, lines, 1)
		require.Equal(t, "held for long enough", lines[0]["why"])

		b.net.set(nil, "*")
		pause(10 * time.Second)
		require.Len(t, b.active(), 9)
		require.EqualValues(t, 8, value(t, b.metrics.recoveries))
	})
}

func TestGuard_FirstFailure_SamplesTheRestAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{Health: health.Config{Interval: time.Minute}})
		// Services fail just after one failure was detected. Without a sample most would go undetected for a minute.
		b.net.set(refuses, "*")
		for len(b.logs.with("guard samples the rest")) == 0 {
			pause(10 * time.Millisecond)
		}
		pause(0)
		require.EqualValues(t, 10, b.Status().Mirror.Held)
		require.Len(t, b.logs.with("guard holds removals"), 1)
	})
}

func TestGuard_FewFailures_AreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{})
		b.net.set(slow(200*time.Millisecond, nil), "*")
		for _, id := range []string{"a-01", "a-02", "a-03", "a-04", "a-05"} { // exactly half, so no hold
			b.net.set(refuses, url(id))
		}
		pause(11 * time.Second)
		require.Equal(t, []string{"a-00", "a-06", "a-07", "a-08", "a-09"}, b.active())
		require.Empty(t, b.logs.with("guard holds removals"))
		require.Len(t, b.logs.with("relayer removed"), 5)
		// They are no longer alive, so two more are a small share of the live services.
		b.net.set(refuses, url("a-06"), url("a-07"))
		pause(11 * time.Second)
		require.Equal(t, []string{"a-00", "a-08", "a-09"}, b.active())
		require.Empty(t, b.logs.with("guard holds removals"))
	})
}

func TestGuard_OnlyServiceFails_IsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{MassFailureThreshold: 0.1})
		b.dir.register(relayer("only"))
		b.start()
		pause(time.Second)
		b.net.set(refuses, "*")
		pause(10 * time.Second)
		require.Empty(t, b.active())
	})
}

func TestGuard_ServicesRecover_EndsTheHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{MassFailureHold: time.Hour})
		b.net.set(refuses, "*")
		pause(10 * time.Second)
		require.EqualValues(t, 10, b.Status().Mirror.Held)
		b.net.set(nil, "*")
		b.net.set(refuses, url("a-01"))
		pause(10 * time.Second)
		require.Zero(t, b.Status().Mirror.Held)
		require.Equal(t, []string{"a-01"}, b.logs.relayers("relayer removed"), "services that still fail are removed")
		require.Len(t, b.active(), 9)
		require.GreaterOrEqual(t, len(b.logs.with("relayer recovered before its removal")), 5)
	})
}

func TestGuard_Deregistration_IsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{MassFailureHold: time.Hour})
		b.net.set(refuses, "*")
		pause(10 * time.Second)
		b.dir.deregister("a-00", "a-01", "a-02")
		pause(0)
		require.Len(t, b.active(), 7)
		require.EqualValues(t, 7, b.Status().Mirror.Held)
		b.dir.deregister("a-03", "a-04", "a-05", "a-06", "a-07", "a-08", "a-09")
		pause(0)
		require.Empty(t, b.active())
		require.Empty(t, b.Status().Notes)
		b.dir.register(relayers(3)...)
		b.net.set(nil, "*")
		pause(10 * time.Second)
		require.Len(t, b.active(), 3)
	})
}

func TestGuard_OneKindFails_OtherKindsAreNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{MassFailureHold: time.Hour})
		for _, id := range []string{"e-1", "e-2"} {
			b.dir.register(entry(id, "escrow", url(id), nil))
		}
		pause(10 * time.Second)
		n := b.net.checked(url("a-00"))
		b.net.set(refuses, url("e-1"), url("e-2"))
		pause(10 * time.Second)
		require.Len(t, b.redis.Members("escrow:active"), 2)
		require.Equal(t, n+1, b.net.checked(url("a-00")), "another kind is not sampled")
		b.net.set(refuses, url("a-01"))
		pause(10 * time.Second)
		require.Len(t, b.active(), 9, "another kind is not held")

		b.net.set(refuses, "*")
		pause(10 * time.Second)
		require.EqualValues(t, 9+2, b.Status().Mirror.Held)
		require.Len(t, b.Status().Notes, 2)
		b.net.set(nil, "*")
		pause(10 * time.Second)
		require.EqualValues(t, 2, b.Status().Mirror.Held, "one kind's hold ends alone")
		require.Equal(t, []string{"a-01"}, b.logs.relayers("relayer removed"))
	})
}

// A check that began before the network failed must not count.
func TestGuard_CheckBeganBeforeTheSample_DoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{Health: health.Config{Interval: time.Minute}})
		b.net.set(slow(400*time.Millisecond, nil), "*")
		for i := 1; i < 10; i++ {
			b.checker.CheckNow(relayers(10)[i].Id)
		}
		pause(100 * time.Millisecond)
		b.net.set(slow(50*time.Millisecond, errors.New("connection refused")), "*")
		b.checker.CheckNow("a-00")
		pause(time.Second)
		require.Empty(t, b.logs.with("relayer removed"))
		require.EqualValues(t, 10, b.Status().Mirror.Held)
	})
}

func TestGuard_SampledServicesLeave_DoesNotWaitForThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{Health: health.Config{Interval: time.Minute}})
		b.net.set(hangs, "*")
		b.net.set(refuses, url("a-00"))
		b.checker.CheckNow("a-00")
		pause(100 * time.Millisecond)
		require.EqualValues(t, 1, b.Status().Mirror.Held)
		b.dir.deregister("a-01", "a-02", "a-03", "a-04", "a-05", "a-06", "a-07", "a-08")
		b.dir.register(entry("a-09", "escrow", url("a-09"), nil))
		pause(100 * time.Millisecond)
		require.Empty(t, b.active())
	})
}

// A new leader that reaches no service must hold the previous leader's list, even if Redis was away at first.
func TestGuard_NewLeaderReachesNoService_HoldsTheList(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		away bool
		fall int
	}{{false, 1}, {true, 1}, {false, 3}, {true, 3}} {
		synctest.Test(t, func(t *testing.T) {
			old := setup(t, Config{})
			old.dir.register(relayers(10)...)
			old.net.set(refuses, url("a-09"))
			old.start()
			pause(time.Second)
			require.NoError(t, old.stop())

			b := setup(t, Config{
				Epoch: 2, MassFailureThreshold: 0.5, Mirror: mirror.Config{Store: old.redis}, Health: health.Config{Fall: test.fall},
			})
			b.redis = old.redis
			b.dir.register(relayers(10)...)
			b.net.set(hangs, "*")
			b.net.set(refuses, url("a-03"))
			if test.away {
				b.redis.SetHook(func(context.Context, mirror.Op, func()) error { return errors.New("connection refused") })
			}
			b.start()
			pause(5 * time.Second)
			b.redis.SetHook(nil)
			pause(20 * time.Second)
			require.Len(t, b.active(), 9)
			require.Contains(t, b.Status().Notes[0], "guard holds")
			pause(time.Minute)
			require.Empty(t, b.active())
		})
	}
}

// With Fall above 1 a single failure is not a removal yet, but must count for the sample.
func TestGuard_FailuresBelowFall_CountForTheSample(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := guarded(t, Config{Health: health.Config{Interval: time.Minute, Fall: 3}})
		b.net.set(refuses, "*")
		for len(b.logs.with("guard holds removals")) == 0 {
			pause(10 * time.Millisecond)
		}
		require.Len(t, b.active(), 10)
		pause(10 * time.Second)
		require.Len(t, b.active(), 10)
		require.EqualValues(t, 10, b.Status().Mirror.Held)
	})
}

func TestGuard_DefaultConfig_IsOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{})
		b.dir.register(relayers(10)...)
		b.start()
		pause(20 * time.Second)
		b.net.set(refuses, "*")
		pause(10 * time.Second)
		require.Empty(t, b.active())
	})
}

// The guard must wait for a very slow checker as long as it delivers results.
func TestGuard_SlowSample_WaitsWhileResultsArrive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const services = 300
		b := setup(t, Config{MassFailureThreshold: 0.5, Health: health.Config{Interval: 10 * time.Second, MaxInFlight: 8}})
		b.dir.register(relayers(services)...)
		b.start()
		pause(20 * time.Second)
		require.Len(t, b.active(), services)
		b.net.set(hangs, "*")
		pause(40 * time.Second) // 16 checks a second, half of them for the sample
		require.Len(t, b.logs.with("guard holds removals"), 1)
		require.Empty(t, b.logs.with("relayer removed"))
		require.EqualValues(t, services, b.Status().Mirror.Held)
	})
}

// The guard must not wait for a checker without results.
func TestGuard_ChecksAreVoid_DoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Config{MassFailureThreshold: 0.5, Health: health.Config{Interval: time.Minute}})
		b.dir.register(relayers(300)...)
		b.start()
		pause(time.Minute)
		b.net.set(func(context.Context) error { return syscall.ENOBUFS }, "*")
		b.net.set(refuses, url("a-01"))
		b.checker.CheckNow("a-01")
		pause(100 * time.Millisecond)
		require.Len(t, b.active(), 300)
		pause(3 * time.Second)
		require.Len(t, b.active(), 299)
	})
}
