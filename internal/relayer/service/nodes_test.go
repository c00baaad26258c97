package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// behind puts a proxy before the node.
func (f *fixture) behind(t *testing.T) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Open(proxy.Config{HTTP: f.options.RPC[0]})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	f.options.RPC = []string{p.URL()}
	return p
}

func refuse(code int, message string, methods ...string) proxy.Rule {
	return proxy.Rule{Name: message, Methods: methods, Fault: proxy.Fault{Kind: proxy.Refuse, Code: code, Message: message}}
}

// A node's own failure is not reported as the caller's mistake, whatever its error code.
func TestSubmit_EstimateFailsAtTheNode_Unavailable(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	r := f.start(t)
	for _, rule := range []proxy.Rule{
		refuse(-32000, "missing trie node 0a1b (path ) state 0x0a1b is not available", "eth_estimateGas"),
		refuse(-32603, "internal error", "eth_estimateGas"),
		refuse(-32000, "header not found", "eth_estimateGas"),
		refuse(-32601, "the method does not exist", "eth_estimateGas"),
		refuse(-32005, "daily request count exceeded", "eth_estimateGas"),
	} {
		node.SetRules(rule)
		_, err := r.Submit(t.Context(), f.submission())
		require.ErrorIs(t, err, relayer.ErrUnavailable, rule.Name)
	}
	for _, rule := range []proxy.Rule{
		refuse(-32000, "gas required exceeds allowance (30000000)", "eth_estimateGas"),
		refuse(-32000, "invalid opcode: INVALID", "eth_estimateGas"),
		refuse(-32602, "invalid argument", "eth_estimateGas"),
	} {
		node.SetRules(rule)
		// After an earlier rate-limit error the method is not called for a second.
		require.Eventually(t, func() bool {
			_, err := r.Submit(t.Context(), f.submission())
			_, invalid := errors.AsType[*relayer.InvalidError](err)
			return invalid
		}, 2*time.Minute, 100*time.Millisecond, rule.Name)
	}
	node.SetRules()
	_, err := r.Submit(t.Context(), f.submission())
	require.NoError(t, err)
}

// problem returns what a component of /health reports.
func problem(r *relayertest.Relayer, component string) (problem string, degraded bool) {
	for _, c := range r.Health().Components {
		if c.Name == component {
			return c.Problem, c.Degraded
		}
	}
	return "", false
}

func awaitProblem(t *testing.T, r *relayertest.Relayer, component, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		now, _ := problem(r, component)
		return strings.Contains(now, want) && r.Health().Ready == (want == "")
	}, 2*time.Minute, 20*time.Millisecond)
}

// The tracking process reports failing rounds, although its node returns its head, until they succeed.
func TestHealth_RoundsFail_NotReady(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	r := f.start(t, func(c *service.Config) { c.RoundsWithin = 2 * time.Second })
	node.SetRules(refuse(-32603, "internal error", "eth_getTransactionCount"))
	awaitProblem(t, r, "rounds", "internal error")
	node.SetRules()
	awaitProblem(t, r, "rounds", "")
}

// A round that hangs counts as failing.
func TestHealth_RoundHangs_NotReady(t *testing.T) {
	f := setup(t, 1)
	nodes := &hanging{hung: make(chan struct{}), resumed: make(chan struct{})}
	f.options.Tracker = func(c *tracker.Config) {
		nodes.Chain, c.Chain = c.Chain, nodes
	}
	r := f.start(t, func(c *service.Config) { c.RoundsWithin = 2 * time.Second })
	close(nodes.hung)
	awaitProblem(t, r, "rounds", "for")
	close(nodes.resumed)
	awaitProblem(t, r, "rounds", "")
}

// One of two processes tracks the chain, and both stay ready for longer than either would without rounds.
func TestHealth_AnotherProcessFollows_Ready(t *testing.T) {
	f := setup(t, 1)
	f.options.Tracker = func(c *tracker.Config) { c.Term = time.Minute } // the lease does not move on a busy machine
	const within = 3 * time.Second
	edit := func(c *service.Config) { c.RoundsWithin = within }
	first, second := f.start(t, edit), f.start(t, edit)
	lease := func() int64 {
		epoch, held, err := first.Store.TrackerLease().Current(t.Context())
		require.NoError(t, err)
		require.True(t, held)
		return epoch
	}
	epoch, began := lease(), time.Now()
	require.Eventually(t, func() bool { // a delayed round or check may be reported for a while
		one, two := first.Health(), second.Health()
		return one.Ready && two.Ready && one.At.Sub(began) > 2*within && two.At.Sub(began) > 2*within
	}, 2*time.Minute, 20*time.Millisecond)
	reported := 0 // checks of a second
	const samples = 40
	for range samples {
		one, _ := problem(first, "rounds")
		two, _ := problem(second, "rounds")
		if one+two != "" {
			reported++
		}
		<-time.After(50 * time.Millisecond)
	}
	require.Less(t, reported, samples/2, "a process without rounds of its own becomes not ready again and again")
	require.Equal(t, epoch, lease(), "one process had the lease all the time")
}

// hanging is a chain that responds at first. Once it hangs, reads wait until it is resumed.
type hanging struct {
	tracker.Chain
	hung, resumed chan struct{}
}

func (h *hanging) Latest(ctx context.Context, except ...string) (tracker.View, error) {
	select {
	case <-h.hung:
	default:
		return h.Chain.Latest(ctx, except...)
	}
	select {
	case <-h.resumed:
		return h.Chain.Latest(ctx, except...)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Nothing can be signed while the fees are unknown. The last known fees are used during a minute of failures.
func TestHealth_FeesUnknown_NotReady(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	node.SetRules(refuse(-32603, "internal error", "eth_gasPrice"))
	r := relayertest.Launch(t, f.options)
	require.Eventually(t, func() bool {
		now, _ := problem(r, "fees")
		return strings.Contains(now, "internal error")
	}, 2*time.Minute, 20*time.Millisecond)
	require.False(t, r.Health().Ready)
	node.SetRules()
	require.Eventually(t, func() bool { return r.Health().Ready }, 2*time.Minute, 20*time.Millisecond)
}

// An endpoint that fails one method of many is reported, and does not make the relayer unready.
func TestHealth_EndpointFailsOneMethod_Degraded(t *testing.T) {
	f := setup(t, 1)
	node := f.behind(t)
	r := f.start(t)
	node.SetRules(refuse(-32603, "internal error", "eth_estimateGas"))
	_, err := r.Submit(t.Context(), f.submission())
	require.True(t, evm.IsNoAnswer(err))
	require.Eventually(t, func() bool {
		now, degraded := problem(r, "rpc")
		return strings.Contains(now, "eth_estimateGas") && strings.Contains(now, "internal error") && degraded && r.Health().Ready
	}, 2*time.Minute, 20*time.Millisecond)
}

// The node answers everything but sends. The relayer reports it once a send has failed for a while. It stays usable where
// the node's answer may be about the transaction.
func TestHealth_SendsFail_NotReady(t *testing.T) {
	for name, c := range map[string]struct {
		fault    proxy.Fault
		degraded bool
	}{
		"no answer": {proxy.Fault{Kind: proxy.Cut}, false},
		"missing":   {proxy.Fault{Kind: proxy.Refuse, Code: -32601, Message: "the method does not exist"}, false},
		"internal":  {proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, 1)
			node := f.behind(t)
			r := f.start(t, func(c *service.Config) { c.RoundsWithin = time.Second })
			node.SetRules(proxy.Rule{Name: "sends", Methods: []string{"eth_sendRawTransaction"}, Fault: c.fault})
			tx := r.Send(t, f.chain.Accounts[0].Address, 1, nil)
			require.Eventually(t, func() bool {
				now, degraded := problem(r, "sends")
				return strings.Contains(now, "no transaction has reached a node for ") && degraded == c.degraded && r.Health().Ready == c.degraded
			}, 2*time.Minute, 20*time.Millisecond)
			node.SetRules()
			r.Reaches(t, tx, relayer.Broadcasted)
			require.Eventually(t, func() bool {
				now, _ := problem(r, "sends")
				return now == "" && r.Health().Ready
			}, 2*time.Minute, 20*time.Millisecond)
		})
	}
}
