package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/log"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/evm"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated nodes
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

var topicA, topicB, stranger = common.Hash{0xa}, common.Hash{0xb}, common.Hash{0xc}

// nodes is a chain with logs behind endpoints that a test can make lie.
type nodes struct {
	t       *testing.T
	chain   *testchain.Chain
	proxies []*proxy.Proxy
	emitter common.Address
	head    uint64
}

// newNodes makes a chain whose blocks have no, few, or many logs.
func newNodes(t *testing.T, n int) *nodes {
	t.Helper()
	f := &nodes{t: t, chain: testchain.Simulated(t, testchain.SimulatedOptions{})}
	backend, key := contract.Sealing{Client: f.chain.Client(), Seal: func() { f.chain.Commit() }}, f.chain.Accounts[0].Key
	var err error
	f.emitter, err = escrowchain.DeployEmitter(t.Context(), backend, key)
	require.NoError(t, err)
	for i := range 24 {
		topics := []common.Hash{[]common.Hash{topicA, topicB, stranger}[i%3], {byte(i)}}
		times := 1 + i%4
		if i == 10 {
			times = 60
		}
		_, err := contract.Send(t.Context(), backend, key, contract.Transaction{To: &f.emitter, Data: escrowchain.Emit(topics, []byte{byte(i)}, times), Gas: 1_000_000})
		require.NoError(t, err)
		if i%5 == 0 {
			f.chain.Commit()
		}
	}
	f.head, err = f.chain.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	for range n {
		p, err := proxy.Open(proxy.Config{HTTP: f.chain.URL(), WS: f.chain.WSURL()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		f.proxies = append(f.proxies, p)
	}
	return f
}

// confirmer returns a confirmer that uses the endpoints in their order.
func (f *nodes) confirmer() *confirmer {
	f.t.Helper()
	cfg := evm.Config{ChainID: testchain.ChainID, Timeout: 20 * time.Second}
	for _, p := range f.proxies {
		cfg.Endpoints = append(cfg.Endpoints, p.URL())
	}
	client, err := evm.Open(cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(client.Close)
	return &confirmer{
		lists: &lists{client: client, topics: []common.Hash{topicA, topicB}, contracts: func() []common.Address { return []common.Address{{1}, f.emitter, {2}} },
			factory: func(common.Address) bool { return false }, known: func(common.Address) bool { return true }},
		alone: len(f.proxies) == 1, metrics: newMetrics(nil), log: slog.New(slog.DiscardHandler),
	}
}

// want returns the true logs as the chain itself has them.
func (f *nodes) want(from, to uint64) (all []string) {
	f.t.Helper()
	logs, err := f.chain.Client().FilterLogs(f.t.Context(), ethereum.FilterQuery{
		FromBlock: new(big.Int).SetUint64(from), ToBlock: new(big.Int).SetUint64(to), Topics: [][]common.Hash{{topicA, topicB}},
	})
	require.NoError(f.t, err)
	for _, l := range logs {
		all = append(all, fmt.Sprint(l.BlockNumber, l.BlockHash, l.TxHash, l.Index, l.Topics, hexutil.Encode(l.Data), l.Address))
	}
	return all
}

func got(logs []evm.Log) (all []string) {
	for _, l := range logs {
		all = append(all, fmt.Sprint(l.BlockNumber, l.BlockHash, l.TxHash, l.Index, l.Topics, hexutil.Encode(l.Data), l.Contract))
	}
	return all
}

// lies are answers of one endpoint that are false, or refusals.
var lies = map[string]proxy.Rule{
	"empty":                {Fault: proxy.AlterList(func([]map[string]any) []map[string]any { return []map[string]any{} })},
	"the first is missing": {Fault: proxy.AlterList(func(l []map[string]any) []map[string]any { return l[min(1, len(l)):] })},
	"silently capped":      {Fault: proxy.AlterList(func(l []map[string]any) []map[string]any { return l[:min(5, len(l))] })},
	"repeated":             {Fault: proxy.AlterList(func(l []map[string]any) []map[string]any { return slices.Concat(l, l) })},
	"removed": {Fault: proxy.AlterList(func(l []map[string]any) []map[string]any {
		for _, one := range l {
			one["removed"] = true
		}
		return l
	})},
	"of another block": {Fault: proxy.AlterList(func(l []map[string]any) []map[string]any {
		for _, one := range l {
			one["blockHash"] = common.Hash{9}
		}
		return l
	})},
	"other data": {Fault: proxy.AlterList(func(l []map[string]any) []map[string]any {
		if len(l) > 0 {
			l[0]["data"] = "0x99"
		}
		return l
	})},
	"null":           {Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}},
	"internal error": {Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"}},
	"lost":           {Fault: proxy.Fault{Kind: proxy.Lose}},
	"garbled":        {Fault: proxy.Fault{Kind: proxy.Garble}},
	"truncated":      {Fault: proxy.Fault{Kind: proxy.Truncate}},
}

// E3: whatever one of several endpoints answers, the logs are those of the chain.
func TestConfirm_OneEndpointLies_LogsAreTrue(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 2)
	for name, lie := range lies {
		for i := range f.proxies {
			lie.Name, lie.Methods = name, []string{logsMethod}
			for _, p := range f.proxies {
				p.SetRules()
			}
			f.proxies[i].SetRules(lie)
			logs, err := f.confirmer().read(t.Context(), 1, f.head)
			require.NoError(t, err, "%s at endpoint %d", name, i)
			require.Equal(t, f.want(1, f.head), got(logs), "%s at endpoint %d", name, i)
			require.Positive(t, f.proxies[i].Injected()[name])
		}
	}
}

// E3: while an endpoint is limited, nothing shows that the other one is not on a branch of its own.
func TestConfirm_OneEndpointLimited_Waits(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 2)
	f.proxies[0].SetRules(proxy.Rule{Methods: []string{logsMethod}, Fault: proxy.Fault{Kind: proxy.Status, Code: 429}})
	_, err := f.confirmer().read(t.Context(), 1, f.head)
	require.ErrorIs(t, err, errUnconfirmed)
	f.proxies[0].SetRules()
	require.Eventually(t, func() bool {
		logs, err := f.confirmer().read(t.Context(), 1, f.head)
		return err == nil && slices.Equal(f.want(1, f.head), got(logs))
	}, patience, 5*time.Millisecond)
}

// E3: the only endpoint proves its lists by receipts.
func TestConfirm_SingleEndpointLies_ReceiptsProve(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 1)
	for _, name := range []string{"empty", "silently capped", "other data"} {
		lie := lies[name]
		lie.Methods = []string{logsMethod}
		f.proxies[0].SetRules(lie)
		logs, err := f.confirmer().read(t.Context(), 1, f.head)
		require.NoError(t, err, name)
		require.Equal(t, f.want(1, f.head), got(logs), name)
	}
}

// E3: where the root of a chain's receipts leaves out some, the list of the only endpoint counts if its receipts have the same logs.
func TestConfirm_SingleEndpointDisproven_CountsUnlessReceiptsDiffer(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 1)
	more := proxy.Rule{Methods: []string{"eth_getBlockReceipts"}, Fault: proxy.AlterList(func(l []map[string]any) []map[string]any {
		system := maps.Clone(l[len(l)-1])
		system["logs"], system["transactionIndex"] = []any{}, hexutil.Uint64(len(l))
		return append(l, system)
	})}
	f.proxies[0].SetRules(more)
	logs, err := f.confirmer().read(t.Context(), 1, f.head)
	require.NoError(t, err)
	require.Equal(t, f.want(1, f.head), got(logs))
	f.proxies[0].SetRules(more, proxy.Rule{Methods: []string{logsMethod}, Fault: lies["other data"].Fault})
	_, err = f.confirmer().read(t.Context(), 1, f.head)
	require.ErrorIs(t, err, errUnconfirmed)
}

// E3: receipts that are false prove nothing, so nothing is believed.
func TestConfirm_ListAndReceiptsLie_Unconfirmed(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 2)
	f.proxies[0].SetRules(
		proxy.Rule{Methods: []string{logsMethod}, Fault: lies["empty"].Fault},
		proxy.Rule{Methods: []string{"eth_getBlockReceipts"}, Fault: proxy.AlterList(func(l []map[string]any) []map[string]any {
			for _, receipt := range l {
				receipt["logs"] = []any{}
			}
			return l
		})},
	)
	f.proxies[1].SetRules(proxy.Rule{Methods: []string{"eth_getBlockReceipts", "eth_getTransactionReceipt"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"}})
	_, err := f.confirmer().read(t.Context(), 1, f.head)
	require.ErrorIs(t, err, errUnconfirmed)
	f.proxies[1].SetRules()
	logs, err := f.confirmer().read(t.Context(), 1, f.head)
	require.NoError(t, err)
	require.Equal(t, f.want(1, f.head), got(logs))
}

// E4: limits of providers cost queries, and no logs.
func TestConfirm_Limits_AllLogs(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 2)
	refuse := func(code int, message string, when func(proxy.Call) bool) proxy.Rule {
		return proxy.Rule{Methods: []string{logsMethod}, When: when, Fault: proxy.Fault{Kind: proxy.Refuse, Code: code, Message: message}}
	}
	noAddress := func(c proxy.Call) bool { return !proxy.Asks(`"address"`)(c) }
	for name, rule := range map[string]proxy.Rule{
		"blocks":           refuse(-32600, "eth_getLogs is limited to a 3 block range", func(c proxy.Call) bool { return c.Blocks() > 3 }),
		"results":          refuse(-32005, "query returned more than 10000 results", func(c proxy.Call) bool { return c.Blocks() > 1 }),
		"a block":          refuse(-32005, "query returned more than 10000 results", func(proxy.Call) bool { return true }),
		"addresses needed": refuse(-32602, "Please specify an address in your request or, to remove restrictions, order a dedicated full node", noAddress),
	} {
		for _, p := range f.proxies {
			p.SetRules(rule)
		}
		logs, err := f.confirmer().read(t.Context(), 1, f.head)
		require.NoError(t, err, name)
		require.Equal(t, f.want(1, f.head), got(logs), name)
	}
}

// Refusals narrow the queries of the endpoint that refuses, and answers widen them again.
func TestResize_Step_FollowsTheLogs(t *testing.T) {
	t.Parallel()
	w := Watcher{span: firstBlocks}
	for _, step := range []struct {
		blocks uint64
		logs   int
		next   uint64
	}{
		{100, 0, 200}, {200, rangeLogs / 2, 400}, {400, rangeLogs/2 + 1, 400}, {30, 0, 400}, // 30: the chain had no more
		{400, 2 * rangeLogs, 200}, {200, 1_000 * rangeLogs, 1}, {1, 1, 2}, {2, rangeLogs, 2},
	} {
		w.resize(step.blocks, step.logs)
		require.Equal(t, step.next, w.span, "%+v", step)
	}
	for range 20 {
		w.resize(w.span, 0)
	}
	require.Equal(t, uint64(rangeBlocks), w.span)
}

func TestLists_Span_FollowsTheAnswers(t *testing.T) {
	t.Parallel()
	l := &lists{}
	l.answered("a", firstSpan)
	require.Equal(t, uint64(2*firstSpan), l.of("a").span)
	require.Equal(t, uint64(firstSpan), l.of("b").span)
	for range 10 {
		l.answered("a", l.of("a").span)
	}
	require.Equal(t, uint64(maxSpan), l.of("a").span)
	require.True(t, l.refused(maxSpan, &evm.LogsLimitError{Endpoint: "a", Limit: evm.LimitResults}))
	require.Equal(t, uint64(maxSpan/2), l.of("a").span)
	require.True(t, l.refused(maxSpan/2, &evm.LogsLimitError{Endpoint: "a", Limit: evm.LimitRange, Blocks: 2000}))
	l.answered("a", 2000)
	require.Equal(t, uint64(2000), l.of("a").span, "a range limit holds for all queries")
	require.False(t, l.refused(1, &evm.LogsLimitError{Endpoint: "a", Limit: evm.LimitSize}))
	require.True(t, l.refused(5, &evm.LogsLimitError{Endpoint: "a", Limit: evm.LimitNoAddress}))
	require.False(t, l.refused(5, &evm.LogsLimitError{Endpoint: "a", Limit: evm.LimitNoAddress}))
	require.True(t, l.refused(5, &evm.LogsLimitError{Endpoint: "a", Limit: evm.LimitAddresses}))
	require.Equal(t, maxAddresses/2, l.of("a").contracts)

	// A refusal may have been a fault.
	l.limits["a"].until = time.Now()
	require.Equal(t, uint64(firstSpan), l.of("a").span)
	require.False(t, l.of("a").byContract)
	require.Equal(t, uint64(maxSpan), l.of("a").most)
}

// A list does not grow without a bound: the range is read in parts. One block is read whole.
func TestConfirm_MoreThanAListHolds_NamesThePart(t *testing.T) {
	t.Parallel()
	f := newNodes(t, 2)
	c := f.confirmer()
	all, err := c.read(t.Context(), 1, f.head)
	require.NoError(t, err)
	c.maxBytes = sizeOf(&all[0])
	_, err = c.read(t.Context(), 1, f.head)
	tooMany, ok := errors.AsType[*tooManyError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, &tooManyError{1, f.head}, tooMany)
	require.Equal(t, f.head/2, tooMany.fewer())
	var parts []string
	for n := uint64(1); n <= f.head; n++ {
		logs, err := c.read(t.Context(), n, n)
		require.NoError(t, err)
		parts = append(parts, got(logs)...)
	}
	require.Equal(t, got(all), parts)
}
