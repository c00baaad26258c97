package watch

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/scripted"
)

// A block with too many logs of strangers for any query is read by its receipts, in history and at the head.
func TestFaults_BlockOfStrangers_EventsAreFound(t *testing.T) {
	t.Parallel()
	strangers := 20_000
	if testing.Short() {
		strangers = 2_000
	}
	for _, delivery := range []Delivery{Finalized, Instant} {
		w := newWorld(t, 1, 2)
		w.delivery = delivery
		crowded := func() scripted.Tx {
			var logs []types.Log
			for range strangers {
				logs = append(logs, w.approved(common.Address{0xee}))
			}
			return w.tx(append(logs, w.approved(escrowsOf(w.head)[0]))...)
		}
		w.head = w.chain.Mine(w.head, w.create(worldFactory))
		w.head = w.chain.Mine(w.head, crowded())
		for _, p := range w.proxies {
			p.SetRules(providers["each block"]...)
		}
		w.finalize(0)
		w.start()
		w.awaitAll()
		w.requireTruth(w.head)
		w.head = w.chain.Mine(w.head, crowded())
		w.show()
		if delivery == Finalized {
			w.finalize(0)
		}
		w.awaitAll()
		w.requireTruth(w.head)
	}
}

// Where almost all logs of a range are strangers', the rest of it is asked for by contract.
func TestStrangers_TenThousandOfARange_RestIsAskedByContract(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	w.delivery = Finalized
	w.head = w.chain.Mine(w.head, w.create(worldFactory))
	w.head = w.chain.Mine(w.head, w.tx(slices.Repeat([]types.Log{w.approved(common.Address{0xee})}, strangersFrom)...))
	for range 8 {
		w.head = w.chain.Mine(w.head)
	}
	w.head = w.chain.Mine(w.head, w.create(worldFactory), w.tx(w.approved(escrowsOf(w.head)[0])))
	var asked atomic.Int64
	byContract := func(c proxy.Call) bool {
		if proxy.Asks(`"address"`)(c) {
			asked.Add(1)
		}
		return false
	}
	for _, p := range w.proxies {
		p.SetRules(append([]proxy.Rule{{Methods: []string{logsMethod}, When: byContract}}, providers["blocks"]...)...)
	}
	w.finalize(0)
	w.start()
	w.awaitAll()
	w.requireTruth(w.head)
	require.Positive(t, asked.Load())
}

// An argument with NUL is delivered as it is.
func TestArgument_WithNUL_IsDelivered(t *testing.T) {
	t.Parallel()
	const contracts = `[
		{"type":"event","name":"Opened","anonymous":false,"inputs":[{"name":"vault","type":"address","indexed":true}]},
		{"type":"event","name":"Noted","anonymous":false,"inputs":[{"name":"note","type":"string","indexed":false}]}]`
	folder := t.TempDir()
	file := filepath.Join(folder, "events.yaml")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "types.json"), []byte(contracts), 0o600))
	require.NoError(t, os.WriteFile(file, []byte(`
factory: {abi: [types.json], events: [{event: "Opened(address)", escrow: vault}]}
escrow: {abi: [types.json], events: [{event: "Noted(string)"}]}
`), 0o600))
	parsed, err := abi.JSON(strings.NewReader(contracts))
	require.NoError(t, err)
	set, err := events.Load(file)
	require.NoError(t, err)
	w := newWorld(t, 1, 2)
	w.delivery, w.set = Instant, set
	vault := common.Address{0xe5}
	w.head = w.chain.Mine(w.head, w.tx(w.log(worldFactory, parsed, "Opened", vault), w.log(vault, parsed, "Noted", "a\x00b\n\x7f")))
	w.show()
	w.start()
	w.awaitAll()
	all := w.messages()
	require.Len(t, all, 2)
	require.Equal(t, "a\x00b\n\x7f", all[1].Args.Get("note"))
}

// All endpoints lose a final block: nothing leaves from then on, not even retractions, whichever process comes later.
func TestReorganization_BeyondFinality_HaltsForAll(t *testing.T) {
	t.Parallel()
	for _, delivery := range []Delivery{Finalized, Instant} {
		w := newWorld(t, 2, 3)
		w.delivery = delivery
		w.mine(12)
		w.finalize(4)
		w.start()
		w.start()
		w.awaitAll()
		w.requireTruth(w.upto())
		before, final := len(w.messages()), w.final
		w.head = final.Parent.Parent
		w.final = w.head
		w.mine(12)
		w.finalize(4)
		var halted string
		require.Eventually(t, func() bool {
			require.NoError(t, w.db.QueryRow(t.Context(), `SELECT halted FROM escrow_chains`).Scan(&halted))
			return halted != ""
		}, patience, 2*time.Millisecond)
		require.Contains(t, halted, final.Hash.Hex())
		require.Contains(t, halted, w.head.At(final.Number).Hash.Hex())
		for _, p := range w.processes {
			p.stop()
		}
		w.mine(3)
		w.finalize(1)
		var calls atomic.Int64
		for _, p := range w.proxies {
			p.SetRules(proxy.Rule{When: func(proxy.Call) bool { calls.Add(1); return false }})
		}
		later := w.epoch()
		w.start()
		require.Eventually(t, func() bool { return w.epoch() > later }, patience, 2*time.Millisecond)
		w.processes[len(w.processes)-1].stop() // after a round at least
		require.Zero(t, calls.Load(), "a process that is elected later asks nothing")
		require.Len(t, w.messages(), before)
	}
}

// awaitHalt returns when the chain is halted.
func (w *world) awaitHalt() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		var halted string
		require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT halted FROM escrow_chains`).Scan(&halted))
		return halted != ""
	}, patience, 5*time.Millisecond)
}

// awaitExcluded returns when a process has excluded an endpoint.
func (w *world) awaitExcluded(endpoint int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return strings.Contains(w.processes[0].watcher.cfg.Client.Status().Endpoints[endpoint].Reason, "excluded: block ")
	}, patience, 5*time.Millisecond)
}

// text returns a node's answer for the hash of a block that it has shown.
func (w *world) text(node int, b *scripted.Block) string {
	w.t.Helper()
	c, err := rpc.DialContext(w.t.Context(), w.nodes[node].URL())
	require.NoError(w.t, err)
	defer c.Close()
	var raw json.RawMessage
	require.NoError(w.t, c.CallContext(w.t.Context(), &raw, "eth_getBlockByHash", b.Hash, false))
	return string(raw)
}

// An endpoint that is alone with its answers has a block of another branch in the middle of a range, as a cache by number may. Receipts prove
// what that block has, and not that it is on the chain.
func TestProve_BlockOfAnotherBranch_NothingOfItIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 2)
	w.delivery = Finalized
	w.head = w.chain.Mine(w.head, w.create(worldFactory))
	orphan := w.chain.Mine(w.head, w.create(worldFactory))
	w.nodes[0].SetHead(orphan)
	for range 6 {
		w.head = w.chain.Mine(w.head, w.tx())
	}
	w.finalize(1)
	var asked atomic.Int64
	byNumber := func(c proxy.Call) bool {
		return proxy.Asks(`"`+hexutil.EncodeUint64(orphan.Number)+`"`)(c) && asked.Add(1) > 0
	}
	w.proxies[0].SetRules(proxy.Rule{Methods: []string{"eth_getBlockByNumber"}, When: byNumber, Fault: proxy.Fault{Kind: proxy.Answer, Result: w.text(0, orphan)}})
	w.proxies[1].SetRules(noLogs)
	w.start()
	require.Eventually(t, func() bool { return asked.Load() > 5 }, patience, 5*time.Millisecond)
	for _, m := range w.messages() {
		require.NotEqual(t, orphan.Hash, m.BlockHash)
	}
	w.proxies[0].SetRules()
	w.awaitAll()
	w.requireTruth(w.final)
}

// noLogs makes an endpoint refuse to give logs.
var noLogs = proxy.Rule{Name: "no logs", Methods: []string{logsMethod}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"}}

// E3: the only endpoint that gives logs is on a branch of its own, whose blocks have none. The cursor does not follow it past the chain's events.
func TestProve_EndpointOnItsOwnBranch_NothingIsPassed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 22, 3)
	w.delivery = Finalized
	branch := w.private(0, w.head, 9)
	w.nodes[0].SetFinal(branch.Parent)
	for range 6 {
		w.head = w.chain.Mine(w.head, w.create(worldFactory))
	}
	w.finalize(1)
	for _, p := range w.proxies[1:] {
		p.SetRules(noLogs)
	}
	w.start()
	w.awaitStrikes(noLogs.Name, 6)
	w.heal()
	w.stale = -1
	w.show()
	w.awaitAll()
	w.requireTruth(w.final)
}

// E3: the only endpoint that gives logs hides a block behind one of another branch, and makes up the parent of the next one.
func TestProve_MadeUpParent_NoBlockIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 26, 2)
	w.delivery = Finalized
	w.head = w.chain.Mine(w.head)
	empty := w.private(0, w.head, 1)
	w.stale = -1
	hidden := w.chain.Mine(w.head, w.create(worldFactory))
	next := w.chain.Mine(hidden, w.create(worldFactory))
	w.head = w.chain.Mine(next)
	w.finalize(0)
	number := func(b *scripted.Block, text string) proxy.Rule {
		return proxy.Rule{
			Methods: []string{"eth_getBlockByNumber"}, When: proxy.Asks(`"` + hexutil.EncodeUint64(b.Number) + `"`), Fault: proxy.Fault{Kind: proxy.Answer, Result: text},
		}
	}
	w.proxies[0].SetRules(number(hidden, w.text(0, empty)), number(next, strings.ReplaceAll(w.text(0, next), hidden.Hash.Hex(), empty.Hash.Hex())))
	w.proxies[1].SetRules(noLogs)
	w.start()
	w.awaitStrikes(noLogs.Name, 4)
	w.heal()
	w.awaitAll()
	w.requireTruth(w.final)
}

// falseTransaction makes an endpoint report another hash of a transaction, in all answers.
func falseTransaction(tx common.Hash) proxy.Rule {
	return proxy.Rule{Fault: proxy.Fault{Kind: proxy.Change, Alter: func(raw json.RawMessage) json.RawMessage {
		return bytes.ReplaceAll(raw, []byte(tx.Hex()), []byte(common.Hash{0xba}.Hex()))
	}}}
}

// E3: receipts prove no hash of a transaction. That of one endpoint is not believed, whether others give other logs, or none.
func TestProve_FalseHashOfATransaction_IsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, delivery := range []Delivery{Finalized, Instant} {
		for _, endpoints := range []int{2, 3} {
			w := newWorld(t, 24, endpoints)
			w.delivery = delivery
			w.head = w.chain.Mine(w.head, w.create(worldFactory))
			w.head = w.chain.Mine(w.head)
			w.proxies[0].SetRules(falseTransaction(w.head.Parent.Txs[0].Hash))
			if delivery == Finalized {
				w.finalize(0)
			}
			w.show()
			if endpoints == 2 {
				w.proxies[1].SetRules(noLogs)
			}
			w.start()
			if endpoints == 2 {
				w.awaitStrikes(noLogs.Name, 4)
				w.heal()
			}
			w.awaitAll()
			w.requireTruth(w.upto())
			w.processes[0].stop()
		}
	}
}

// A time that one endpoint reports with its logs is not believed where another one has given other logs of the range.
func TestConfirm_ListsDiffer_NoTimeOfOneEndpoint(t *testing.T) {
	t.Parallel()
	for i := range 2 {
		w := newWorld(t, 25, 2)
		for range 3 {
			w.head = w.chain.Mine(w.head, w.create(worldFactory))
		}
		w.show()
		w.proxies[i].SetRules(proxy.Rule{Methods: []string{logsMethod}, Fault: proxy.AlterList(func(l []map[string]any) []map[string]any {
			for _, one := range l {
				one["blockTimestamp"] = "0x1"
			}
			return l
		})})
		w.proxies[1-i].SetRules(proxy.Rule{Methods: []string{logsMethod}, Fault: lies["the first is missing"].Fault})
		logs, err := w.idle().confirm.read(t.Context(), 1, w.head.Number)
		require.NoError(t, err)
		require.Equal(t, placesOf(w.head.At(1), w.head.At(2), w.head), places(logs))
		for _, l := range logs {
			require.Contains(t, []uint64{0, w.head.At(l.BlockNumber).Time}, l.BlockTime, "block %d", l.BlockNumber)
		}
	}
}

// Endpoints lose a final block one after the other, so that the first ones are excluded before the last one does.
func TestReorganization_BeyondFinalityNodeByNode_Halts(t *testing.T) {
	t.Parallel()
	for _, delivery := range []Delivery{Finalized, Instant} {
		for _, endpoints := range []int{2, 3} {
			w := newWorld(t, 12, endpoints)
			w.delivery = delivery
			w.mine(12)
			w.finalize(4)
			w.start()
			w.awaitAll()
			branch := w.final.Parent.Parent
			for range 20 {
				branch = w.chain.Mine(branch)
			}
			w.nodes[0].SetHead(branch)
			w.nodes[0].SetFinal(branch.Parent)
			if endpoints > 2 { // two others have the block, and go on
				w.stale = 0
				w.mine(3)
				w.finalize(2)
				w.awaitAll()
				if delivery == Finalized { // Instant needs no comparison to see that the final block leads to the next one
					w.awaitExcluded(0)
				}
				w.stale = -1
			}
			w.head, w.final = branch, branch.Parent
			w.show()
			w.awaitHalt()
			w.processes[0].stop()
		}
	}
}

// The endpoints' final block is below the stored one, and on another branch.
func TestReorganization_FinalBlockGoesBack_Halts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 9, 2)
	w.delivery = Finalized
	w.mine(10)
	w.finalize(2)
	w.start()
	w.awaitAll()
	final := w.final
	w.head = final.Parent.Parent
	for range 5 {
		w.head = w.chain.Mine(w.head)
	}
	w.final = w.head.At(final.Number - 1)
	w.show()
	w.awaitHalt()
}

// forked makes all endpoints leave the final block that is stored. It returns the former newest block, and a watcher that does not run.
func (w *world) forked() (former *scripted.Block, watcher *Watcher) {
	w.t.Helper()
	w.delivery = Finalized
	w.mine(8)
	w.finalize(2)
	w.start()
	w.awaitAll()
	w.processes[0].stop()
	former = w.head
	watcher = w.idle()
	require.NoError(w.t, watcher.load(w.t.Context()))
	require.Equal(w.t, w.final.Hash, watcher.chain.Final.Hash)
	w.head = w.final.Parent
	w.mine(8)
	w.show()
	return former, watcher
}

// Endpoints that contradict a final block may be on a branch of their own while another one is away. They halt the chain only if it stays
// away, and one alone never does.
func TestCompare_EndpointIsSilent_HaltsLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 3)
	_, watcher := w.forked()
	stored := watcher.chain.Final
	compare := func(rounds int) {
		t.Helper()
		for range rounds {
			require.ErrorIs(t, watcher.compare(t.Context(), stored), errContradiction)
		}
	}
	w.proxies[0].SetDown(true)
	watcher.cfg.Interval = time.Hour
	compare(3 * violations)
	require.Empty(t, watcher.chain.Halted, "the first one is away")

	w.proxies[1].SetDown(true)
	watcher.violated = time.Now().Add(-silentIntervals * time.Hour)
	compare(violations)
	require.Empty(t, watcher.chain.Halted, "the third one is alone")

	w.proxies[1].SetDown(false)
	require.Eventually(t, func() bool {
		require.ErrorIs(t, watcher.compare(t.Context(), stored), errContradiction)
		return watcher.chain.Halted != ""
	}, patience, 10*time.Millisecond)
	require.Contains(t, watcher.chain.Halted, stored.Hash.Hex())
}

// Two rounds in which all endpoints contradict a final block do not halt the chain, and the third does.
func TestCompare_AllContradict_HaltsInTheThirdRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 2)
	former, watcher := w.forked()
	stored := watcher.chain.Final
	for range violations - 1 {
		require.ErrorIs(t, watcher.compare(t.Context(), stored), errContradiction)
		require.Empty(t, watcher.chain.Halted)
	}
	branch := w.head
	w.head = former
	w.show()
	require.NoError(t, watcher.compare(t.Context(), stored), "they have it again")
	w.head = branch
	w.show()
	for range violations {
		require.Empty(t, watcher.chain.Halted)
		require.ErrorIs(t, watcher.compare(t.Context(), stored), errContradiction)
	}
	require.NotEmpty(t, watcher.chain.Halted)
}

// An endpoint that lost a final block is excluded, and used again once it has it.
func TestEndpoint_LostAFinalBlock_ExcludedUntilRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 3)
	w.delivery = Finalized
	w.mine(8)
	w.finalize(2)
	w.start()
	w.awaitAll()
	w.stale = 1
	fork := w.final.Parent
	for fork.Number < w.head.Number+9 {
		fork = w.chain.Mine(fork)
	}
	w.nodes[1].SetHead(fork)
	w.nodes[1].SetFinal(fork.Parent)
	w.mine(3)
	w.finalize(2)
	w.awaitAll()
	w.awaitExcluded(1)
	w.stale = -1
	w.show()
	w.proxies[2].SetDown(true) // now the first two are needed
	w.mine(3)
	w.finalize(2)
	w.awaitAll()
	w.requireTruth(w.final)
}

// retracted returns how many messages take back an event.
func (w *world) retracted() (n int) {
	for _, m := range w.messages() {
		if m.Status == events.Retracted {
			n++
		}
	}
	return n
}

// private shows blocks without logs at an endpoint, after one that the others have.
func (w *world) private(i int, after *scripted.Block, n int) *scripted.Block {
	for range n {
		after = w.chain.Mine(after)
	}
	w.stale = i
	w.nodes[i].SetHead(after)
	return after
}

// One of three endpoints, which brings the heads, goes on with a branch of its own. Nothing is taken back for it, and the others are followed.
func TestEndpoint_OnABranchOfItsOwn_ChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 3)
	w.delivery = Instant
	w.mine(8)
	w.start()
	w.awaitAll()
	tip := w.private(0, w.head.At(w.head.Number-3), 8)
	for range 4 {
		w.mine(3)
		tip = w.private(0, tip, 5)
		w.awaitAll()
	}
	w.requireTruth(w.head)
	require.Zero(t, w.retracted())
}

// One of three endpoints makes up blocks without logs on the chain. They are left once the others are seen not to have them.
func TestEndpoint_MakesUpEmptyBlocks_OthersAreFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, 3)
	w.delivery = Instant
	w.mine(4)
	w.start()
	w.awaitAll()
	for range 3 {
		made := w.private(0, w.head, 4)
		var cursor []byte
		require.Eventually(t, func() bool {
			require.NoError(t, w.db.QueryRow(t.Context(), `SELECT cursor_hash FROM escrow_chains`).Scan(&cursor))
			return common.BytesToHash(cursor) == made.Hash
		}, patience, time.Millisecond)
		w.mine(2) // fewer than the endpoint shows
		w.awaitAll()
		w.requireTruth(w.head)
		w.stale = -1
		w.show()
	}
}

// Another branch has become final while all processes were down: the stored events are taken back before any becomes final.
func TestReorganization_FinalWhileDown_IsTakenBack(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 4} {
		w := newWorld(t, 6, 2)
		w.delivery = Instant
		w.mine(10)
		w.start()
		w.awaitAll()
		w.processes[0].stop()
		w.fork(5, 5+more)
		w.finalize(2)
		w.start()
		w.awaitAll()
		w.requireTruth(w.head)
		require.Positive(t, w.retracted())
	}
}

// A process without the lease asks no endpoint.
func TestWatcher_WithoutTheLease_AsksNothing(t *testing.T) {
	t.Parallel()
	for _, delivery := range []Delivery{Finalized, Instant} {
		w := newWorld(t, 7, 2)
		w.delivery = delivery
		w.mine(4)
		w.start()
		w.finalize(1)
		w.awaitAll()
		var calls atomic.Int64
		w.openEndpoints(7) // others of the same nodes
		w.everywhere(proxy.Rule{When: func(proxy.Call) bool { calls.Add(1); return false }})
		w.start()
		for range 5 {
			w.mine(2)
			w.finalize(1)
			w.awaitAll()
		}
		require.Zero(t, calls.Load())
		w.processes[0].stop()
		w.mine(2)
		w.finalize(1)
		w.awaitAll()
		require.Positive(t, calls.Load())
		w.requireTruth(w.upto())
	}
}

// Delivery may differ at each start: what is pending becomes final or is taken back.
func TestDelivery_ChangesAtAStart_MessagesAreTheChains(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 6} {
		w := newWorld(t, 8, 2)
		for _, delivery := range []Delivery{Finalized, Instant, Finalized, Instant} {
			w.delivery = delivery
			w.mine(5)
			w.finalize(2)
			w.start()
			w.awaitAll()
			w.processes[len(w.processes)-1].stop()
			w.fork(2, 2+more)
		}
		w.delivery = Finalized
		w.finalize(0)
		w.start()
		w.awaitAll()
		w.delivery = Instant // some were pending
		w.requireTruth(w.head)
		require.Positive(t, w.retracted())
	}
}
