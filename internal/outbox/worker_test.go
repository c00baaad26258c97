package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A claim may be lost while it waits for a handler.
func TestWorker_ClaimLostBeforeItsHandler_NotStarted(t *testing.T) {
	t.Parallel()
	box, err := New(nil, Table{Name: "works"})
	require.NoError(t, err)
	handled := 0
	w, err := box.NewWorker(Config{Handle: func(context.Context, Work) Result {
		handled++
		return Finished()
	}})
	require.NoError(t, err)
	w.handlers = t.Context()
	for n, kept := range []bool{true, false} {
		c := &claim{number: int64(n), until: time.Now().Add(time.Hour)}
		w.hold([]*claim{c})
		w.renewed(c, time.Now(), kept)
		w.work(c)
		require.Equal(t, 1, handled)
	}
	require.Equal(t, KindFinished, w.results[0].Kind)
	require.Equal(t, KindReturned, w.results[1].Kind)
}

// Lanes with a backlog share the room, and each claim begins after the last lane served.
func TestLanes_Demand_SharesAndRotates(t *testing.T) {
	t.Parallel()
	l := &lanes{mine: func(k laneKey) bool { return k.lane != "foreign" }}
	now := time.Now()
	for _, name := range []string{"b", "a", "foreign", "c"} {
		l.add(laneKey{0, name}, now)
	}
	limits := map[string]int{"a": 100, "b": 1, "c": 100}
	d := l.demand(6, now, func(lane string) int { return limits[lane] })
	require.Equal(t, []string{"a", "b", "c"}, d.lanes)
	require.Equal(t, []int32{3, 1, 3}, d.shares)
	require.True(t, d.sweep)
	due := now.Add(-time.Minute)
	for range 3 {
		l.got(laneKey{0, "a"}, due, now)
	}
	l.got(laneKey{0, "b"}, due.Add(time.Second), now)
	require.True(t, l.end(d, 6, 2, 4, now, now), "a is full, and entries were blocked")

	d = l.demand(6, now, func(lane string) int { return limits[lane] })
	require.Equal(t, []string{"c", "a", "b"}, d.lanes, "after the last lane served")
	require.Equal(t, []int32{4, 4, 1}, d.shares, "c was empty")
	require.False(t, d.sweep)
	require.Equal(t, []time.Time{{}, due.Add(-sweepMargin), due.Add(time.Second - sweepMargin)}, d.since)
	require.False(t, l.end(d, 0, 0, 0, now, now))
	d = l.demand(6, now, func(lane string) int { return limits[lane] })
	require.Equal(t, now.Add(-sweepMargin), d.since[0], "nothing was left out")

	d = l.demand(1, now.Add(forgetAfter+time.Second), func(string) int { return 1 })
	require.Empty(t, d.lanes, "forgotten")
}

// A slow turn does not put off the next sweep for long: the entry of a process that died is found by a sweep alone.
func TestLanes_SlowTurn_SweepsSoon(t *testing.T) {
	t.Parallel()
	l := &lanes{mine: func(laneKey) bool { return true }}
	begin := time.Now().Add(-time.Minute)
	l.add(laneKey{0, "a"}, begin)
	d := l.demand(1, begin, func(string) int { return 1 })
	require.True(t, d.sweep)
	l.end(d, 0, 0, 0, begin, begin)
	require.LessOrEqual(t, time.Until(l.sweepAt), sweepPause)
}

// Nothing is between a partition and the next one.
func TestLanes_Gaps_BetweenKnownLanes(t *testing.T) {
	t.Parallel()
	l := &lanes{mine: func(laneKey) bool { return true }}
	for _, partition := range []int32{0, 1, 3} {
		l.add(laneKey{partition, "a"}, time.Now())
	}
	g := l.gaps()
	require.Equal(t, []int32{0, 0, 1, 1, 1, 3, 3, 3}, g.partitions)
	require.Equal(t, []int32{0, 0, 1, 1, 3, 3, 3, topPartition}, g.uptoPartitions)
	require.Equal(t, []string{"", "a" + next, "", "a" + next, "", "", "a" + next, ""}, g.fromLanes)
	require.Equal(t, []string{"a", topLane, "a", topLane, "", "a", topLane, ""}, g.uptoLanes)
	require.Equal(t, []bool{false, false, false, false, true, false, false, true}, g.whole)
}

// An empty partition leaves the limit of its lane to the next one at once.
func TestLanes_PartitionEmpty_LeavesLimitToTheNext(t *testing.T) {
	t.Parallel()
	l := &lanes{mine: func(laneKey) bool { return true }}
	now := time.Now()
	for partition := range 3 {
		l.add(laneKey{int32(partition), "narrow"}, now)
	}
	two := func(string) int { return 2 }
	d := l.demand(10, now, two)
	require.Equal(t, []int32{0}, d.partitions)
	require.Equal(t, []int32{2}, d.shares)
	require.True(t, l.end(d, 0, 0, 0, now, now), "others were denied")
	d = l.demand(10, now, two)
	require.Equal(t, []int32{0, 1}, d.partitions, "the empty one takes nothing from the limit")
	require.True(t, l.end(d, 0, 0, 0, now, now))
	d = l.demand(10, now, two)
	require.Equal(t, []int32{0, 1, 2}, d.partitions)
	require.False(t, l.end(d, 0, 0, 0, now, now))
}
