package health

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSchedule_FirstRound_IsAtOnceAndLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", hangs)
		c := start(t, w, Config{})
		c.Set(relayers(1000)...)
		synctest.Wait()
		total, most := w.counts()
		require.Equal(t, 256, total)
		require.Equal(t, 256, most)
		require.Empty(t, take(c))
		// Four rounds of one timeout each; a check waiting for its turn keeps its full timeout.
		pause(2*time.Second + time.Millisecond)
		results := take(c)
		require.Equal(t, 1000, len(results))
		for _, r := range results {
			require.Equal(t, Down, r.Verdict)
			require.Equal(t, 500*time.Millisecond, r.Latency)
			require.Equal(t, "no answer", r.Reason)
		}
	})
}

func TestSchedule_AnyTarget_IsCheckedOncePerInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{Interval: 5 * time.Second})
		w.set("http://relayer-1:3000", hangs)
		w.set("http://relayer-2:3000", after(300*time.Millisecond, nil))
		c.Set(relayers(5)...)
		pause(time.Minute)
		for i := range 5 {
			at := w.checks(fmt.Sprintf("relayer-%d", i))
			require.InDelta(t, 13, len(at), 1)
			require.LessOrEqual(t, at[1].Sub(at[0]), 5*time.Second)
			for j := 2; j < len(at); j++ {
				require.InDelta(t, 5*time.Second, at[j].Sub(at[j-1]), float64(2*time.Millisecond))
			}
		}
	})
}

func TestSchedule_ManyTargets_SpreadOverTheInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(10_000)...)
		pause(10 * time.Second)
		perSlot := make(map[time.Duration]int)
		begin := time.Now()
		pause(10 * time.Second)
		n := 0
		for _, target := range relayers(10_000) {
			for _, at := range w.checks(target.ID) {
				if at.After(begin) {
					perSlot[at.Sub(begin)/(100*time.Millisecond)]++
					n++
				}
			}
		}
		require.InDelta(t, 10_000, n, 20)
		for slot, count := range perSlot {
			require.InDelta(t, 100, count, 60, "slot %d", slot)
		}
	})
}

func TestSchedule_CheckerRestarts_KeepsThePhase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at [2]time.Time
		for i := range at {
			w := new(world)
			c := start(t, w, Config{})
			c.Set(relayers(1)...)
			pause(21 * time.Second)
			at[i] = w.checks("relayer-0")[2]
		}
		require.Zero(t, at[1].Sub(at[0]).Round(2*time.Millisecond)%(10*time.Second))
	})
}

func TestCheckNow_KnownTargets_AreCheckedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(300)...)
		pause(0)
		before := take(c)
		require.Equal(t, 300, len(before))
		w.set("*", after(100*time.Millisecond, nil))
		ids := []string{"absent"}
		for id := range before {
			ids = append(ids, id)
		}
		c.CheckNow(ids...)
		pause(10 * time.Millisecond)
		_, most := w.counts()
		require.Equal(t, 256, most)
		c.CheckNow(ids...) // running ones are checked again, queued ones only once
		pause(time.Second)
		require.Equal(t, 300, len(take(c)))
		n := 0
		for id := range before {
			n += len(w.checks(id))
		}
		require.InDelta(t, 300+300+256, n, 40) // and some had their phase in that second
	})
}

func TestSchedule_ProcessFrozen_CatchesUpWithoutBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(lost.Load())) }
		w := new(world)
		c := start(t, w, Config{clock: clock})
		c.Set(relayers(5000)...)
		pause(10 * time.Second)
		w.set("*", after(100*time.Millisecond, nil))
		lost.Store(int64(9 * time.Second))
		pause(time.Second)
		_, most := w.counts()
		require.GreaterOrEqual(t, most, 256)
		require.Less(t, most, 400) // and those due in that second
	})
}
