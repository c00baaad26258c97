package watch

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/scripted"
)

// newInstant is newMonitor for instant delivery.
func newInstant(t *testing.T, endpoints int) *monitor {
	t.Helper()
	m := newMonitor(t, endpoints)
	m.delivery = Instant
	return m
}

// awaitFinal returns when the block of a number is stored as final.
func (m *monitor) awaitFinal(number uint64) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		var final *int64
		err := m.db.QueryRow(m.t.Context(), `SELECT final_number FROM escrow_chains`).Scan(&final)
		return err == nil && final != nil && uint64(*final) >= number
	}, patience, 5*time.Millisecond)
}

// awaitTip returns when the newest block is stored.
func (m *monitor) awaitTip() {
	m.t.Helper()
	head, err := m.chain.Client().HeaderByNumber(m.t.Context(), nil)
	require.NoError(m.t, err)
	require.Eventually(m.t, func() bool {
		var hash []byte
		err := m.db.QueryRow(m.t.Context(), `SELECT cursor_hash FROM escrow_chains`).Scan(&hash)
		return err == nil && common.BytesToHash(hash) == head.Hash()
	}, patience, 5*time.Millisecond)
}

// fork makes the block that is depth before the head the head again, without the transactions after it.
func (m *monitor) fork(depth uint64) {
	m.t.Helper()
	parent, err := m.chain.Client().HeaderByNumber(m.t.Context(), new(big.Int).SetUint64(m.head()-depth))
	require.NoError(m.t, err)
	m.chain.Fork(parent.Hash())
	m.chain.Rollback()
	m.chain.AdjustTime(time.Hour) // the blocks of the new branch differ
}

// requireStack requires that the messages of each escrow behave as a stack, and that those which stand at the end are the events of the
// chain. All blocks up to final are final.
func (m *monitor) requireStack(final uint64) {
	m.t.Helper()
	watched := map[common.Address]bool{m.factory: true}
	for _, escrow := range m.escrows {
		watched[escrow] = true
	}
	logs, err := m.chain.Client().FilterLogs(m.t.Context(), ethereum.FilterQuery{FromBlock: big.NewInt(1)})
	require.NoError(m.t, err)
	var want, got []string
	for _, l := range logs {
		if watched[l.Address] {
			want = append(want, fmt.Sprint(l.BlockNumber, l.BlockHash, l.TxHash, l.Address, l.Index))
		}
	}
	stacks := map[common.Address][]*events.Message{}
	sequence, revision := map[common.Address]int64{}, map[string]int{}
	for i, one := range m.messages() {
		sequence[one.Escrow]++
		require.Equal(m.t, sequence[one.Escrow], one.Sequence)
		require.Greater(m.t, one.Revision, revision[one.EventID])
		revision[one.EventID] = one.Revision
		h, err := m.chain.Client().HeaderByHash(m.t.Context(), one.BlockHash)
		require.NoError(m.t, err, "message %d is of no block", i)
		require.Equal(m.t, int64(h.Time), one.BlockTime.Unix())
		stack := stacks[one.Escrow]
		at := slices.IndexFunc(stack, func(m *events.Message) bool { return m.EventID == one.EventID })
		switch one.Status {
		case events.Pending:
			require.Equal(m.t, -1, at)
			stack = append(stack, one)
		case events.Retracted:
			require.Equal(m.t, len(stack)-1, at)
			require.Equal(m.t, events.Pending, stack[at].Status)
			require.Equal(m.t, stack[at].BlockHash, one.BlockHash)
			stack = stack[:at]
		case events.Final:
			if at < 0 {
				stack = append(stack, one)
				break
			}
			require.Equal(m.t, events.Pending, stack[at].Status)
			require.Equal(m.t, stack[at].BlockHash, one.BlockHash)
			for _, older := range stack[:at] {
				require.Equal(m.t, events.Final, older.Status)
			}
			stack[at] = one
		}
		stacks[one.Escrow] = stack
	}
	for _, stack := range stacks {
		for _, one := range stack {
			got = append(got, fmt.Sprint(one.BlockNumber, one.BlockHash, one.TxHash, one.Contract, one.LogIndex))
			require.Equal(m.t, one.BlockNumber <= final, one.Status == events.Final, "block %d", one.BlockNumber)
		}
	}
	require.ElementsMatch(m.t, want, got)
}

// statuses returns how many messages have each status.
func (m *monitor) statuses() map[events.Status]int {
	n := map[events.Status]int{}
	for _, one := range m.messages() {
		n[one.Status]++
	}
	return n
}

// Events come as pending at once, and as final when their blocks are; history comes as final.
func TestInstant_Chain_PendingThenFinal(t *testing.T) {
	t.Parallel()
	for _, ws := range []bool{false, true} {
		m := newInstant(t, 2)
		m.ws, m.finality = ws, evm.Finality{Depth: 8}
		m.settle(4)
		m.start()
		m.awaitTip()
		history := len(m.messages())
		m.settle(2)
		m.awaitTip()
		n := m.statuses()
		require.Positive(t, n[events.Final])
		require.Positive(t, n[events.Pending])
		for range 8 {
			m.chain.Commit()
		}
		m.awaitFinal(m.head() - 8)
		m.requireStack(m.head() - 8)
		for _, one := range m.messages()[history:] {
			require.True(t, one.Status == events.Pending || one.Revision == 2)
		}
	}
}

// Blocks that a reorganization removes are taken back in reverse order, before those of the new branch.
func TestInstant_Reorganizations_AreTakenBack(t *testing.T) {
	t.Parallel()
	for _, endpoints := range []int{1, 2, 3} {
		m := newInstant(t, endpoints)
		m.finality = evm.Finality{Depth: 12}
		m.settle(6)
		m.start()
		m.awaitTip()
		for depth := uint64(1); depth < 8; depth++ {
			m.settle(1)
			m.awaitTip()
			m.fork(depth)
			m.settle(3)
			m.awaitTip()
		}
		require.Positive(t, m.statuses()[events.Retracted])
		m.awaitFinal(m.head() - 12)
		m.requireStack(m.head() - 12)
	}
}

// A transaction that is mined again in the new branch is retracted first.
func TestInstant_MinedAgain_RetractedFirst(t *testing.T) {
	t.Parallel()
	m := newInstant(t, 2)
	m.finality = evm.Finality{Depth: 10}
	m.settle(1)
	m.start()
	m.awaitTip()
	for range 3 {
		parent, err := m.chain.Client().HeaderByNumber(t.Context(), nil)
		require.NoError(t, err)
		m.settle(1)
		m.awaitTip()
		m.chain.Fork(parent.Hash()) // the transactions return to the pool
		for range 5 {
			m.chain.Commit()
		}
		m.awaitTip()
	}
	require.Positive(t, m.statuses()[events.Retracted])
	m.awaitFinal(m.head() - 10)
	m.requireStack(m.head() - 10)
}

// All processes are down while the chain reorganizes: the next one takes back what is gone.
func TestInstant_ReorganizationWhileDown_IsTakenBack(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 12} { // the final block is before or after the stored ones
		m := newInstant(t, 2)
		m.finality = evm.Finality{Depth: 12}
		m.settle(6)
		_, stop := m.start()
		m.awaitTip()
		stop()
		m.fork(5)
		m.settle(3 + more)
		m.start()
		m.awaitTip()
		require.Positive(t, m.statuses()[events.Retracted])
		m.awaitFinal(m.head() - 12)
		m.requireStack(m.head() - 12)
	}
}

// The chain loses a final block at all endpoints: it is halted.
func TestInstant_FinalBlockChanges_Halts(t *testing.T) {
	t.Parallel()
	m := newInstant(t, 2)
	m.settle(4)
	m.start()
	m.awaitTip()
	m.awaitFinal(m.head() - 3)
	before := len(m.messages())
	m.fork(6)
	for range 12 {
		m.chain.Commit()
	}
	require.Eventually(t, func() bool {
		var halted string
		require.NoError(t, m.db.QueryRow(t.Context(), `SELECT halted FROM escrow_chains`).Scan(&halted))
		return halted != ""
	}, patience, 5*time.Millisecond)
	require.Len(t, m.messages(), before, "not even retractions")
}

// One endpoint fails, lies or lags, whichever it is: the messages are the chain's.
func TestInstant_OneEndpointFaulty_MessagesAreTheChains(t *testing.T) {
	t.Parallel()
	m := newInstant(t, 2)
	m.start()
	for name, rules := range map[string][]proxy.Rule{
		"empty":    {{Methods: []string{logsMethod}, Fault: lies["empty"].Fault}},
		"capped":   {{Methods: []string{logsMethod}, Fault: lies["silently capped"].Fault, Probability: .5}},
		"cut":      {{Fault: proxy.Fault{Kind: proxy.Cut}, Probability: .3}},
		"other":    {{Methods: []string{logsMethod}, Fault: lies["other data"].Fault}},
		"removed":  {{Methods: []string{logsMethod}, Fault: lies["removed"].Fault}},
		"too many": {{Methods: []string{logsMethod}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32005, Message: "query returned more than 10000 results"}}},
		"broken":   {{Methods: []string{logsMethod}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "internal error"}}},
	} {
		for i, p := range m.proxies {
			t.Log(name, "at endpoint", i)
			p.SetRules(rules...)
			m.settle(2)
			m.awaitTip()
			p.SetRules()
		}
	}
	for _, p := range m.proxies {
		p.SetLag(1)
		m.settle(2)
		m.awaitCursor(m.head() - 1)
		p.SetLag(0)
		m.awaitTip()
	}
	m.awaitFinal(m.head() - 3)
	m.requireStack(m.head() - 3)
}

// finalSteps returns the numbers of the blocks whose pending events became final, an entry for each event, by step.
func (w *world) finalSteps() (steps [][]uint64) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT xmin::text, payload FROM escrow_outbox ORDER BY seq`)
	require.NoError(w.t, err)
	var tx, last string
	var text []byte
	_, err = pgx.ForEachRow(rows, []any{&tx, &text}, func() error {
		var m events.Message
		if err := json.Unmarshal(text, &m); err != nil || m.Status != events.Final || m.Revision == 1 {
			return err
		}
		if tx != last {
			steps, last = append(steps, nil), tx
		}
		steps[len(steps)-1] = append(steps[len(steps)-1], m.BlockNumber)
		return nil
	})
	require.NoError(w.t, err)
	return steps
}

// requireSteps requires that the pending events became final in several steps in the order of the chain, each within the limit.
func (w *world) requireSteps() {
	w.t.Helper()
	steps := w.finalSteps()
	require.Greater(w.t, len(steps), 2)
	require.True(w.t, slices.IsSorted(slices.Concat(steps...)))
	for _, numbers := range steps {
		if len(numbers) > w.finalizeMost {
			require.Len(w.t, slices.Compact(numbers), 1, "a step of more events has a single block")
		}
	}
}

// The tag stalls and recovers: the pending events become final in several steps, also if the final block is after the stored ones.
func TestInstant_TagRecovers_FinalInSteps(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		w := newWorld(t, 1, 2)
		w.delivery, w.finalizeMost = Instant, 4
		w.mine(30)
		w.start()
		w.awaitAll()
		require.NotEmpty(t, w.messages())
		if down {
			w.processes[0].stop()
			w.mine(5)
		}
		w.finalize(0)
		if down {
			w.start()
		}
		w.awaitAll()
		w.requireTruth(w.head)
		w.requireSteps()
	}
}

// More events than a statement could insert in its time become final.
func TestInstant_TagRecovers_ManyEvents(t *testing.T) {
	if testing.Short() {
		t.Skip("60,000 events take a minute")
	}
	t.Parallel()
	w := newWorld(t, 1, 2)
	w.delivery = Instant
	w.head = w.chain.Mine(w.head, w.create(worldFactory))
	escrow := escrowsOf(w.head)[0]
	w.show()
	w.start()
	for range 24 {
		var txs []scripted.Tx
		for range 25 {
			logs := make([]types.Log, 100)
			for i := range logs {
				logs[i] = w.approved(escrow)
			}
			txs = append(txs, w.tx(logs...))
		}
		w.head = w.chain.Mine(w.head, txs...)
		w.show()
	}
	w.awaitAll()
	w.finalize(0)
	w.awaitAll()
	const all = 24*2_500 + 2 // with those of the creation
	messages := w.messages()
	require.GreaterOrEqual(t, len(messages), 2*all)
	final := map[string]bool{}
	for i, m := range messages {
		require.Equal(t, int64(i+1), m.Sequence)
		if m.Status == events.Final {
			final[m.EventID] = true
		}
	}
	require.GreaterOrEqual(t, len(final), all)
	w.requireSteps()
}

// E15: the endpoints of the process that reads announce heads, and serve no block by number: another process, whose endpoints are well, takes
// over.
func TestInstant_HeadsWithoutBlocks_AnotherProcessReads(t *testing.T) {
	t.Parallel()
	blind := proxy.Rule{Methods: []string{"eth_getBlockByNumber"}, When: proxy.Asks(`"0x`), Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}}
	for name, other := range map[string]proxy.Rule{"both": blind, "one, and the other is limited": {Fault: proxy.Fault{Kind: proxy.Status, Code: 429}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 13, 2)
			w.delivery = Instant
			w.mine(4)
			w.start()
			w.awaitAll()
			w.proxies[0].SetRules(blind)
			w.proxies[1].SetRules(other)
			w.openEndpoints(14)
			w.mine(3) // its own head is not the next block
			w.start()
			w.awaitAll()
			w.requireTruth(w.head)
			require.EqualValues(t, 2, w.epoch())
		})
	}
}

// calls counts the calls to all endpoints, and the polls among them.
type calls struct{ all, polls atomic.Int64 }

// count counts calls from now on.
func (m *monitor) count() *calls {
	n := new(calls)
	for _, p := range m.proxies {
		p.SetRules(proxy.Rule{When: func(c proxy.Call) bool {
			if c.Method == "eth_subscription" {
				return false // a notification
			}
			n.all.Add(1)
			switch text := string(c.Params); {
			case c.Method == "eth_chainId", c.Method == "eth_blockNumber", strings.Contains(text, `"latest"`), strings.Contains(text, `"finalized"`):
				n.polls.Add(1)
			}
			return false
		}})
	}
	return n
}

// Three processes make few calls for each block, and those without the lease none.
func TestInstant_ThreeProcesses_CallsAreFew(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		delivery          Delivery
		ws                bool
		most, pollsAtMost float64
	}{
		"finalized":          {Finalized, false, 1, 1},
		"instant, HTTP":      {Instant, false, 3, 1.2},
		"instant, WebSocket": {Instant, true, 2.5, .2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMonitor(t, 2)
			m.delivery, m.ws, m.finality, m.interval = test.delivery, test.ws, evm.Finality{Tag: "finalized"}, 50*time.Millisecond
			m.settle(1)
			for range 3 {
				m.start()
			}
			const blocks = 48
			ticker := time.NewTicker(m.interval)
			defer ticker.Stop()
			seal := func(n int) {
				for i := range n {
					<-ticker.C
					if i%10 == 0 {
						m.settle(1)
						continue
					}
					m.chain.Commit()
				}
			}
			seal(16)
			from, began := m.head(), time.Now()
			n := m.count()
			seal(blocks)
			// On a slow machine fewer blocks are made than there are intervals.
			sealed := max(float64(m.head()-from), float64(time.Since(began)/m.interval))
			t.Logf("%.2f calls a block, %.2f polls", float64(n.all.Load())/sealed, float64(n.polls.Load())/sealed)
			require.LessOrEqual(t, float64(n.all.Load()), test.most*sealed)
			require.LessOrEqual(t, float64(n.polls.Load()), test.pollsAtMost*sealed)
		})
	}
}
