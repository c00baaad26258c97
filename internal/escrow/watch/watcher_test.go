package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// patience limits what a healthy machine does in some seconds.
const patience = 2 * time.Minute

// monitor is a chain with a factory behind endpoints, and a database.
type monitor struct {
	t       *testing.T
	chain   *testchain.Chain
	proxies []*proxy.Proxy
	factory common.Address
	db      *pgxpool.Pool
	escrows []common.Address

	delivery Delivery
	finality evm.Finality
	interval time.Duration
	ws       bool // the first endpoint is subscribed to
}

func newMonitor(t *testing.T, endpoints int) *monitor {
	t.Helper()
	m := &monitor{
		t: t, chain: testchain.Simulated(t, testchain.SimulatedOptions{}),
		db:       testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t),
		finality: evm.Finality{Depth: 3}, interval: 20 * time.Millisecond,
	}
	var err error
	m.factory, err = escrowchain.DeployFactory(t.Context(), m.backend(), m.chain.Accounts[0].Key)
	require.NoError(t, err)
	for range endpoints {
		p, err := proxy.Open(proxy.Config{HTTP: m.chain.URL(), WS: m.chain.WSURL()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		m.proxies = append(m.proxies, p)
	}
	return m
}

func (m *monitor) backend() contract.Sealing {
	return contract.Sealing{Client: m.chain.Client(), Seal: func() { m.chain.Commit() }}
}

// send sends a transaction, which gets a block of its own.
func (m *monitor) send(from int, to common.Address, data []byte) common.Address {
	m.t.Helper()
	receipt, err := contract.Send(m.t.Context(), m.backend(), m.chain.Accounts[from].Key, contract.Transaction{To: &to, Value: new(big.Int), Data: data, Gas: 2_000_000})
	require.NoError(m.t, err)
	created, _ := escrowchain.Created(receipt)
	return created
}

// settle creates escrows and releases every second one.
func (m *monitor) settle(n int) {
	m.t.Helper()
	for i := range n {
		escrow := m.send(0, m.factory, escrowchain.Create(escrowchain.Terms{
			Payee: m.chain.Accounts[1].Address, Arbiter: m.chain.Accounts[2].Address, ReleaseDelay: 60, ApprovalsRequired: 2,
		}))
		m.escrows = append(m.escrows, escrow)
		m.send(0, escrow, escrowchain.Approve())
		if i%2 == 0 {
			m.send(1, escrow, escrowchain.Approve())
		}
	}
}

// start runs a watcher until the test ends or stop is called.
func (m *monitor) start() (w *Watcher, stop func()) {
	m.t.Helper()
	cfg := evm.Config{ChainID: testchain.ChainID, Timeout: 20 * time.Second, Lazy: true, PollInterval: m.interval}
	for _, p := range m.proxies {
		cfg.Endpoints = append(cfg.Endpoints, p.URL())
	}
	if m.ws {
		cfg.Subscribe = m.proxies[0].WSURL()
	}
	client, err := evm.Open(cfg)
	require.NoError(m.t, err)
	set := events.BuiltIn()
	s, err := store.New(m.db, store.Config{ChainID: testchain.ChainID, Events: set, Targets: []string{"topic"}})
	require.NoError(m.t, err)
	factories := []common.Address{m.factory}
	require.NoError(m.t, s.Register(m.t.Context(), store.Settings{Factories: factories, StartBlock: 1}))
	w = New(Config{
		Client: client, Store: s, Events: set, Factories: factories, Finality: m.finality, Delivery: m.delivery, Alone: len(m.proxies) == 1,
		Interval: m.interval, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(m.t, <-done)
		client.Close()
	})
	m.t.Cleanup(stop)
	return w, stop
}

// head returns the newest block.
func (m *monitor) head() uint64 {
	m.t.Helper()
	n, err := m.chain.Client().BlockNumber(m.t.Context())
	require.NoError(m.t, err)
	return n
}

// awaitCursor returns when the events up to a block are stored.
func (m *monitor) awaitCursor(number uint64) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		var cursor *int64
		err := m.db.QueryRow(m.t.Context(), `SELECT cursor_number FROM escrow_chains`).Scan(&cursor)
		return err == nil && cursor != nil && uint64(*cursor) >= number
	}, patience, 5*time.Millisecond)
}

// messages returns the messages in the order of the outbox.
func (m *monitor) messages() []*events.Message {
	m.t.Helper()
	rows, err := m.db.Query(m.t.Context(), `SELECT payload FROM escrow_outbox ORDER BY seq`)
	require.NoError(m.t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*events.Message, error) {
		var text []byte
		m := new(events.Message)
		if err := row.Scan(&text); err != nil {
			return nil, err
		}
		return m, json.Unmarshal(text, m)
	})
	require.NoError(m.t, err)
	return all
}

// requireChain requires that the messages are the events of the chain up to a block, each once, final, in order.
func (m *monitor) requireChain(upto uint64) {
	m.t.Helper()
	watched := map[common.Address]bool{m.factory: true}
	for _, escrow := range m.escrows {
		watched[escrow] = true
	}
	logs, err := m.chain.Client().FilterLogs(m.t.Context(), ethereum.FilterQuery{FromBlock: big.NewInt(1), ToBlock: new(big.Int).SetUint64(upto)})
	require.NoError(m.t, err)
	var want, got []string
	for _, l := range logs {
		if watched[l.Address] {
			want = append(want, fmt.Sprint(l.BlockNumber, l.BlockHash, l.TxHash, l.Address, l.Index))
		}
	}
	sequence := map[common.Address]int64{}
	for _, one := range m.messages() {
		got = append(got, fmt.Sprint(one.BlockNumber, one.BlockHash, one.TxHash, one.Contract, one.LogIndex))
		sequence[one.Escrow]++
		require.Equal(m.t, sequence[one.Escrow], one.Sequence)
		require.Equal(m.t, events.Final, one.Status)
		h, err := m.chain.Client().HeaderByHash(m.t.Context(), one.BlockHash)
		require.NoError(m.t, err)
		require.Equal(m.t, int64(h.Time), one.BlockTime.Unix())
	}
	require.Equal(m.t, want, got)
}

// E4: several processes share a chain, and each stops in turn: the messages are the chain's.
func TestWatcher_ProcessesStopInTurn_NothingIsMissed(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	m.settle(3) // history
	_, stopFirst := m.start()
	_, stopSecond := m.start()
	m.awaitCursor(m.head() - 3)
	m.settle(2)
	m.awaitCursor(m.head() - 3)
	stopFirst()
	m.settle(2)
	m.awaitCursor(m.head() - 3)
	stopSecond()
	m.settle(2)
	upto := m.head() - 3
	m.start()
	m.awaitCursor(upto)
	m.requireChain(upto)
}

// E4: one endpoint fails or lies, whichever it is: the messages are the chain's.
func TestWatcher_OneEndpointFaulty_MessagesAreTheChains(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	m.start()
	for _, rules := range [][]proxy.Rule{
		{{Methods: []string{logsMethod}, Fault: lies["empty"].Fault}},
		{{Methods: []string{logsMethod}, Fault: lies["silently capped"].Fault, Probability: .5}},
		{{Fault: proxy.Fault{Kind: proxy.Cut}, Probability: .3}},
		{{Methods: []string{logsMethod}, Fault: lies["other data"].Fault}},
	} {
		for _, p := range m.proxies {
			p.SetRules(rules...)
			m.settle(2)
			m.awaitCursor(m.head() - 3)
			p.SetRules()
		}
	}
	m.requireChain(m.head() - 3)
}

// A step takes longer than the lease, because the endpoints answer slowly and for one block at a time: one process ends it.
func TestWatcher_StepLongerThanTheLease_KeepsIt(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	m.settle(12)
	for _, p := range m.proxies {
		p.SetRules(
			proxy.Rule{Methods: []string{logsMethod}, When: func(c proxy.Call) bool { return c.Blocks() > 1 }, Fault: proxy.Fault{
				Kind: proxy.Refuse, Code: -32600, Message: "eth_getLogs is limited to a 1 block range",
			}},
			proxy.Rule{Methods: []string{logsMethod}, Fault: proxy.Fault{Kind: proxy.Delay, Delay: 300 * time.Millisecond}},
		)
	}
	upto := m.head() - 3
	require.Greater(t, time.Duration(upto)*300*time.Millisecond, 6*time.Second, "the lease takes five")
	m.start()
	m.start()
	m.awaitCursor(upto)
	m.requireChain(upto)
}

// While a range is stored, the next one is read.
func TestWatcher_StepIsBeingStored_ReadsTheNext(t *testing.T) {
	t.Parallel()
	m := newMonitor(t, 2)
	for range firstBlocks {
		m.chain.Commit()
	}
	m.settle(2)
	asked := make(chan struct{})
	report := sync.OnceFunc(func() { close(asked) })
	for _, p := range m.proxies {
		p.SetRules(proxy.Rule{Methods: []string{logsMethod}, When: func(c proxy.Call) bool {
			if proxy.Asks(hexutil.EncodeUint64(firstBlocks + 1))(c) {
				report()
			}
			return false
		}})
	}
	conn, err := m.db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	lock := rand.Int64()
	for _, sql := range []string{
		"SELECT pg_advisory_lock(%d)",
		"CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(%d); RETURN NULL; END'",
		"CREATE TRIGGER wait AFTER INSERT ON escrow_blocks FOR EACH STATEMENT EXECUTE FUNCTION wait_for_the_test() -- %d",
	} {
		_, err := conn.Exec(t.Context(), fmt.Sprintf(sql, lock))
		require.NoError(t, err)
	}
	m.start()
	select {
	case <-asked:
	case <-time.After(patience):
		require.FailNow(t, "the next range is not read before the first one is stored")
	}
	_, err = conn.Exec(t.Context(), fmt.Sprintf("SELECT pg_advisory_unlock(%d)", lock))
	require.NoError(t, err)
	upto := m.head() - 3
	m.awaitCursor(upto)
	m.requireChain(upto)
}

// E10: the chain contradicts a final block at all endpoints: it is halted, and nothing more is stored.
func TestWatcher_FinalBlockChanges_Halts(t *testing.T) {
	t.Parallel()
	for name, stopped := range map[string]bool{"while a process reads": false, "while none runs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireHalt(t, stopped)
		})
	}
}

func requireHalt(t *testing.T, stopped bool) {
	t.Helper()
	m := newMonitor(t, 2)
	m.settle(2)
	_, stop := m.start()
	m.awaitCursor(m.head() - 3)
	if stopped {
		stop()
	}
	before := len(m.messages())
	parent, err := m.chain.Client().HeaderByNumber(t.Context(), new(big.Int).SetUint64(m.head()-6))
	require.NoError(t, err)
	m.chain.Fork(parent.Hash())
	m.chain.Rollback()
	m.chain.AdjustTime(time.Hour) // the blocks of the new branch differ
	for range 12 {
		m.chain.Commit()
	}
	if stopped {
		m.start()
	}
	var halted string
	require.Eventually(t, func() bool {
		require.NoError(t, m.db.QueryRow(t.Context(), `SELECT halted FROM escrow_chains`).Scan(&halted))
		return halted != ""
	}, patience, 5*time.Millisecond)
	require.Contains(t, halted, "was final as 0x")
	m.chain.Commit()
	require.Len(t, m.messages(), before)
}
