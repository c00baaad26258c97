package tracker_test

import (
	"context"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// much returns a transaction that may use more gas than a node with the rule tooMuch puts into a block.
func (f *fixture) much() *relayer.Transaction {
	f.t.Helper()
	tx, err := f.Submit(f.t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), GasLimit: 2_000_000, Speed: relayer.Fast,
	}})
	require.NoError(f.t, err)
	return tx
}

var tooMuch = proxy.Rule{
	Name: "too much", Methods: []string{"eth_sendRawTransaction"},
	Fault: proxy.Fault{Kind: proxy.Refuse, Message: "exceeds block gas limit"},
	When:  proxy.Sends(func(tx *types.Transaction) bool { return tx.Gas() > 1_000_000 }),
}

// A node's block gas limit changes from block to block: a transaction that exceeds it now may be accepted later.
func TestMoreGasThanANodeAllows_LimitRises_IsMined(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(tooMuch)
	})
	tx := f.much()
	require.Eventually(t, func() bool { return node.Injected()["too much"] > 5 }, 2*time.Minute, 10*time.Millisecond)
	node.SetRules()
	f.commitUntil(tx, relayer.Confirmed)
	f.settled()
}

// A transaction that still exceeds the limit is given up after a while. No fee would make a node accept it, so it is not
// bumped.
func TestMoreGasThanANodeAllows_Lasts_IsGivenUp(t *testing.T) {
	f := setup(t, 1, func(o *relayertest.Options) {
		before(t, o).SetRules(tooMuch)
		o.Tracker = func(c *tracker.Config) {
			c.StuckAfter, c.BumpAfter = time.Second, map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		}
	})
	tx := f.much()
	failed := f.commitUntil(tx, relayer.Failed)
	require.Equal(t, "exceeds block gas", failed.StatusReason)
	attempts, err := f.Store.Attempts(t.Context(), tx.ID)
	require.NoError(t, err)
	for _, a := range attempts[1:] {
		require.Equal(t, relayer.PurposeNoop, a.Purpose)
	}
	f.settled()
}

// One node rejects a transaction for good, and another answers no send. The transaction is not bumped, and after a longer
// while it is given up, because it blocks its key.
func TestMoreGasThanANodeAllows_OtherEndpointFailsSends_IsGivenUp(t *testing.T) {
	var first, other *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node := o.RPC[0]
		first = before(t, o)
		o.RPC = []string{node}
		other = before(t, o)
		o.RPC = []string{first.URL(), other.URL()}
		o.Tracker = func(c *tracker.Config) {
			c.StuckAfter, c.BumpAfter = 100*time.Millisecond, map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		}
	})
	first.SetRules(tooMuch)
	broken := refusals["sends"]
	broken.Name, broken.Fault.Kind = "sends", proxy.Refuse
	other.SetRules(broken)
	tx := f.much()
	failed := f.commitUntil(tx, relayer.Failed)
	require.Equal(t, "exceeds block gas", failed.StatusReason)
	attempts, err := f.Store.Attempts(t.Context(), tx.ID)
	require.NoError(t, err)
	require.GreaterOrEqual(t, attempts[1].CreatedAt.Sub(attempts[0].CreatedAt), 12*100*time.Millisecond)
	for _, a := range attempts[1:] {
		require.Equal(t, relayer.PurposeNoop, a.Purpose)
	}
	f.settled()
}

// Giving up a transaction is logged and counted once, however long its no-op takes.
func TestGivenUp_NoopTakesLong_IsReportedOnce(t *testing.T) {
	var node *proxy.Proxy
	var remote *signertest.Fake
	reg := prometheus.NewRegistry()
	never := tooMuch
	never.Fault.Message = "intrinsic gas too low"
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(never)
		remote, o.Ring = signertest.Faked(t, o.Ring)
		o.Registry = reg
		o.Sender = func(c *sender.Config) { c.MaxPause = c.Pause }
		o.Tracker = func(c *tracker.Config) { c.StuckAfter = time.Second }
	})
	counter := func(name string) (sum float64) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == name {
				for _, m := range family.Metric {
					sum += m.Counter.GetValue()
				}
			}
		}
		return sum
	}
	givenUp := func() float64 { return counter("rollcall_relayer_permanently_rejected_total") }
	arrived, released := make(chan struct{}), make(chan struct{})
	var signed atomic.Int32
	remote.Before(func(ctx context.Context, _ [32]byte) error {
		switch signed.Add(1) {
		case 1: // the transaction
			return nil
		case 2: // its no-op
			close(arrived)
		}
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	tx := f.much()
	<-arrived
	rounds := counter("rollcall_relayer_tracker_rounds_total")
	sent := node.Injected()["too much"]
	require.Eventually(t, func() bool { return counter("rollcall_relayer_tracker_rounds_total") > rounds+20 }, 2*time.Minute, 10*time.Millisecond)
	require.InDelta(t, 1, givenUp(), 0)
	require.LessOrEqual(t, node.Injected()["too much"], sent+1, "the bytes were sent again although they were given up, and not only by a round that was under way")
	close(released)
	f.commitUntil(tx, relayer.Failed)
	require.InDelta(t, 1, givenUp(), 0)
	f.settled()
}
