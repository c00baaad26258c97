package watch

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/scripted"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

const worldChain = 7

var (
	worldFactory = common.Address{0xfa}
	parties      = []common.Address{{0xa1}, {0xa2}, {0xa3}}
	junk         = []byte("no contract encodes this")
)

// world is a chain of a test's making, nodes that show it, and processes that watch it.
type world struct {
	t        *testing.T
	dice     *rand.Rand
	delivery Delivery
	finality evm.Finality
	timeout  time.Duration // of a call to a node
	ws       bool
	set      *events.Set
	// listBytes is how large a list of several blocks may be.
	listBytes int
	// finalizeMost is how many pending events a step makes final.
	finalizeMost int

	chain     *scripted.Chain
	nodes     []*scripted.Node
	proxies   []*proxy.Proxy
	url       string
	db        *pgxpool.Pool
	processes []*process

	head, final *scripted.Block
	stale       int           // index of a node that does not follow; -1: none
	pool        []scripted.Tx // of removed blocks
	made        uint64
	branches    map[common.Hash]map[string]bool
}

func newWorld(t *testing.T, seed uint64, endpoints int) *world {
	t.Helper()
	w := &world{
		t: t, dice: rand.New(rand.NewPCG(seed, 33)), chain: scripted.New(worldChain), stale: -1, branches: map[common.Hash]map[string]bool{}, finality: evm.Finality{Tag: "finalized"},
		timeout: 10 * time.Second, set: events.BuiltIn(), listBytes: maxListBytes, finalizeMost: rangeLogs,
	}
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
	w.url, w.db = db.URL(), db.Pool(t)
	w.head, w.final = w.chain.Genesis(), w.chain.Genesis()
	for range endpoints {
		w.nodes = append(w.nodes, scripted.Serve(t, w.chain))
	}
	w.openEndpoints(seed)
	w.show()
	return w
}

// openEndpoints gives each node an endpoint for the processes that start from now on.
func (w *world) openEndpoints(seed uint64) {
	w.t.Helper()
	w.proxies = nil
	for i, n := range w.nodes {
		p, err := proxy.Open(proxy.Config{HTTP: n.URL(), WS: n.WSURL(), Seed: seed + uint64(i)})
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, p.Close()) })
		w.proxies = append(w.proxies, p)
	}
}

// show shows the chain at the nodes that follow it.
func (w *world) show() {
	for _, i := range w.dice.Perm(len(w.nodes)) {
		if i != w.stale {
			w.nodes[i].SetHead(w.head)
			w.nodes[i].SetFinal(w.final)
		}
	}
}

// process is a process that watches the chain.
type process struct {
	watcher *Watcher
	db      *pgxpool.Pool
	stop    func() // it may be called again

	mu    sync.Mutex
	conns map[net.Conn]struct{} // to the database
}

// cut closes the connections to the database, so that answers are lost.
func (p *process) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *process) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
	}
	return c, err
}

// start starts a process.
func (w *world) start() {
	w.t.Helper()
	p := &process{conns: map[net.Conn]struct{}{}}
	watcher, end := w.watcher(p)
	p.watcher = watcher
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- watcher.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-done)
		end()
	})
	w.t.Cleanup(p.stop)
	w.processes = append(w.processes, p)
}

// watcher returns the watcher of a process, and a function that ends its connections.
func (w *world) watcher(p *process) (watcher *Watcher, end func()) {
	w.t.Helper()
	pool, err := pgxpool.ParseConfig(w.url)
	require.NoError(w.t, err)
	pool.MaxConns, pool.ConnConfig.DialFunc = 2, p.dial
	db, err := pgxpool.NewWithConfig(w.t.Context(), pool)
	require.NoError(w.t, err)
	p.db = db
	cfg := evm.Config{
		ChainID: worldChain, Timeout: w.timeout, Lazy: true, PollInterval: 10 * time.Millisecond, HealthInterval: 20 * time.Millisecond, Silence: 200 * time.Millisecond,
	}
	for _, p := range w.proxies {
		cfg.Endpoints = append(cfg.Endpoints, p.URL())
	}
	if w.ws {
		cfg.Subscribe = w.proxies[0].WSURL()
	}
	client, err := evm.Open(cfg)
	require.NoError(w.t, err)
	s, err := store.New(db, store.Config{ChainID: worldChain, Events: w.set, Targets: []string{"topic"}})
	require.NoError(w.t, err)
	factories := []common.Address{worldFactory}
	require.NoError(w.t, s.Register(w.t.Context(), store.Settings{Factories: factories, StartBlock: 1}))
	watcher = New(Config{
		Client: client, Store: s, Events: w.set, Factories: factories, Finality: w.finality, Delivery: w.delivery, Alone: len(w.proxies) == 1,
		Interval: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)).With("process", len(w.processes)),
	})
	watcher.confirm.maxBytes, watcher.finalizeMost = w.listBytes, w.finalizeMost
	return watcher, func() {
		client.Close()
		db.Close()
	}
}

// expire ends the lease while its holder does not know.
func (w *world) expire() {
	w.t.Helper()
	_, err := w.db.Exec(w.t.Context(), `UPDATE escrow_chains SET watcher = '', watcher_until = '-infinity'`)
	require.NoError(w.t, err)
}

// epoch returns the number of elections so far.
func (w *world) epoch() (n int64) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT epoch FROM escrow_chains`).Scan(&n))
	return n
}

// number returns a number that no other call returned.
func (w *world) number() uint64 {
	w.made++
	return w.made
}

// log returns the log of an event.
func (w *world) log(by common.Address, contract abi.ABI, event string, args ...any) types.Log {
	w.t.Helper()
	topics, data, err := escrowchain.Log(contract, event, args...)
	require.NoError(w.t, err)
	return types.Log{Address: by, Topics: topics, Data: data}
}

func (w *world) tx(logs ...types.Log) scripted.Tx {
	return scripted.Tx{Hash: common.Hash(binary.BigEndian.AppendUint64(make([]byte, 24), w.number())), Logs: logs}
}

func (w *world) approved(by common.Address) types.Log {
	return w.log(by, escrowchain.EscrowABI(), "Approved", parties[w.dice.IntN(3)])
}

// create creates an escrow by a factory.
func (w *world) create(factory common.Address) scripted.Tx {
	escrow := common.Address(binary.BigEndian.AppendUint64(make([]byte, 12), w.number()))
	amount := new(big.Int).SetUint64(w.number())
	logs := []types.Log{ // the constructor emits first
		w.log(escrow, escrowchain.EscrowABI(), "EscrowCreated", parties[0], parties[1], parties[2], amount, big.NewInt(9), uint8(2)),
		w.log(factory, escrowchain.FactoryABI(), "EscrowDeployed", escrow, parties[0], parties[1], parties[2], amount, big.NewInt(9), uint8(2)),
	}
	if w.dice.IntN(3) == 0 {
		logs = append(logs, w.approved(escrow))
	}
	return w.tx(logs...)
}

// escrows returns those of the branch that ends with a block.
func escrowsOf(b *scripted.Block) (all []common.Address) {
	for ; b != nil; b = b.Parent {
		for _, l := range b.Logs() {
			if l.Address == worldFactory && l.Topics[0] == escrowchain.FactoryABI().Events["EscrowDeployed"].ID {
				all = append(all, common.BytesToAddress(l.Topics[1][:]))
			}
		}
	}
	return all
}

// act returns a transaction that may follow a block.
func (w *world) act(after *scripted.Block) scripted.Tx {
	all := escrowsOf(after)
	if len(all) == 0 {
		return w.create(worldFactory)
	}
	escrow := all[w.dice.IntN(len(all))]
	switch w.dice.IntN(10) {
	case 0, 1, 2:
		return w.create(worldFactory)
	case 3:
		return w.create(common.Address{0xfb}) // a stranger's factory
	case 4: // as a last approval does
		return w.tx(w.approved(escrow), w.log(escrow, escrowchain.EscrowABI(), "EscrowReleased", parties[1], big.NewInt(5), big.NewInt(6)))
	case 5:
		return w.tx(w.log(escrow, escrowchain.EscrowABI(), "EscrowRefunded", parties[0], big.NewInt(5), big.NewInt(6)))
	case 6: // one does not decode, and counts
		bad := w.approved(escrow)
		bad.Data = junk
		return w.tx(bad, w.approved(escrow))
	case 7: // strangers
		var logs []types.Log
		for range 1 + w.dice.IntN(200) {
			logs = append(logs, w.approved(common.Address(binary.BigEndian.AppendUint64(make([]byte, 12), 1<<60+w.number()))))
		}
		return w.tx(logs...)
	case 8: // a node that numbers logs in its own way
		odd := w.approved(escrow)
		odd.Index = 0xfffffffc
		again := w.log(escrow, escrowchain.EscrowABI(), "EscrowRefunded", parties[0], big.NewInt(7), big.NewInt(8))
		again.Index = 0xfffffffc
		return w.tx(odd, again)
	}
	return w.tx(w.approved(escrow))
}

// mine makes blocks on the head.
func (w *world) mine(n int) {
	for range n {
		var txs []scripted.Tx
		for len(w.pool) > 0 && w.dice.IntN(2) == 0 { // mined again
			txs, w.pool = append(txs, w.pool[0]), w.pool[1:]
		}
		for w.dice.IntN(3) > 0 && len(txs) < 4 {
			txs = append(txs, w.act(w.head))
		}
		w.head = w.chain.Mine(w.head, txs...)
	}
	w.show()
}

// fork replaces the blocks after one by others, and returns without any if n is 0: then the chain is shorter.
func (w *world) fork(depth uint64, n int) {
	depth = min(depth, w.head.Number-w.final.Number)
	w.pool = nil
	for range depth {
		w.pool = append(slices.Clone(w.head.Txs), w.pool...)
		w.head = w.head.Parent
	}
	if w.dice.IntN(2) == 0 {
		w.pool = nil
	}
	w.mine(n)
}

// finalize makes blocks final, and leaves some that are not.
func (w *world) finalize(leave uint64) {
	if number := w.head.Number - min(leave, w.head.Number); number > w.final.Number {
		w.final = w.head.At(number)
	}
	w.show()
}

// messages returns the messages in the order of the outbox.
func (w *world) messages() []*events.Message {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `SELECT payload FROM escrow_outbox ORDER BY seq`)
	require.NoError(w.t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*events.Message, error) {
		var text []byte
		m := new(events.Message)
		if err := row.Scan(&text); err != nil {
			return nil, err
		}
		return m, json.Unmarshal(text, m)
	})
	require.NoError(w.t, err)
	return all
}

// fact is what a message says about an event in a block.
func fact(id string, b *scripted.Block, l *types.Log, kind string, escrow common.Address) string {
	return fmt.Sprint(id, b.Number, b.Hash, b.Time, l.Index, kind, l.Address, escrow)
}

// truth returns the events of the branch that ends with a block, in order.
func (w *world) truth(end *scripted.Block) (facts []string) {
	names := map[common.Hash]string{}
	for _, contract := range []abi.ABI{escrowchain.EscrowABI(), escrowchain.FactoryABI()} {
		for name, e := range contract.Events {
			names[e.ID] = name
		}
	}
	var branch []*scripted.Block
	for b := end; b != nil; b = b.Parent {
		branch = append(branch, b)
	}
	registered := map[common.Address]bool{}
	for _, b := range slices.Backward(branch) {
		for _, l := range b.Logs() {
			if l.Address == worldFactory {
				registered[common.BytesToAddress(l.Topics[1][:])] = true
			}
		}
		places := map[string]int{}
		for _, l := range b.Logs() {
			id := fmt.Sprintf("%d:%s:%#x:%s", worldChain, l.TxHash, l.Address, l.Topics[0])
			n := places[id]
			places[id]++
			escrow := l.Address
			if l.Address == worldFactory {
				escrow = common.BytesToAddress(l.Topics[1][:])
			} else if !registered[l.Address] {
				continue
			}
			if !slices.Equal(l.Data, junk) {
				facts = append(facts, fact(fmt.Sprintf("%s:%d", id, n), b, l, names[l.Topics[0]], escrow))
			}
		}
	}
	return facts
}

// branch is truth for many calls.
func (w *world) branch(end *scripted.Block) map[string]bool {
	facts := w.branches[end.Hash]
	if facts == nil {
		facts = map[string]bool{}
		for _, f := range w.truth(end) {
			facts[f] = true
		}
		w.branches[end.Hash] = facts
	}
	return facts
}

// requireTruth requires that the messages that stand are the events of the chain up to a block, and that all messages are of blocks that
// were on some branch, without gaps, and as a stack for each escrow.
func (w *world) requireTruth(end *scripted.Block) {
	w.t.Helper()
	stacks := map[common.Address][]*events.Message{}
	sequence, revision := map[common.Address]int64{}, map[string]int{}
	for i, m := range w.messages() {
		sequence[m.Escrow]++
		require.Equal(w.t, sequence[m.Escrow], m.Sequence, "message %d", i)
		require.Greater(w.t, m.Revision, revision[m.EventID], "message %d", i)
		revision[m.EventID] = m.Revision
		b := w.chain.Block(m.BlockHash)
		require.NotNil(w.t, b, "message %d is of no block", i)
		require.Contains(w.t, w.branch(b), w.factOf(m), "message %d is on no branch", i)
		stack := stacks[m.Escrow]
		at := slices.IndexFunc(stack, func(other *events.Message) bool { return other.EventID == m.EventID })
		if at >= 0 {
			require.Equal(w.t, events.Pending, stack[at].Status, "message %d", i)
			require.Equal(w.t, stack[at].BlockHash, m.BlockHash, "message %d", i)
		}
		switch {
		case m.Status == events.Retracted:
			require.Equal(w.t, len(stack)-1, at, "message %d takes back another than the newest event", i)
			stack = stack[:at]
		case at < 0:
			stack = append(stack, m)
		default:
			require.Equal(w.t, events.Final, m.Status, "message %d", i)
			stack[at] = m
		}
		if m.Status == events.Final {
			require.False(w.t, slices.ContainsFunc(stack[:max(at, 0)], func(m *events.Message) bool { return m.Status != events.Final }), "message %d", i)
		}
		require.False(w.t, w.delivery == Finalized && m.Status != events.Final, "message %d", i)
		stacks[m.Escrow] = stack
	}
	var got []string
	for _, stack := range stacks {
		for _, m := range stack {
			got = append(got, w.factOf(m))
			require.Equal(w.t, m.BlockNumber <= w.final.Number, m.Status == events.Final, "block %d", m.BlockNumber)
		}
	}
	require.ElementsMatch(w.t, w.truth(end), got)
}

func (w *world) factOf(m *events.Message) string {
	b := w.chain.Block(m.BlockHash)
	return fact(m.EventID, &scripted.Block{Number: m.BlockNumber, Hash: b.Hash, Time: uint64(m.BlockTime.Unix())}, &types.Log{Index: uint(m.LogIndex), Address: m.Contract}, m.Type, m.Escrow)
}

// awaitAll returns when all that is on the chain is stored.
func (w *world) awaitAll() {
	w.t.Helper()
	want := w.head
	if w.delivery == Finalized {
		if want = w.final; want.Number == 0 {
			return
		}
	}
	var cursor, final []byte
	require.Eventually(w.t, func() bool {
		err := w.db.QueryRow(w.t.Context(), `SELECT coalesce(cursor_hash, ''), coalesce(final_hash, '') FROM escrow_chains`).Scan(&cursor, &final)
		return err == nil && common.BytesToHash(cursor) == want.Hash && (w.final.Number == 0 || common.BytesToHash(final) == w.final.Hash)
	}, patience, 2*time.Millisecond, "chain at %d %s, final %d", want.Number, want.Hash, w.final.Number)
}
