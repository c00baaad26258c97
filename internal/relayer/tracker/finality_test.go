package tracker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// followed makes the tracker report the newest block that it has processed.
func followed(o *relayertest.Options, edit func(*tracker.Config)) *atomic.Uint64 {
	head := new(atomic.Uint64)
	o.Tracker = func(c *tracker.Config) {
		edit(c)
		c.Events = relayertest.OnRound(c.Events, func(_ context.Context, h evm.Header) { head.Store(h.Number) })
	}
	return head
}

// commitTo commits blocks up to a number, and waits until the tracker has processed them.
func (f *fixture) commitTo(number uint64, head *atomic.Uint64) {
	f.t.Helper()
	for {
		n, err := f.chain.Client().BlockNumber(f.t.Context())
		require.NoError(f.t, err)
		if n >= number {
			break
		}
		f.chain.Commit()
	}
	require.Eventually(f.t, func() bool { return head.Load() >= number }, 2*time.Minute, 10*time.Millisecond)
}

// With the tag, a transaction becomes final once its block is finalized, at any depth, and not while nodes lack the tag.
// The test's chain finalizes each 32nd block.
func TestConfirm_FinalizedTag(t *testing.T) {
	var head *atomic.Uint64
	var own *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		own = before(t, o)
		head = followed(o, func(c *tracker.Config) { c.Finality = "finalized" })
	})
	tx := f.send()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(31, head)
	require.Equal(t, relayer.Mined, f.Reaches(t, tx, relayer.Mined).Status)
	own.SetRules(proxy.Rule{
		Name: "tag", Methods: []string{"eth_getBlockByNumber"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32602, Message: "invalid block tag"},
		When: func(c proxy.Call) bool {
			var params []any
			return json.Unmarshal(c.Params, &params) == nil && len(params) > 0 && params[0] == "finalized"
		},
	})
	f.commitTo(40, head)
	require.NotZero(t, own.Injected()["tag"])
	require.Equal(t, relayer.Mined, f.Reaches(t, tx, relayer.Mined).Status)
	own.Switch(false)
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}

// With the tag "safe" a transaction does not become final while nodes lack the tag, however deep it is.
func TestConfirm_SafeTag(t *testing.T) {
	var head *atomic.Uint64
	var own *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		own = before(t, o)
		head = followed(o, func(c *tracker.Config) { c.Finality = "safe" })
	})
	own.SetRules(proxy.Rule{
		Name: "tag", Methods: []string{"eth_getBlockByNumber"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32602, Message: "invalid block tag"},
		When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), `"safe"`) },
	})
	tx := f.send()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(10, head)
	require.NotZero(t, own.Injected()["tag"])
	require.Equal(t, relayer.Mined, f.Reaches(t, tx, relayer.Mined).Status)
	own.SetRules()
	f.commitUntil(tx, relayer.Confirmed)
	confirmed, err := f.Store.LastConfirmed(t.Context(), tx.From)
	require.NoError(t, err)
	require.WithinDuration(t, f.Reaches(t, tx, relayer.Confirmed).ConfirmedAt, confirmed, time.Second)
	f.settled()
}

// The anchor is as deep as configured, and deeper if nodes have finalized only an older block.
func TestMoveAnchor_Depth(t *testing.T) {
	for name, c := range map[string]struct{ depth, head, most, least uint64 }{
		"depth":     {100, 210, 110, 80},
		"finalized": {4, 63, 32, 16},
		"default":   {0, 210, 146, 120},
	} {
		t.Run(name, func(t *testing.T) {
			var head *atomic.Uint64
			f := setup(t, 1, func(o *relayertest.Options) {
				head = followed(o, func(cfg *tracker.Config) { cfg.AnchorDepth = c.depth })
			})
			for n := uint64(10); n < c.head; n += 10 {
				f.commitTo(n, head)
			}
			f.commitTo(c.head, head)
			known, err := f.Store.Chain(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, known.Anchor.Number, c.most)
			require.GreaterOrEqual(t, known.Anchor.Number, c.least)
		})
	}
}

// A block that only one of several endpoints has must not become the anchor, also if the others do not answer.
func TestMoveAnchor_NoMajority_IsNotMoved(t *testing.T) {
	for name, other := range map[string]evm.Anchor{
		"others have another block": {Endpoint: "another", Block: evm.Header{Number: 1, Hash: common.Hash{9}}},
		"others do not answer":      {Endpoint: "another", Err: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			others := &disputed{}
			var head *atomic.Uint64
			f := setup(t, 1, func(o *relayertest.Options) {
				head = followed(o, func(c *tracker.Config) { others.Chain, c.Chain = c.Chain, others })
			})
			others.add.Store(&other)
			before, err := f.Store.Chain(t.Context())
			require.NoError(t, err)
			f.commitTo(60, head)
			require.Positive(t, others.calls.Load())
			require.LessOrEqual(t, others.calls.Load(), int64(4), "a node that hangs does not delay each round")
			known, err := f.Store.Chain(t.Context())
			require.NoError(t, err)
			require.Equal(t, before.Anchor, known.Anchor)
			others.add.Store(nil)
			f.commitTo(100, head)
			known, err = f.Store.Chain(t.Context())
			require.NoError(t, err)
			require.Greater(t, known.Anchor.Number, before.Anchor.Number)
		})
	}
}

// disputed is a chain with another endpoint's answer.
type disputed struct {
	tracker.Chain
	add   atomic.Pointer[evm.Anchor]
	calls atomic.Int64
}

func (d *disputed) Anchors(ctx context.Context, number uint64, stragglers time.Duration) []evm.Anchor {
	d.calls.Add(1)
	anchors := d.Chain.Anchors(ctx, number, stragglers)
	if a := d.add.Load(); a != nil {
		anchors = append(anchors, *a)
	}
	return anchors
}

// A reorganization removes a block of final transactions. It is reported also if the new branch is shorter at first.
func TestFinalReorganization_BranchIsShorterAtFirst_IsReported(t *testing.T) {
	var head *atomic.Uint64
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Registry = prometheus.NewRegistry()
		head = followed(o, func(*tracker.Config) {})
	})
	f.commitTo(30, head) // the fork stays above the anchor
	parent := f.head()
	f.commitTo(34, head)
	tx := f.send()
	f.commitTo(35, head)
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(38, head)
	f.Reaches(t, tx, relayer.Confirmed)
	f.chain.Fork(parent)
	for number := uint64(31); number <= 36; number++ {
		f.chain.Commit()
		require.Eventually(t, func() bool { return head.Load() == number }, 2*time.Minute, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return f.valueOf("rollcall_relayer_final_reorgs_total") == 1 }, 2*time.Minute, 10*time.Millisecond)
}

// A reorganization removes a block of final transactions while no process has the lease. The next holder reports it, once.
func TestFinalReorganization_LeaseMoves_IsReported(t *testing.T) {
	var head *atomic.Uint64
	f := setup(t, 1, func(o *relayertest.Options) { head = followed(o, func(*tracker.Config) {}) })
	f.commitTo(30, head)
	parent := f.head()
	tx := f.send()
	f.commitTo(31, head)
	f.Reaches(t, tx, relayer.Mined)
	f.commitTo(34, head)
	f.Reaches(t, tx, relayer.Confirmed)
	f.Stop()
	f.chain.Fork(parent)
	f.chain.Rollback()
	for range 6 {
		f.chain.Commit()
	}

	for _, reports := range []float64{1, 0} {
		f.options.Registry = prometheus.NewRegistry()
		head = followed(&f.options, func(*tracker.Config) {})
		next := relayertest.Start(t, f.options)
		f.commitTo(37, head)
		require.Equal(t, reports, f.valueOf("rollcall_relayer_final_reorgs_total"))
		next.Stop()
	}
}

// valueOf returns a counter.
func (f *fixture) valueOf(name string) float64 {
	f.t.Helper()
	families, err := f.options.Registry.Gather()
	require.NoError(f.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.Fail(f.t, "there is no "+name)
	return 0
}
