package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var standard = tuning{}.withDefaults(10 * time.Second)

func idle(limit int) *target {
	return newTarget(&sender{to: destination{name: "here", limit: limit}})
}

func TestTarget_DifferentSubjectsFail_TargetIsDown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	fails := func(subject string) (down bool) {
		_, down = l.failed(now, subject, 0, standard)
		return down
	}
	require.Equal(t, 8, l.allowed(now))
	for range 3 { // one transaction alone may be at fault itself
		require.False(t, fails("a"))
	}
	require.False(t, fails("b"))
	require.False(t, l.succeeded())
	require.False(t, fails("c")) // the count starts again
	require.False(t, fails("a"))
	require.Equal(t, 8, l.allowed(now))
	require.True(t, fails("b"))
	require.True(t, l.downLocked())
}

// downTarget returns a target that has just been found to be down.
func downTarget(now time.Time) *target {
	l := idle(8)
	for _, subject := range []string{"a", "b", "c"} {
		l.failed(now, subject, 0, standard)
	}
	return l
}

func TestTarget_Down_OneRequestAtATimeWithGrowingPauses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := downTarget(now)
	for _, seconds := range []int{1, 2, 4, 8, 16, 30, 30, 30} {
		require.Zero(t, l.allowed(now))
		pause := time.Duration(seconds) * time.Second
		require.WithinRange(t, l.resumeAt, now.Add(pause/2), now.Add(pause))
		require.Zero(t, l.allowed(l.resumeAt.Add(-1)))
		now = l.resumeAt.Add(time.Millisecond)
		require.Equal(t, 1, l.allowed(now))
		at, down := l.failed(now, "d", 0, standard)
		require.False(t, down)
		require.Equal(t, l.resumeAt, at)
	}
	require.Len(t, l.failing, downAfter) // it does not record further subjects
}

func TestTarget_ConcurrentFailures_LengthenPauseOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	for subject := range strings.SplitSeq("abcdefgh", "") {
		l.failed(now, subject, 0, standard)
	}
	require.LessOrEqual(t, l.resumeAt.Sub(now), time.Second)
	require.Equal(t, 1, l.pauses)
}

func TestTarget_Recovers_ConcurrencyGrowsWithEachSuccess(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := downTarget(now)
	now = l.resumeAt
	require.Equal(t, 1, l.allowed(now))
	require.True(t, l.succeeded())
	for _, want := range []int{2, 3, 4, 5, 6, 7, 8, 8} {
		require.Equal(t, want, l.allowed(now))
		require.False(t, l.succeeded())
	}
}

func TestTarget_RetryAfter_IsKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := idle(8)
	_, down := l.failed(now, "a", time.Minute, standard)
	require.False(t, down)
	require.False(t, l.succeeded()) // a success of an earlier attempt does not end it
	require.Zero(t, l.allowed(now.Add(59*time.Second)))
	require.Equal(t, 8, l.allowed(now.Add(time.Minute)))
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
