package tracker_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// If one endpoint of three (the preferred one) has another chain, it is neither read nor sent to, and the others are used.
// If two have, nothing is sent. An endpoint that has the recorded chain again is used again.
func TestLineage_ForeignEndpoint_IsExcludedWhileMajorityMatches(t *testing.T) {
	foreign := testchain.Simulated(t, testchain.SimulatedOptions{})
	for range 40 {
		foreign.Commit() // far above the others, which must not count as lagging
	}
	var all []*proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node := o.RPC[0]
		o.RPC = nil
		for range 3 {
			p, err := proxy.Open(proxy.Config{HTTP: node})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			// The rule only counts calls.
			p.SetRules(proxy.Rule{Name: "used", Fault: proxy.Fault{Kind: proxy.Delay}, Methods: []string{
				"eth_sendRawTransaction", "eth_getTransactionCount", "eth_estimateGas", "eth_feeHistory", "eth_getTransactionReceipt", "eth_getBalance",
			}})
			all = append(all, p)
			o.RPC = append(o.RPC, p.URL())
		}
	})
	f.commitUntil(f.send(), relayer.Confirmed)
	becomes := func(ready bool, reason string) {
		t.Helper()
		require.Eventually(t, func() bool {
			h := f.Health()
			return h.Ready == ready && strings.Contains(h.Reason, reason)
		}, 2*time.Minute, 10*time.Millisecond)
	}
	all[0].SetNode(foreign.URL(), "")
	becomes(true, "excluded: ")
	used := all[0].Injected()["used"]
	f.commitUntil(f.send(), relayer.Confirmed)
	require.Equal(t, used, all[0].Injected()["used"], "the foreign endpoint was used")

	all[1].SetNode(foreign.URL(), "")
	becomes(false, "which is no majority")
	all[1].SetNode(f.chain.URL(), "")
	becomes(true, "excluded: ")
	require.Eventually(t, func() bool { return f.Client.Status().Endpoints[1].OK }, 2*time.Minute, 10*time.Millisecond)
	all[0].SetNode(f.chain.URL(), "")
	require.Eventually(t, func() bool { return f.Client.Status().Endpoints[0].OK }, 2*time.Minute, 10*time.Millisecond)
	used = all[0].Injected()["used"]
	f.commitUntil(f.send(), relayer.Confirmed)
	require.Greater(t, all[0].Injected()["used"], used)
	f.settled()
}

// One endpoint of three (the preferred one) is of another chain when a relayer starts for the first time, and no chain is
// recorded yet.
func TestChainIdentity_ForeignEndpointAtFirstStart_MajorityDecides(t *testing.T) {
	foreign := testchain.Simulated(t, testchain.SimulatedOptions{})
	for name, other := range map[string]struct {
		rules  []proxy.Rule
		reason string
	}{
		"genesis block": {reason: "excluded: "},
		"chain id": {
			rules:  []proxy.Rule{{Name: "id", Methods: []string{"eth_chainId"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0x1"`}}},
			reason: "chain id is 1, not 1337",
		},
	} {
		t.Run(name, func(t *testing.T) {
			odd, err := proxy.Open(proxy.Config{HTTP: foreign.URL()})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, odd.Close()) })
			odd.SetRules(other.rules...)
			reg := prometheus.NewRegistry()
			f := setup(t, 1, func(o *relayertest.Options) {
				second, err := proxy.Open(proxy.Config{HTTP: o.RPC[0]})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, second.Close()) })
				o.RPC = []string{odd.URL(), o.RPC[0], second.URL()}
				o.Chain = func(c *evm.Config) { c.Metrics = evm.NewMetrics(reg) }
			})
			f.commitUntil(f.send(), relayer.Confirmed)
			known, err := f.Store.Chain(t.Context())
			require.NoError(t, err)
			genesis, err := f.chain.Client().HeaderByNumber(t.Context(), common.Big0)
			require.NoError(t, err)
			require.Equal(t, genesis.Hash(), known.Genesis)
			require.Eventually(t, func() bool { return strings.Contains(f.Health().Reason, other.reason) }, 2*time.Minute, 10*time.Millisecond)
			require.True(t, f.Health().Ready)
			var excluded []string
			families, err := reg.Gather()
			require.NoError(t, err)
			for _, family := range families {
				for _, m := range family.GetMetric() {
					if family.GetName() == "rollcall_rpc_endpoint_excluded" && m.GetGauge().GetValue() == 1 {
						excluded = append(excluded, "http://"+m.GetLabel()[0].GetValue())
					}
				}
			}
			require.Equal(t, []string{odd.URL()}, excluded)
		})
	}
}

// exclusions records calls of Exclude.
type exclusions map[string]evm.Exclusion

func (x exclusions) Exclude(endpoint string, e evm.Exclusion) {
	if x[endpoint] = e; e == (evm.Exclusion{}) {
		delete(x, endpoint)
	}
}

// A majority of the responding nodes decides. An excluded node that stops responding stays excluded.
func TestLineage_Quorum(t *testing.T) {
	t.Parallel()
	here, elsewhere := sight{number: 40, branch: 1}, sight{number: 40, branch: 2}
	another := store.New(testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t), store.Config{ChainID: 1337, Pool: relayertest.PoolID})
	_, err := another.InitChain(t.Context(), here.block(0).Hash)
	require.NoError(t, err)
	require.NoError(t, another.MoveAnchor(t.Context(), 0, store.Block{Number: 9, Hash: here.block(9).Hash}))
	anchor := map[byte]evm.Anchor{
		'm': {Genesis: here.block(0).Hash, Block: here.block(9)},           // matches
		'r': {Genesis: here.block(0).Hash, Block: elsewhere.block(9)},      // reorganized
		'g': {Genesis: elsewhere.block(0).Hash, Block: elsewhere.block(9)}, // another genesis block
		'b': {Genesis: here.block(0).Hash},                                 // behind
		'd': {Err: errors.New("connection refused")},
	}
	for _, c := range []struct {
		nodes, excluded, err string // nodes and excluded by place
	}{
		{"m", "", ""},
		{"mm", "", ""},
		{"mr", "", "1 of 2 nodes that answer have the recorded history, which is no majority"},
		{"rm", "", "resync --reorganized"},
		{"gm", "", "resync --new-chain"},
		{"mmr", "2", ""},
		{"gmm", "0", ""},
		{"rmg", "", "1 of 3 nodes"},
		{"rmd", "", "1 of 2 nodes"},
		{"mdd", "1?2?", ""},
		{"bm", "0", ""},
		{"b", "", "no node has block 9"},
		{"bd", "", "no node has block 9"},
		{"r", "", "resync --reorganized"},
		{"rr", "", "resync --reorganized"},
		{"mmr mmd", "2", ""},
		{"mmr dmr", "2", "1 of 2 nodes"},
		{"mmr mmm", "", ""},
		{"mmd mmr", "2", ""},
		{"mmm mmd", "", ""},
	} {
		o, x := &oracle{onCall: func() {}}, exclusions{}
		g := tracker.NewChainIdentity(o, another, slog.New(slog.DiscardHandler), x)
		for nodes := range strings.SplitSeq(c.nodes, " ") {
			o.anchors = nil
			for i, kind := range []byte(nodes) {
				a := anchor[kind]
				a.Endpoint = fmt.Sprint(i)
				o.anchors = append(o.anchors, a)
			}
			err = g.Check(t.Context())
		}
		if c.err == "" {
			require.NoError(t, err, c.nodes)
		} else {
			require.ErrorContains(t, err, c.err, c.nodes)
		}
		excluded := ""
		for i := range 3 {
			switch e, out := x[fmt.Sprint(i)]; {
			case out && e.Undecided:
				excluded += fmt.Sprint(i, "?")
			case out:
				excluded += fmt.Sprint(i)
			}
		}
		require.Equal(t, c.excluded, strings.ReplaceAll(excluded, " ", ""), c.nodes)
	}
}
