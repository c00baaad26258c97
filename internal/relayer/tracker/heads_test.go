package tracker_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// Heads of a subscription are processed when they arrive: nothing here polls within an hour.
func TestHeads_Subscribed_AreProcessedAtOnce(t *testing.T) {
	f := setup(t, 1, func(o *relayertest.Options) {
		ws := "ws" + o.RPC[0][len("http"):]
		o.Chain = func(c *evm.Config) {
			c.Subscribe, c.PollInterval, c.HealthInterval, c.Silence = ws, time.Hour, time.Hour, time.Hour
		}
	})
	f.Stop()
	// An unverified chain is retried after Tend.
	f.options.Tracker = func(c *tracker.Config) { c.Tend, c.ChainIdentity = time.Hour, nil }
	r := f.startByHeads()
	for range 3 {
		tx := r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
		f.chain.Commit()
		r.Reaches(t, tx, relayer.Mined)
	}
}

// startByHeads starts a relayer whose tracker reacts only to heads, and seals blocks until it has compared the keys.
func (f *fixture) startByHeads() *relayertest.Relayer {
	f.t.Helper()
	r := relayertest.Launch(f.t, f.options)
	require.Eventually(f.t, func() bool {
		f.chain.Commit()
		return r.Health().Ready
	}, 2*time.Minute, 100*time.Millisecond)
	return r
}

// A queued transaction is dispatched with the block that makes room, in time for the next block, and not only at the next
// maintenance.
func TestRound_BlockMakesRoom_DispatchesQueued(t *testing.T) {
	f := setup(t, 1)
	f.Stop()
	f.options.Tracker = func(c *tracker.Config) { c.Tend, c.ChainIdentity = time.Hour, nil }
	f.options.Chain = func(c *evm.Config) { c.PollInterval = 10 * time.Millisecond }
	f.options.Pool = func(c *service.Config) { c.Cap = 1 }
	r := f.startByHeads()
	var txs []*relayer.Transaction
	for range 3 {
		txs = append(txs, r.Send(t, f.chain.Accounts[0].Address, 1, nil))
	}
	for _, tx := range txs {
		r.Reaches(t, tx, relayer.Broadcasted)
		f.chain.Commit()
	}
}

// latestCalls is a chain that reports each read.
type latestCalls struct {
	tracker.Chain
	ctx context.Context
	at  chan time.Time
}

func (l *latestCalls) Latest(ctx context.Context, except ...string) (tracker.View, error) {
	select {
	case l.at <- time.Now():
	case <-l.ctx.Done(): // the test is over
	}
	return l.Chain.Latest(ctx, except...)
}

// A head that was announced by another node than the queried one counts once. The queried node is queried again at growing
// intervals while it lags, and processed soon after it has caught up.
func TestHeads_NodeLags_IsQueriedAtGrowingIntervals(t *testing.T) {
	f := setup(t, 1)
	for range 4 {
		f.chain.Commit()
	}
	// A transaction that does not become final, because rounds would be left out without one.
	open := f.Send(t, f.chain.Accounts[0].Address, 1, nil)
	f.Reaches(t, open, relayer.Broadcasted)
	f.Stop()
	ahead := f.options.RPC[0]
	behind := before(t, &f.options)
	f.options.RPC = append(f.options.RPC, ahead)
	f.options.Chain = func(c *evm.Config) { c.PollInterval, c.HealthInterval = 10*time.Millisecond, 10*time.Millisecond }
	f.options.Registry = prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &latestCalls{ctx: ctx, at: make(chan time.Time)}
	f.options.Tracker = func(c *tracker.Config) {
		c.Tend, c.ChainIdentity, c.Confirmations = time.Hour, nil, 1000
		l.Chain = c.Chain
		c.Chain = l
	}
	behind.SetLag(2)
	r := relayertest.Launch(t, f.options)
	// The first round waits until the client has verified the endpoint that is behind, and thus prefers it.
	require.Eventually(t, func() bool { return r.Client.Status().Endpoints[0].OK }, 2*time.Minute, 10*time.Millisecond)
	<-l.at
	first := time.Now()
	for range 5 { // the first one follows an announced head
		<-l.at
	}
	require.GreaterOrEqual(t, (<-l.at).Sub(first), 300*time.Millisecond)
	cancel()
	require.Eventually(t, func() bool {
		f.chain.Commit()
		return r.Health().Ready
	}, 2*time.Minute, 100*time.Millisecond)
	tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
	r.Reaches(t, tx, relayer.Broadcasted)
	f.chain.Commit()
	behind.SetLag(0)
	r.Reaches(t, tx, relayer.Mined)
	require.Greater(t, f.sumOf("rollcall_relayer_head_lag_seconds"), .3)
}

// sumOf returns the sum of a histogram.
func (f *fixture) sumOf(name string) float64 {
	f.t.Helper()
	families, err := f.options.Registry.Gather()
	require.NoError(f.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetHistogram().GetSampleSum()
		}
	}
	require.Fail(f.t, "there is no "+name)
	return 0
}
