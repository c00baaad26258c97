package watch

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// No process reads: the newest block that should be stored is found while the cursor does not move, and otherwise no endpoint is asked.
func TestLook_WithoutReader_FindsNewestBlock(t *testing.T) {
	t.Parallel()
	for _, delivery := range []Delivery{Finalized, Instant} {
		w := newWorld(t, 15, 2)
		w.delivery = delivery
		var calls atomic.Int64
		w.everywhere(proxy.Rule{When: func(proxy.Call) bool { calls.Add(1); return false }})
		watcher, end := w.watcher(&process{conns: map[net.Conn]struct{}{}})
		defer end()
		w.mine(6)
		w.finalize(2)
		require.Zero(t, watcher.look(t.Context(), common.Hash{}), "nothing is stored")
		require.Equal(t, w.upto().Number, watcher.Newest())

		w.start()
		w.awaitAll()
		w.processes[0].stop()
		calls.Store(0)
		cursor := watcher.look(t.Context(), common.Hash{})
		require.Equal(t, w.upto().Hash, cursor, "it has moved")
		require.Zero(t, calls.Load())
		w.mine(6)
		w.finalize(2)
		require.Equal(t, cursor, watcher.look(t.Context(), cursor))
		require.Equal(t, w.upto().Number, watcher.Newest())
		w.proxies[0].SetRules(proxy.Retag("latest", func() uint64 { return 2 }), proxy.Retag(w.finality.Tag, func() uint64 { return 2 }))
		watcher.look(t.Context(), cursor)
		require.EqualValues(t, 2, watcher.Newest(), "two endpoints have reached it")
	}
}
