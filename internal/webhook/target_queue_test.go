package webhook

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// steady is the default tuning without jitter.
var steady = tuning{jitter: func() float64 { return 0 }}.withDefaults(10 * time.Second)

func idle(limit int) *targetQueue {
	return newTargetQueue(&sender{to: destination{name: "here", limit: limit}})
}

// begin makes the queue start up to n deliveries.
func begin(l *targetQueue, now time.Time, n int) (begun int) {
	for range n {
		l.queue = append(l.queue, &claim{})
	}
	for l.next(now) != nil {
		begun++
	}
	l.queue = nil
	return begun
}

func TestTargetQueue_DifferentSubjectsFail_TargetIsDown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	require.Equal(t, 8, begin(l, now, 20))
	for range 3 { // one transaction alone may be at fault itself
		require.False(t, l.failed(now, named("a"), 0, steady))
	}
	require.False(t, l.failed(now, named("b"), 0, steady))
	require.False(t, l.succeeded())
	require.False(t, l.failed(now, named("c"), 0, steady)) // the count starts again
	require.False(t, l.failed(now, named("a"), 0, steady))
	require.True(t, l.failed(now, named("b"), 0, steady))
	require.True(t, l.down())
}

// downLane returns a queue that has just been found to be down, with nothing in flight.
func downLane(now time.Time) *targetQueue {
	l := idle(8)
	begin(l, now, 3)
	for _, subject := range []string{"a", "b", "c"} {
		l.failed(now, named(subject), 0, steady)
	}
	return l
}

func TestTargetQueue_Down_OneRequestAtATimeWithGrowingPauses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := downLane(now)
	var pauses []time.Duration
	for range 8 {
		require.Zero(t, l.demand(now))
		require.Zero(t, begin(l, now, 2))
		pauses = append(pauses, l.resumeAt.Sub(now))
		now = l.resumeAt.Add(time.Millisecond)
		require.Equal(t, 1, l.demand(now))
		require.Equal(t, 1, begin(l, now, 2))
		require.Zero(t, l.demand(now))
		require.False(t, l.failed(now, named("d"), 0, steady))
	}
	s := time.Second
	require.Equal(t, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s, 30 * s}, pauses)
	require.Len(t, l.failing, downAfter) // it does not record further subjects
}

func TestTargetQueue_ConcurrentFailures_LengthenPauseOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	begin(l, now, 8)
	for subject := range strings.SplitSeq("abcdefgh", "") {
		l.failed(now, named(subject), 0, steady)
	}
	require.Equal(t, time.Second, l.resumeAt.Sub(now))
}

func TestTargetQueue_Recovers_ConcurrencyGrowsWithEachSuccess(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := downLane(now)
	now = l.resumeAt
	require.Equal(t, 1, begin(l, now, 20))
	require.True(t, l.succeeded())
	require.True(t, l.retryNow)
	for _, want := range []int{2, 4, 8, 8} {
		require.Equal(t, want, begin(l, now, 20))
		for range want {
			require.False(t, l.succeeded())
		}
	}
}

func TestTargetQueue_RetryAfter_IsKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	begin(l, now, 2)
	require.False(t, l.failed(now, named("a"), time.Minute, steady))
	require.False(t, l.succeeded()) // a success of an earlier attempt does not end it
	require.Zero(t, l.demand(now.Add(59*time.Second)))
	require.Zero(t, begin(l, now.Add(59*time.Second), 1))
	require.Positive(t, l.demand(now.Add(time.Minute)))
	require.Equal(t, 1, begin(l, now.Add(time.Minute), 1))
}

func TestTargetQueue_Demand_IsLimited(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	require.Equal(t, 32, l.demand(now))
	for range 32 {
		l.queue = append(l.queue, &claim{})
	}
	for range 8 {
		require.NotNil(t, l.next(now))
	}
	require.Nil(t, l.next(now))
	require.Zero(t, l.demand(now)) // as long as the queue fills the window
	l.queue = l.queue[:7]
	require.Equal(t, 32-8-7, l.demand(now))
}

func TestBackoff_GrowsToItsLimitWithJitter(t *testing.T) {
	t.Parallel()
	s := time.Second
	for attempt, want := range map[int]time.Duration{1: s, 2: 2 * s, 3: 4 * s, 6: 32 * s, 7: 60 * s, 1000000: 60 * s} {
		require.Equal(t, want, backoff(attempt, time.Minute, steady))
	}
	late := steady
	late.jitter = func() float64 { return 1 }
	require.Equal(t, 2*s, backoff(3, time.Minute, late))
}

func TestRetryAfter_Parse(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                     0,
		"7":                    7 * time.Second,
		" 7 ":                  7 * time.Second,
		"-7":                   0,
		"soon":                 0,
		"99999999999999999999": 0,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute,
		now.Add(-time.Hour).Format(http.TimeFormat):  0,
	} {
		require.Equal(t, want, retryAfter(value, now), "%q", value)
	}
}

func TestReason_IsValidUTF8AndShort(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b?c d", reason(errors.New("a\x00b\xffc\x1bd")))
	require.Equal(t, strings.Repeat("x", maxReason-1)+"…", reason(errors.New(strings.Repeat("x", maxReason-1)+"🦊")))
}

func TestTargetQueue_Since_OldestOnceEachSweep(t *testing.T) {
	t.Parallel()
	l := idle(4)
	now := time.Now()
	require.Zero(t, l.since(now)) // nothing was claimed yet
	l.add([]*claim{{nextAt: now.Add(-time.Hour)}, {nextAt: now.Add(-2 * time.Hour)}})
	l.add(nil)
	now = now.Add(sweepEvery / 2)
	require.Equal(t, now.Add(-sweepEvery/2-time.Hour-sweepMargin), l.since(now))
	l.add([]*claim{{nextAt: now.Add(-3 * time.Hour)}}) // one of many old ones
	require.Equal(t, now.Add(-3*time.Hour-sweepMargin), l.since(now))
	l.retryNow = true
	require.Zero(t, l.since(now))
	l.retryNow = false
	now = now.Add(sweepEvery - 1)
	require.NotZero(t, l.since(now))
	require.Zero(t, l.since(now.Add(1)))
}

// named returns the id of a subject.
func named(name string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(name)) }
