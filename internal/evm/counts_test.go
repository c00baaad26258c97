package evm

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// Endpoints of one chain report equal counts at one block. An endpoint of another chain does not have the block, and a
// stopped endpoint reports an error.
func TestCounts_OtherChainOrStopped_ReportsError(t *testing.T) {
	t.Parallel()
	node, other := newSim(t), newSim(t)
	c := open(t, Config{ChainID: simulatedID, Endpoints: []string{node.URL(), node.WSURL(), other.URL(), "http://127.0.0.1:1"}})
	from := node.addr(0)
	requireOutcomes(t, c.Send(t.Context(), []Raw{node.tx(0, 0)}), Accepted)
	node.Commit()
	requireOutcomes(t, c.Send(t.Context(), []Raw{node.tx(0, 1)}), Accepted)
	view, err := c.Latest(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the pool counts it a moment later
		pending, err := view.PendingNonces(t.Context(), []common.Address{from})
		return err == nil && pending[0] == 2
	}, patient, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	all := c.Counts(ctx, view.Header().Hash, []common.Address{{1}, from})
	require.Len(t, all, 4)
	for _, n := range all[:2] {
		require.NoError(t, n.Err)
		require.Equal(t, []uint64{0, 1}, n.Mined)
		require.Equal(t, []uint64{0, 2}, n.Pending)
	}
	require.ErrorIs(t, all[2].Err, ErrStale)
	require.Error(t, all[3].Err)
	for _, n := range all[2:] {
		require.Empty(t, n.Mined)
		require.Empty(t, n.Pending)
	}

	all = c.Counts(t.Context(), common.Hash{}, []common.Address{from}) // at the newest block of each endpoint
	require.Equal(t, []uint64{1}, all[0].Mined)
	require.Equal(t, []uint64{0}, all[2].Mined)
}

// The caller's time ends while an endpoint that lacks the block is asked a second time, as it does on a slow machine.
func TestCounts_CutOffWhileAskingAgain_TheLastAnswerCounts(t *testing.T) {
	t.Parallel()
	node := newSim(t)
	front, err := proxy.Open(proxy.Config{HTTP: node.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, front.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	front.SetRules(proxy.Rule{
		Name: "second time", Methods: []string{"eth_getBlockByHash"}, Fault: proxy.Fault{Kind: proxy.Hang},
		When: func(c proxy.Call) bool {
			if c.N == 2 {
				cancel()
			}
			return c.N == 2
		},
	})
	front.Switch(true)
	c := open(t, Config{ChainID: simulatedID, Endpoints: []string{front.URL()}})
	all := c.Counts(ctx, common.Hash{1}, []common.Address{node.addr(0)})
	require.Len(t, all, 1)
	require.ErrorIs(t, all[0].Err, ErrStale)
	require.Eventually(t, func() bool { return front.Injected()["second time"] == 1 }, patient, time.Millisecond, "it is counted after the caller's end")
}
