package fleet

import (
	"container/list"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
)

// Nothing is sent to a relayer that is avoided, so its latency is not measured. That must not make it the cheapest one where all
// relayers are slow.
func TestCost_RelayerIsAvoided_HasTheUsualLatency(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const usual = 0.3
	used := &member{inFlight: list.New(), pending: 40, latency: usual, success: 1, sampledAt: now}
	loaded := &member{inFlight: list.New(), pending: 100, success: 1, sampledAt: now.Add(-time.Minute)}
	silent := &member{inFlight: list.New(), uncounted: 0.9, success: 1, sampledAt: now.Add(-time.Minute)}
	slow := &member{inFlight: list.New(), pending: 10, latency: 20, success: 1, sampledAt: now.Add(-time.Minute)}
	require.Less(t, used.cost(now, usual), loaded.cost(now, usual))
	hundreds := &member{inFlight: list.New(), pending: 200, latency: usual, success: 1, sampledAt: now}
	require.Less(t, hundreds.cost(now, usual), silent.cost(now, usual), "one that counts none loses to hundreds")
	require.Less(t, slow.cost(now, usual), used.cost(now, usual), "a slow one is tried again")
}

func TestUsual_NewLatency_CountsMoreAfterAPause(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var u usual
	u.add(now, 1)
	require.InDelta(t, 1, u.latency(), 1e-9, "the first one")
	u.add(now.Add(memory/100), 0)
	require.InDelta(t, 0.99, u.latency(), 0.001)
	u.add(now.Add(10*memory), 0)
	require.InDelta(t, 0, u.latency(), 0.001)
}

// A client's transaction may be the reason of an answer, so no answer pauses a relayer for longer than longestPause.
func TestReturned_Answers_PauseAndCost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result     upstream.Result
		pause      time.Duration
		success    float64
		rejections int
		unknown    bool // its id and scope are looked up again
	}{
		"accepted":                   {result: upstream.Result{Outcome: upstream.Accepted, Code: http.StatusOK}, success: 0.85},
		"accepted in another scope":  {result: upstream.Result{Outcome: upstream.Accepted, Code: http.StatusOK, Stale: true}, success: 0.85, unknown: true},
		"rejected":                   {result: upstream.Result{Outcome: upstream.Rejected, Code: http.StatusBadRequest}, success: 0.4, rejections: 3},
		"no key can pay":             {result: upstream.Result{Outcome: upstream.NotDone, Code: http.StatusServiceUnavailable, RetryAfter: time.Minute}, success: 0.4, rejections: 3},
		"too large for its proxy":    {result: upstream.Result{Outcome: upstream.NotDone, Code: http.StatusRequestEntityTooLarge}, success: 0.4, rejections: 3},
		"its scope has changed":      {result: upstream.Result{Outcome: upstream.NotDone, Code: http.StatusPreconditionFailed, Stale: true}, success: 0.4, rejections: 2, unknown: true},
		"busy":                       {result: upstream.Result{Outcome: upstream.NotDone, Code: http.StatusTooManyRequests, Busy: true}, pause: firstPause, success: 0.85},
		"busy for seconds":           {result: upstream.Result{Outcome: upstream.NotDone, Code: http.StatusTooManyRequests, Busy: true, RetryAfter: 7 * time.Second}, pause: 7 * time.Second, success: 0.85},
		"busy until midnight":        {result: upstream.Result{Outcome: upstream.NotDone, Code: http.StatusTooManyRequests, Busy: true, RetryAfter: 5 * time.Minute}, pause: longestPause, success: 0.85},
		"a fault":                    {result: upstream.Result{Outcome: upstream.Unknown, Code: http.StatusBadGateway, Fault: true}, pause: firstPause, success: 0.4, rejections: 2},
		"a fault for minutes":        {result: upstream.Result{Outcome: upstream.Unknown, Code: http.StatusServiceUnavailable, Fault: true, RetryAfter: 5 * time.Minute}, pause: longestPause, success: 0.4, rejections: 2},
		"no answer, by this process": {result: upstream.Result{Outcome: upstream.NotDone}, success: 0.8, rejections: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := New(Config{Logger: slog.New(slog.DiscardHandler)})
				m := &member{
					fleet: f, id: "a", inFlight: list.New(), wake: make(chan struct{}, 1), info: &upstream.Info{RelayerID: "relayer-1"},
					success: 0.8, rejections: 2, sampledAt: time.Now(),
				}
				m.returned(&c.result, m.inFlight.PushBack(time.Now()))
				require.Equal(t, c.pause, max(0, time.Until(m.pausedUntil)))
				require.InDelta(t, c.success, m.success, 1e-9)
				require.Equal(t, c.rejections, m.rejections)
				require.Equal(t, c.unknown, m.info == nil)
				require.Len(t, m.wake, map[bool]int{true: 1}[c.unknown || c.result.Fault])
				require.Zero(t, m.inFlight.Len())
			})
		})
	}
}
