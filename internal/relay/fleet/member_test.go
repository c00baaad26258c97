package fleet

import (
	"container/list"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
