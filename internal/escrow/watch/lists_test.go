package watch

import (
	"fmt"
	"math"
	"net"
	"slices"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/scripted"
)

// idle returns a watcher that does not run.
func (w *world) idle() *Watcher {
	w.t.Helper()
	watcher, end := w.watcher(&process{conns: map[net.Conn]struct{}{}})
	w.t.Cleanup(end)
	return watcher
}

// places returns where logs are, in their order.
func places(logs []evm.Log) (all []string) {
	for _, l := range logs {
		all = append(all, fmt.Sprint(l.BlockNumber, l.TxHash, l.Contract, l.Topics, hexutil.Encode(l.Data)))
	}
	return all
}

// placesOf returns where the logs of blocks are.
func placesOf(blocks ...*scripted.Block) (all []string) {
	for _, b := range blocks {
		for _, l := range b.Logs() {
			all = append(all, fmt.Sprint(b.Number, l.TxHash, l.Address, l.Topics, hexutil.Encode(l.Data)))
		}
	}
	return all
}

// earlyBlocks is how many blocks earlyLogs mines.
const earlyBlocks = 5

// earlyLogs mines blocks in which an escrow has logs before it is created, and within the block of its creation before and after it. It
// returns that block.
func (w *world) earlyLogs() *scripted.Block {
	creation := w.create(worldFactory)
	escrow := creation.Logs[0].Address
	w.head = w.chain.Mine(w.head, w.tx(w.approved(escrow)))
	w.head = w.chain.Mine(w.head)
	w.head = w.chain.Mine(w.head, w.tx(w.approved(escrow)))
	created := w.chain.Mine(w.head, w.tx(w.approved(escrow)), creation, w.tx(w.approved(escrow)))
	w.head = w.chain.Mine(created, w.tx(w.approved(escrow)))
	w.finalize(0)
	return created
}

// E6: the logs of an escrow count from the block of its creation on, whatever blocks and contracts the queries of an endpoint name.
func TestLists_EscrowLogsBeforeItsCreation_NeverCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20, 3)
	created := w.earlyLogs()
	w.proxies[1].SetRules(providers["blocks"]...)
	w.proxies[2].SetRules(slices.Concat(providers["no topics"], providers["blocks"])...)
	watcher := w.idle()
	for i, ep := range watcher.cfg.Client.Status().Endpoints {
		logs, err := watcher.confirm.lists.read(t.Context(), ep.Endpoint, 1, w.head.Number)
		require.NoError(t, err)
		require.Equal(t, placesOf(created, w.head), places(logs), "endpoint %d", i)
	}
}

// E6: a step that fails after its logs were matched leaves no escrow in memory. The next try of the range would count the logs that an
// escrow has before its creation.
func TestStep_Fails_ItsEscrowsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 21, 2)
	w.delivery = Finalized
	w.mine(1)
	w.finalize(0)
	w.start()
	w.awaitAll() // otherwise the failure of the first round would give the lease back
	w.everywhere(proxy.Rule{
		Name: "missing", Methods: []string{"eth_getBlockByNumber"}, When: proxy.Asks(`"` + hexutil.EncodeUint64(w.head.Number+earlyBlocks) + `"`),
		Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"},
	})
	w.earlyLogs()
	w.awaitStrikes("missing", uint64(len(w.proxies)))
	w.heal()
	w.awaitAll()
	w.requireTruth(w.final)
}

// E4: the place in an answer orders the logs of a block. If a transaction's logs come in several answers, by chunks of contracts, and the
// indexes that the node gives them decide nothing, its receipts do.
func TestLists_LogsInSeveralAnswers_InTheOrderOfTheBlock(t *testing.T) {
	t.Parallel()
	for name, index := range map[string]func(creation, later *types.Log){
		"regular":       func(_, _ *types.Log) {},
		"repeated":      func(creation, later *types.Log) { creation.Index, later.Index = 7, 7 },
		"the factory's": func(creation, _ *types.Log) { creation.Index = 1 },
		"begun again":   func(creation, _ *types.Log) { creation.Index = math.MaxUint32 },
		"falling":       func(creation, later *types.Log) { creation.Index, later.Index = 9, 5 },
	} {
		w := newWorld(t, 23, 1)
		creation := w.create(worldFactory)
		escrow := creation.Logs[0].Address
		last := w.approved(escrow)
		index(&creation.Logs[0], &last)
		other := w.create(worldFactory)
		creation.Logs = append(append(creation.Logs, other.Logs...), last)
		w.head = w.chain.Mine(w.head, creation, w.tx(w.approved(escrow)))
		w.finalize(0)
		w.proxies[0].SetRules(providers["two contracts"]...)
		watcher := w.idle()
		logs, err := watcher.confirm.lists.read(t.Context(), watcher.cfg.Client.Status().Endpoints[0].Endpoint, 1, 1)
		require.NoError(t, err, name)
		require.Equal(t, placesOf(w.head), places(logs), name)
	}
}
