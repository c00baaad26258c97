package admin

import (
	"context"
	"encoding/json"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/evm"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

var approve = escrowchain.Approve()

// depth is how many blocks below the newest one the final block is.
const depth = 3

// monitored is a chain with a factory behind endpoints, and a database.
type monitored struct {
	t        *testing.T
	chain    *testchain.Chain
	proxies  []*proxy.Proxy
	client   *evm.Client
	factory  common.Address
	db       *pgxpool.Pool
	settings store.Settings
	set      *events.Set // of the watchers
}

func newMonitored(t *testing.T, endpoints int) *monitored {
	t.Helper()
	t.Parallel()
	m := &monitored{
		t: t, set: events.BuiltIn(), chain: testchain.Simulated(t, testchain.SimulatedOptions{}), db: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t),
	}
	m.factory = m.deployFactory()
	m.settings = store.Settings{Factories: []common.Address{m.factory}, StartBlock: 1}
	cfg := evm.Config{ChainID: testchain.ChainID, Timeout: 20 * time.Second}
	for range endpoints {
		p, err := proxy.Open(proxy.Config{HTTP: m.chain.URL(), WS: m.chain.WSURL()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		m.proxies, cfg.Endpoints = append(m.proxies, p), append(cfg.Endpoints, p.URL())
	}
	var err error
	m.client, err = evm.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(m.client.Close)
	return m
}

func (m *monitored) backend() contract.Sealing {
	return contract.Sealing{Client: m.chain.Client(), Seal: func() { m.chain.Commit() }}
}

func (m *monitored) deployFactory() common.Address {
	m.t.Helper()
	a, err := escrowchain.DeployFactory(m.t.Context(), m.backend(), m.chain.Accounts[0].Key)
	require.NoError(m.t, err)
	return a
}

// send sends a transaction, which gets a block of its own.
func (m *monitored) send(from int, to common.Address, data []byte) common.Address {
	m.t.Helper()
	receipt, err := contract.Send(m.t.Context(), m.backend(), m.chain.Accounts[from].Key, contract.Transaction{To: &to, Value: new(big.Int), Data: data, Gas: 2_000_000})
	require.NoError(m.t, err)
	created, _ := escrowchain.Created(receipt)
	return created
}

// create creates an escrow, which two approvals release.
func (m *monitored) create(factory common.Address) common.Address {
	m.t.Helper()
	return m.send(0, factory, escrowchain.Create(escrowchain.Terms{
		Payee: m.chain.Accounts[1].Address, Arbiter: m.chain.Accounts[2].Address, ReleaseDelay: 60, ApprovalsRequired: 2,
	}))
}

// settle creates an escrow and releases it: five events in three blocks.
func (m *monitored) settle(factory common.Address) common.Address {
	m.t.Helper()
	escrow := m.create(factory)
	m.send(0, escrow, approve)
	m.send(1, escrow, approve)
	return escrow
}

// head returns the newest block.
func (m *monitored) head() uint64 {
	m.t.Helper()
	n, err := m.chain.Client().BlockNumber(m.t.Context())
	require.NoError(m.t, err)
	return n
}

// start runs a watcher until stop is called or the test ends. It fails the test if the settings differ.
func (m *monitored) start() (stop func()) {
	m.t.Helper()
	cancel, done := m.run()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(m.t, <-done)
	})
	m.t.Cleanup(stop)
	return stop
}

// run runs a watcher until the returned function is called, and returns its result. It fails the test if the settings differ.
func (m *monitored) run() (cancel context.CancelFunc, done <-chan error) {
	m.t.Helper()
	s, err := store.New(m.db, store.Config{ChainID: testchain.ChainID, Events: m.set, Targets: []string{"topic"}})
	require.NoError(m.t, err)
	require.NoError(m.t, s.Register(m.t.Context(), m.settings))
	w := watch.New(watch.Config{
		Client: m.client, Store: s, Events: m.set, Factories: m.settings.Factories, Finality: evm.Finality{Depth: depth}, Alone: len(m.proxies) == 1,
		Interval: 20 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		defer close(result)
		result <- w.Run(ctx)
	}()
	m.t.Cleanup(func() {
		cancel()
		for range result { // until it has ended
		}
	})
	return cancel, result
}

// await returns when the cursor is at the final block.
func (m *monitored) await() {
	m.t.Helper()
	want := m.head() - depth
	require.Eventually(m.t, func() bool {
		var cursor *int64
		err := m.db.QueryRow(m.t.Context(), `SELECT cursor_number FROM escrow_chains`).Scan(&cursor)
		return err == nil && cursor != nil && uint64(*cursor) >= want
	}, patience, 5*time.Millisecond)
}

// read lets a watcher read up to the final block, and stops it.
func (m *monitored) read() {
	m.t.Helper()
	stop := m.start()
	m.await()
	stop()
}

// bury adds blocks until the newest one with events is final.
func (m *monitored) bury() {
	for range depth {
		m.chain.Commit()
	}
}

func (m *monitored) admin() *Admin {
	m.t.Helper()
	a, err := Open(m.t.Context(), m.db, testchain.ChainID)
	require.NoError(m.t, err)
	return a
}

func (m *monitored) nodes() Nodes {
	return Nodes{Client: m.client, Events: events.BuiltIn(), Alone: len(m.proxies) == 1}
}

// messages returns the messages of the outbox in their order.
func (m *monitored) messages() (all []*events.Message) {
	m.t.Helper()
	for _, p := range payloads(m.t, m.db, "topic") {
		all = append(all, decode(m.t, p))
	}
	return all
}

// change changes a list of logs in an answer.
func change(alter func([]map[string]any) []map[string]any) proxy.Rule {
	return proxy.Rule{Methods: []string{"eth_getLogs"}, Fault: proxy.Fault{Kind: proxy.Change, Alter: func(raw json.RawMessage) json.RawMessage {
		var list []map[string]any
		if json.Unmarshal(raw, &list) != nil {
			return raw
		}
		text, err := json.Marshal(alter(list))
		if err != nil {
			return raw
		}
		return text
	}}}
}
