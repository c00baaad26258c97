package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/testutil/lincheck"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Twenty leaders, in the short form six, are killed with SIGKILL under load; every answer still fits one order of the calls.
func TestDirectory_LeadersKilled_StaysLinearizable(t *testing.T) {
	const clients = 8
	kills, calls := 20, 50_000
	if testing.Short() {
		kills, calls = 6, 15_000
	}
	// The load slows all processes, including the relayers. Their speed is not tested here.
	env := maps.Clone(slowRelayers)
	env["ROLLCALL_LOG_LEVEL"] = "info"
	c := startCluster(t, options{env: env})
	req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
	var ids []string
	for i := range 3 {
		id := fmt.Sprintf("oz-relayer-%d", i)
		req.Services = append(req.Services, service(id, "http://"+launchRelayer(t, id)))
		ids = append(ids, id)
	}
	c.write(req)
	c.awaitActive(patience, ids...)
	stop := c.watchSet(ids...)
	_, epoch := c.leader()

	history := lincheck.NewHistory()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var g errgroup.Group
	for i := range clients {
		client := &lincheck.Client{
			Number: i, Shard: i / 2, Owner: fmt.Sprintf("g-%d", i), History: history, Timeout: 3 * time.Second,
			Directory: &lincheck.GRPC{IDs: c.ids, Client: c.client, Timeout: time.Second}, Rand: rand.New(rand.NewPCG(7, uint64(i))),
		}
		g.Go(func() error {
			err := client.Run(ctx, 1<<30)
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		})
	}
	for kill := range kills {
		leader, _ := c.leader()
		// Enough calls between two kills, on any machine.
		eventually(t, 2*time.Minute, func() bool { return history.Len() >= (kill+1)*calls/kills }, "%d calls before kill %d", history.Len(), kill)
		leader.kill()
		_, epoch = c.leaderAfter(epoch)
		c.start(leader.id)
	}
	cancel()
	require.NoError(t, g.Wait())
	stop()
	t.Logf("%d calls, %d of unknown outcome, %d kills, epoch %d", history.Len(), history.Unknown(), kills, epoch)
	require.GreaterOrEqual(t, history.Len(), calls)
	require.NoError(t, history.Check(5*time.Minute))
	require.ErrorContains(t, history.CheckWithout(5*time.Minute), "not linearizable")
}
