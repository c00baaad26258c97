package crashtest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

var sends = []string{"eth_sendRawTransaction"}

// limitsCalls returns the rule of a provider that allows n calls in a second, and counts each item of a batch.
func limitsCalls(n int) proxy.Rule {
	return proxy.Rule{
		Name: "limits calls", When: proxy.Beyond(n), Permanent: true,
		Fault: proxy.Fault{Kind: proxy.Refuse, Code: 429, Message: "your plan's calls per second are exceeded"},
	}
}

// Providers refuse batches in different forms.
var (
	refusesLargeBatches = proxy.Rule{
		Name: "refuses large batches", When: proxy.Larger(3), Permanent: true,
		Fault: proxy.Fault{Kind: proxy.Reject, Status: 500, Code: 31, Message: "Batch of more than 3 requests are not allowed on free tier"},
	}
	refusesBatches = proxy.Rule{
		Name: "refuses batches", When: proxy.Larger(1), Permanent: true,
		Fault: proxy.Fault{Kind: proxy.Reject, Code: -32005, Message: "Batched requests are not supported"},
	}
)

// forgets returns the rule of a provider that accepts transactions and then has none of them, with a probability.
func forgets(probability float64) proxy.Rule {
	return proxy.Rule{Name: "forgets", Methods: sends, Probability: probability, Permanent: true, Fault: proxy.Fault{Kind: proxy.Forget}}
}

// A provider allows 25 calls a second, and no more for a relayer with 60 transactions than for another.
func TestProvider_LimitsCalls_EachIsExecutedOnce(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{
		keys: 4, relayers: 1, inFlight: 64, confirmations: 2, geth: pool(1000), single: true,
		env: []string{"RELAYER_POLL_INTERVAL=1s"}, rules: [endpoints][]proxy.Rule{{limitsCalls(25)}},
	})
	c := sc.storm(60, 8, plan{length: 2 * time.Second}, 2*patience)
	require.NotZero(t, c.struck()["limits calls"])
}

func TestProvider_RefusesBatches_EachIsExecutedOnce(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{
		keys: 4, relayers: 2, inFlight: 64, confirmations: 2, geth: pool(1000),
		rules: [endpoints][]proxy.Rule{{refusesLargeBatches}, {refusesBatches}},
	})
	c := sc.storm(200, 16, plan{length: 2 * time.Second}, 2*patience)
	require.NotZero(t, c.struck()["refuses large batches"])
	require.NotZero(t, c.struck()["refuses batches"])
}

// One provider forgets all transactions that it accepts, the other one in ten.
func TestProvider_ForgetsTransactions_EachIsExecutedOnce(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{
		keys: 4, relayers: 2, inFlight: 64, confirmations: 2, geth: pool(1000),
		rules: [endpoints][]proxy.Rule{{forgets(1)}, {forgets(0.1)}},
	})
	c := sc.storm(200, 16, plan{length: 2 * time.Second}, 2*patience)
	require.Greater(t, c.struck()["forgets"], uint64(20))
}

// idleCalls is how many calls a second an idle relayer makes at most, on a chain that makes a block each second.
const idleCalls = 5

// A relayer without transactions makes few calls, and still processes new ones at once.
func TestIdle_MakesFewCalls(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	count := proxy.Rule{
		Name: "count", Permanent: true, Fault: proxy.Fault{Kind: proxy.Refuse},
		When: func(proxy.Call) bool { calls.Add(1); return false },
	}
	sc := open(t, setting{
		keys: 8, relayers: 1, inFlight: 64, confirmations: 2, geth: pool(1000), single: true,
		env: []string{"RELAYER_POLL_INTERVAL=1s", "RELAYER_SUBSCRIBE_URL="}, rules: [endpoints][]proxy.Rule{{count}},
	})
	v := sc.truth()
	l := sc.load(20)
	l.clients, l.pace = 4, 10*time.Millisecond
	l.run(t.Context(), sc.random)
	v.settled(patience)
	blocks := func() uint64 {
		n, err := v.chain.BlockNumber(t.Context())
		require.NoError(t, err)
		return n
	}
	from := blocks()
	calls.Store(0)
	began := time.Now()
	eventually(t, 2*patience, func() bool { return blocks() >= from+30 }, "the chain makes no blocks")
	made, seconds := calls.Load(), time.Since(began).Seconds()
	t.Logf("%d calls in %.0f s", made, seconds)
	require.NotZero(t, made)
	require.LessOrEqual(t, float64(made), idleCalls*seconds)
	require.True(t, healthy(t, sc.fleet[0].url()))

	more := sc.load(5)
	more.clients, more.pace = 1, 10*time.Millisecond
	more.run(t.Context(), sc.random)
	v.settled(patience)
}
