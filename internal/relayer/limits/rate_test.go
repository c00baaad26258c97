package limits

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// clocked returns a guard with a clock that only pass moves.
func clocked(r Rates) (g *Guard, pass func(time.Duration)) {
	g = NewGuard(r)
	now := time.Unix(1_000_000, 0)
	g.now = func() time.Time { return now }
	return g, func(d time.Duration) { now = now.Add(d) }
}

func ask(t testing.TB, g *Guard, caller, trader string) *relayer.LimitError {
	t.Helper()
	err := g.Admit(t.Context(), caller, &relayer.Request{Metadata: relayer.Metadata{Trader: trader}})
	if err == nil {
		return nil
	}
	var limit *relayer.LimitError
	require.ErrorAs(t, err, &limit)
	return limit
}

func TestGuard_EachLimit_RejectsWithRetryAfter(t *testing.T) {
	t.Parallel()
	two := ratelimit.Rate{PerSecond: 2, Burst: 3}
	for name, c := range map[string]struct {
		rates Rates
		limit string
		other [2]string // caller and trader of another request, accepted if free
		free  bool
	}{
		"global":         {Rates{Global: two}, "global rate limit", [2]string{"b", "y"}, false},
		"caller":         {Rates{Caller: two}, "rate limit of the API key", [2]string{"b", "x"}, true},
		"trader":         {Rates{Trader: two}, "rate limit of the trader", [2]string{"a", "y"}, true},
		"unnamed trader": {Rates{Trader: two}, "rate limit of the trader", [2]string{"a", ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, pass := clocked(c.rates)
			for range 3 {
				require.Nil(t, ask(t, g, "a", "x"))
			}
			refused := ask(t, g, "a", "x")
			require.Equal(t, &relayer.LimitError{Limit: c.limit, After: 500 * time.Millisecond}, refused)
			require.Equal(t, c.free, ask(t, g, c.other[0], c.other[1]) == nil)
			pass(refused.After)
			require.Nil(t, ask(t, g, "a", "x"))
			require.NotNil(t, ask(t, g, "a", "x"))
			pass(time.Hour)
			for range 3 {
				require.Nil(t, ask(t, g, "a", "x"), "a pause refills a burst, and no more")
			}
			require.NotNil(t, ask(t, g, "a", "x"))
		})
	}
}

// A request over its own limit does not consume the shared limit.
func TestGuard_RefusedRequest_UsesNoAllowance(t *testing.T) {
	t.Parallel()
	g, _ := clocked(Rates{Global: ratelimit.Rate{PerSecond: 1, Burst: 10}, Caller: ratelimit.Rate{PerSecond: 1, Burst: 5}, Trader: ratelimit.Rate{PerSecond: 1, Burst: 2}})
	for range 2 {
		require.Nil(t, ask(t, g, "a", "x"))
	}
	for range 100 {
		require.Equal(t, "rate limit of the trader", ask(t, g, "a", "x").Limit)
	}
	for range 3 {
		require.Nil(t, ask(t, g, "a", ""))
	}
	for range 100 {
		require.Equal(t, "rate limit of the API key", ask(t, g, "a", "").Limit)
	}
	for range 5 {
		require.Nil(t, ask(t, g, "b", ""))
	}
	require.Equal(t, "global rate limit", ask(t, g, "c", "").Limit)
}

func TestAdmitCalls_Batch_EachCallTakesAToken(t *testing.T) {
	t.Parallel()
	g, pass := clocked(Rates{Global: ratelimit.Rate{PerSecond: 1, Burst: 10}, Caller: ratelimit.Rate{PerSecond: 1, Burst: 5}})
	require.NoError(t, g.AdmitCalls("a", 3))
	require.Equal(t, &relayer.LimitError{Limit: "rate limit of the API key", After: time.Second}, g.AdmitCalls("a", 3))
	require.NoError(t, g.AdmitCalls("a", 2), "a rejected request consumed no tokens")
	require.Error(t, g.AdmitCalls("a", 1))
	pass(time.Hour)
	require.NoError(t, g.AdmitCalls("a", 50), "more than may ever come at once")
	require.Equal(t, &relayer.LimitError{Limit: "global rate limit", After: 50 * time.Second}, g.AdmitCalls("b", 50))
	pass(45 * time.Second)
	require.Equal(t, &relayer.LimitError{Limit: "rate limit of the API key", After: time.Second}, g.AdmitCalls("a", 1), "all 50 count")
	require.NoError(t, g.AdmitCalls("b", 5))
	pass(time.Second)
	require.NoError(t, g.AdmitCalls("a", 1))
}

func TestGuard_NoRates_AdmitsAll(t *testing.T) {
	t.Parallel()
	g, _ := clocked(Rates{})
	for range 10_000 {
		require.Nil(t, ask(t, g, "a", "x"))
	}
	require.Empty(t, g.traders)
	require.Empty(t, g.callers)
}

func TestGuard_ManyTraders_RemembersRecentOnes(t *testing.T) {
	t.Parallel()
	g, _ := clocked(Rates{Trader: ratelimit.Rate{PerSecond: 1, Burst: 1}, Traders: 100})
	require.Nil(t, ask(t, g, "a", "busy"))
	for i := range 10_000 {
		require.Nil(t, ask(t, g, "a", fmt.Sprint(i)))
		require.NotNil(t, ask(t, g, "a", "busy"))
	}
	require.Len(t, g.traders, 100)
	require.Equal(t, 100, g.recent.Len())
}

func TestGuard_Concurrent_LimitsAreExact(t *testing.T) {
	t.Parallel()
	g, _ := clocked(Rates{Global: ratelimit.Rate{PerSecond: 1, Burst: 100}, Caller: ratelimit.Rate{PerSecond: 1, Burst: 60}, Trader: ratelimit.Rate{PerSecond: 1, Burst: 1000}})
	var admitted [3]atomic.Int64
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() {
			for range 100 {
				if ask(t, g, fmt.Sprint(i%3), "x") == nil {
					admitted[i%3].Add(1)
				}
			}
		})
	}
	all.Wait()
	var sum int64
	for i := range admitted {
		require.LessOrEqual(t, admitted[i].Load(), int64(60))
		sum += admitted[i].Load()
	}
	require.EqualValues(t, 100, sum)
}
