package coordinator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/testutil/lincheck"
)

func TestDirectory_PartitionsAndRepairs_StaysLinearizable(t *testing.T) {
	seeds := 8
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { partitionScenario(t, uint64(seed)) })
		})
	}
}

func partitionScenario(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	c := newSimCluster(t, 3, nil)
	c.net.SetLatency(time.Duration(5+random.IntN(10)) * time.Millisecond)
	c.leader()
	ids := []string{"c1", "c2", "c3"}
	for _, p := range c.peers {
		c.client(p.ID) // connections are made before clients run concurrently
	}

	history := lincheck.NewHistory()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	var clients errgroup.Group
	for i := range 6 {
		client := &lincheck.Client{
			Number: i, Shard: i / 2, Owner: fmt.Sprintf("g-%d", i), History: history, Timeout: 2 * time.Second,
			Directory: &lincheck.GRPC{IDs: ids, Client: c.client, Timeout: 300 * time.Millisecond}, Rand: rand.New(rand.NewPCG(seed, uint64(i+1))),
		}
		clients.Go(func() error { return client.Run(ctx, 1<<20) })
	}

	for ctx.Err() == nil {
		switch random.IntN(4) {
		case 0:
			c.net.Isolate(ids[random.IntN(3)])
			c.net.SetLatency(time.Duration(5+random.IntN(10)) * time.Millisecond)
		case 1:
			c.net.Cut(ids[random.IntN(3)], ids[random.IntN(3)])
		case 2:
			c.net.CutOneWay(ids[random.IntN(3)], ids[random.IntN(3)])
		case 3:
			c.net.Reset(ids[random.IntN(3)])
		}
		pass(time.Duration(200+random.IntN(1500)) * time.Millisecond)
		c.net.Heal()
		pass(time.Duration(random.IntN(1500)) * time.Millisecond)
	}
	require.NoError(t, clients.Wait())
	c.net.Heal()
	c.leader()
	t.Logf("%d calls, %d unknown", history.Len(), history.Unknown())
	require.Greater(t, history.Len(), 200)
	require.NoError(t, history.Check(time.Minute))
	if seed == 0 { // as slow as a refutation
		require.ErrorContains(t, history.CheckWithout(time.Minute), "not linearizable")
	}
}
