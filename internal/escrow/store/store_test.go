package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

const chainID = 1337

var (
	set     = events.BuiltIn()
	factory = common.Address{0xfa}
	payer   = common.Address{0xa1}
	payee   = common.Address{0xa2}
	arbiter = common.Address{0xa3}
)

// fixture is a chain in a database of its own, whose lease the test has.
type fixture struct {
	*store.Store
	t     *testing.T
	db    *pgxpool.Pool
	epoch int64
}

func setup(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	f := &fixture{t: t, db: testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)}
	f.Store = f.open()
	require.NoError(t, f.Register(t.Context(), store.Settings{Factories: []common.Address{factory}, StartBlock: 1}))
	f.elect("first")
	return f
}

func (f *fixture) open() *store.Store {
	f.t.Helper()
	s, err := store.New(f.db, store.Config{ChainID: chainID, Events: set, Targets: []string{"topic", "hook"}})
	require.NoError(f.t, err)
	return s
}

// elect gives the lease to a process.
func (f *fixture) elect(holder string) {
	f.t.Helper()
	epoch, elected, err := f.WatcherLease().Elect(f.t.Context(), holder, 0, 0)
	require.NoError(f.t, err)
	require.True(f.t, elected)
	f.epoch = epoch
}

// messages returns the messages to a target in the order of the outbox.
func (f *fixture) messages(target string) (all []*events.Message) {
	f.t.Helper()
	rows, err := f.db.Query(f.t.Context(), `SELECT payload FROM escrow_outbox WHERE lane = $1 ORDER BY seq`, store.Lane(chainID, target))
	require.NoError(f.t, err)
	all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*events.Message, error) {
		var text []byte
		m := new(events.Message)
		if err := row.Scan(&text); err != nil {
			return nil, err
		}
		return m, json.Unmarshal(text, m)
	})
	require.NoError(f.t, err)
	return all
}

// count returns the result of a query.
func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), query, args...).Scan(&n))
	return n
}

// registry is what Match is told of the chain.
type registry map[common.Address]bool

func (r registry) Factory(a common.Address) bool { return a == factory }
func (r registry) Escrow(a common.Address) bool  { return r[a] }

// block returns a block; the same seed makes the same one.
func block(number uint64, seed int) events.Block {
	return events.Block{
		Number: number, Hash: common.BigToHash(big.NewInt(int64(number)<<32 | int64(seed))), Parent: common.Hash{31: byte(seed)}, Time: time.Unix(int64(1e9+number), 0).UTC(),
	}
}

// emit returns the log of an event.
func emit(t testing.TB, by common.Address, contract abi.ABI, name string, args ...any) events.Log {
	t.Helper()
	topics, data, err := escrowchain.Log(contract, name, args...)
	require.NoError(t, err)
	return events.Log{Contract: by, Topics: topics, Data: data, Tx: common.Hash{1}}
}

func deployed(t testing.TB, escrow common.Address) events.Log {
	return emit(t, factory, escrowchain.FactoryABI(), "EscrowDeployed", escrow, payer, payee, arbiter, big.NewInt(5), big.NewInt(3600), uint8(2))
}

func approved(t testing.TB, escrow common.Address) events.Log {
	return emit(t, escrow, escrowchain.EscrowABI(), "Approved", payer)
}

func released(t testing.TB, escrow common.Address) events.Log {
	return emit(t, escrow, escrowchain.EscrowABI(), "EscrowReleased", payee, big.NewInt(5), big.NewInt(6))
}

// read returns a block with the events of logs.
func read(b events.Block, known registry, logs ...events.Log) store.Read {
	found, parked := set.Match(chainID, logs, known)
	return store.Read{Block: b, Found: found, Parked: parked}
}

// The messages, the registry and the events are those of the chain after each step, and so they are for a process that starts later.
func TestCommit_Life_MessagesAndRegistry(t *testing.T) {
	f := setup(t)
	escrow := common.Address{0xe5}
	b1, b2, b3 := block(1, 0), block(2, 0), block(3, 0)
	messages, err := f.Commit(t.Context(), store.Step{
		Epoch: f.epoch, Final: b1, To: b2, Count: 2,
		Blocks: []store.Read{read(b1, nil, deployed(t, escrow)), read(b2, registry{escrow: true}, approved(t, escrow), released(t, escrow))},
	})
	require.NoError(t, err)
	require.Len(t, messages, 3)
	require.Equal(t, []events.Status{events.Final, events.Pending, events.Pending}, []events.Status{messages[0].Status, messages[1].Status, messages[2].Status})
	require.Equal(t, messages, f.messages("topic"))
	require.Equal(t, messages, f.messages("hook"))
	chain, err := f.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, store.Chain{
		Settings: store.Settings{Factories: []common.Address{factory}, StartBlock: 1}, Events: set.String(),
		Targets: []string{"hook", "topic"}, Epoch: 1, Cursor: events.Block{Number: 2, Hash: b2.Hash, Time: chain.Cursor.Time}, Final: events.Block{Number: 1, Hash: b1.Hash},
	}, chain)
	require.True(t, b2.Time.Equal(chain.Cursor.Time))
	known, err := f.Escrows(t.Context())
	require.NoError(t, err)
	require.Equal(t, []common.Address{escrow}, known)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM escrow_registry WHERE chain_id = 1337 AND escrow_address = '0xe500000000000000000000000000000000000000'
		AND payer = '0xa100000000000000000000000000000000000000' AND payee LIKE '0xa2%' AND amount = 5 AND status = 'released' AND created_block = 1
		AND last_monitored_block = 2 AND partition = $1`, events.Partition(escrow)))

	// Block 2 is replaced by another one without the release, and then becomes final.
	other := block(2, 1)
	messages, err = f.Commit(t.Context(), store.Step{
		Epoch: f.epoch, From: b2, Ancestor: &b1, To: b3, Count: 2, Blocks: []store.Read{read(other, registry{escrow: true}, approved(t, escrow)), read(b3, nil)},
	})
	require.NoError(t, err)
	var got []string
	for _, m := range messages {
		got = append(got, fmt.Sprint(m.Status, " ", m.Type, " ", m.Sequence, " ", m.Revision, " ", m.BlockHash == other.Hash))
	}
	require.Equal(t, []string{"retracted EscrowReleased 4 2 false", "retracted Approved 5 2 false", "pending Approved 6 3 true"}, got)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM escrow_registry WHERE status = 'active'`))
	blocks, err := f.Blocks(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, []common.Hash{b1.Hash, other.Hash, b3.Hash}, []common.Hash{blocks[0].Hash, blocks[1].Hash, blocks[2].Hash})
	messages, err = f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b3, Final: other, To: b3})
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.Equal(t, events.Final, messages[0].Status)
	require.Equal(t, other.Hash, messages[0].BlockHash)
	require.Equal(t, 0, f.count(`SELECT count(*) FROM processed_events WHERE status = 'pending'`))
}

// E9: a retracted creation takes the escrow from the registry, and its sequence goes on when it is created again.
func TestCommit_CreationRemoved_EscrowIsNotRegistered(t *testing.T) {
	f := setup(t)
	escrow := common.Address{0xe5}
	b1, b2 := block(1, 0), block(2, 0)
	_, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, To: b2, Blocks: []store.Read{read(b1, nil), read(b2, nil, deployed(t, escrow))}})
	require.NoError(t, err)
	again := block(2, 1)
	_, err = f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b2, Ancestor: &b1, To: again, Blocks: []store.Read{read(again, nil)}})
	require.NoError(t, err)
	known, err := f.Escrows(t.Context())
	require.NoError(t, err)
	require.Empty(t, known)
	require.Zero(t, f.count(`SELECT count(*) FROM escrow_registry`))
	b3 := block(3, 0)
	messages, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: again, To: b3, Blocks: []store.Read{read(b3, nil, deployed(t, escrow))}})
	require.NoError(t, err)
	require.Equal(t, int64(3), messages[0].Sequence)
	require.Equal(t, 3, messages[0].Revision)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM escrow_registry WHERE created_block = 3`))
}

// The chain's row is locked during a reorganization, so it makes no more statements for more escrows. The registry has the facts of each.
func TestCommit_Reorganization_StatementsAreFew(t *testing.T) {
	f := setup(t)
	statements := func(number uint64, escrows int) int {
		known := registry{}
		var create, settle []events.Log
		for i := range escrows {
			escrow := common.Address{byte(number), byte(i), 1}
			known[escrow] = true
			one, two := deployed(t, escrow), released(t, escrow)
			one.Tx, two.Tx = common.Hash{byte(number), 1}, common.Hash{byte(number), 2}
			create, settle = append(create, one), append(settle, two)
		}
		chain, err := f.Chain(t.Context())
		require.NoError(t, err)
		b1, b2, other := block(number, 0), block(number+1, 0), block(number+1, 1)
		_, err = f.Commit(t.Context(), store.Step{
			Epoch: f.epoch, From: chain.Cursor, To: b2, Blocks: []store.Read{read(b1, nil, create...), read(b2, known, settle...)},
		})
		require.NoError(t, err)
		require.Equal(t, escrows, f.count(`SELECT count(*) FROM escrow_registry WHERE created_block = $1 AND status = 'released'`, number))
		n := len(f.record(func(s *store.Store) {
			_, err := s.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b2, Ancestor: &b1, To: other, Blocks: []store.Read{read(other, nil)}})
			require.NoError(t, err)
		}))
		require.Equal(t, escrows, f.count(`SELECT count(*) FROM escrow_registry WHERE created_block = $1 AND status = 'active' AND amount = 5`, number))
		return n
	}
	require.Equal(t, statements(1, 2), statements(11, 40))
}

// E1: of two processes that follow the same cursor one stores its step, and one whose lease has passed to another stores nothing.
func TestCommit_AnotherProcess_IsFenced(t *testing.T) {
	f := setup(t)
	b1, b2 := block(1, 0), block(2, 0)
	step := store.Step{Epoch: f.epoch, To: b1, Blocks: []store.Read{read(b1, nil, deployed(t, common.Address{1}))}}
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := f.Commit(t.Context(), step)
			results <- err
		}()
	}
	stored := 0
	for range cap(results) {
		if err := <-results; err == nil {
			stored++
		} else {
			require.ErrorIs(t, err, store.ErrFenced)
		}
	}
	require.Equal(t, 1, stored)
	require.Len(t, f.messages("topic"), 1)

	former := f.epoch
	f.elect("second")
	for name, wrong := range map[string]store.Step{
		"a former epoch":  {Epoch: former, From: b1, To: b2},
		"another cursor":  {Epoch: f.epoch, From: block(1, 1), To: b2},
		"an older cursor": {Epoch: f.epoch, To: b2},
	} {
		_, err := f.Commit(t.Context(), wrong)
		require.ErrorIs(t, err, store.ErrFenced, name)
	}
	_, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b1, To: b2})
	require.NoError(t, err)
}

// E1: no step of a halted chain is stored.
func TestCommit_Halted_StoresNothing(t *testing.T) {
	f := setup(t)
	require.NoError(t, f.Halt(t.Context(), "block 7 is 0xa and was 0xb"))
	require.NoError(t, f.Halt(t.Context(), "another reason"))
	_, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, To: block(1, 0)})
	require.ErrorIs(t, err, store.ErrHalted)
	require.ErrorContains(t, err, "block 7 is 0xa and was 0xb")
}

// E11: a claim finds whether the chain of its message is halted.
func TestOutbox_Claim_ReadsTheHalt(t *testing.T) {
	f := setup(t)
	b1 := block(1, 0)
	_, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, To: b1, Blocks: []store.Read{read(b1, nil, deployed(t, common.Address{1}))}})
	require.NoError(t, err)
	box, err := outbox.New(f.db, store.Outbox)
	require.NoError(t, err)
	require.NoError(t, postgres.InTx(t.Context(), f.db, func(tx pgx.Tx) error { return box.Insert(t.Context(), tx, outbox.Entry{Lane: "7/topic"}) }))
	require.Equal(t, map[string]bool{"1337/topic": false, "1337/hook": false, "7/topic": false}, f.halts(box, 3))
	require.NoError(t, f.Halt(t.Context(), "block 7 is 0xa and was 0xb"))
	require.Equal(t, map[string]bool{"1337/topic": true, "1337/hook": true, "7/topic": false}, f.halts(box, 3))
}

// halts claims the entries of a number of lanes, gives them back, and returns whether the chain of each lane is halted.
func (f *fixture) halts(box *outbox.Outbox, lanes int) map[string]bool {
	f.t.Helper()
	claimed := make(chan outbox.Work)
	w, err := box.NewWorker(outbox.Config{Concurrency: lanes, Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		claimed <- w
		return outbox.Returned()
	}})
	require.NoError(f.t, err)
	ctx, stop := context.WithCancel(f.t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	seen := map[string]bool{}
	timeout := time.After(2 * time.Minute)
	for len(seen) < lanes {
		select {
		case w := <-claimed:
			seen[w.Lane] = store.Halted(w)
		case <-timeout:
			require.FailNow(f.t, "lanes were not claimed", "%v", seen)
		}
	}
	stop()
	for {
		select {
		case <-claimed:
		case err := <-ended:
			require.NoError(f.t, err)
			return seen
		}
	}
}

// E11: a claim finds the halt of a chain with the longest id. Lanes that begin with no chain id do not fail the claim.
func TestOutbox_Claim_LongestChainID(t *testing.T) {
	f := setup(t)
	const longest = math.MaxInt64
	s, err := store.New(f.db, store.Config{ChainID: longest, Events: set, Targets: []string{"topic"}})
	require.NoError(t, err)
	require.NoError(t, s.Register(t.Context(), store.Settings{Factories: []common.Address{factory}, StartBlock: 1}))
	require.NoError(t, s.Halt(t.Context(), "block 7 is 0xa and was 0xb"))
	want := map[string]bool{store.Lane(longest, "topic"): true}
	for _, lane := range []string{"", "webhook", "9223372036854775808/topic", "9999999999999999999/topic", "92233720368547758070/topic", "-1/topic"} {
		want[lane] = false
	}
	box, err := outbox.New(f.db, store.Outbox)
	require.NoError(t, err)
	require.NoError(t, postgres.InTx(t.Context(), f.db, func(tx pgx.Tx) error {
		for lane := range want {
			if err := box.Insert(t.Context(), tx, outbox.Entry{Lane: lane}); err != nil {
				return err
			}
		}
		return nil
	}))
	require.Equal(t, want, f.halts(box, len(want)))
}

// E10: a step that contradicts the final block is refused.
func TestCommit_FinalBlockChanged_Refused(t *testing.T) {
	f := setup(t)
	b1, b2, b3 := block(1, 0), block(2, 0), block(3, 0)
	_, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, Final: b2, To: b3, Blocks: []store.Read{read(b1, nil), read(b2, nil), read(b3, nil)}})
	require.NoError(t, err)
	_, err = f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b3, Ancestor: &b1, To: block(2, 1)})
	require.ErrorIs(t, err, store.ErrFinality)
	_, err = f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b3, Final: block(2, 1), To: b3})
	require.ErrorIs(t, err, store.ErrFinality)
	_, err = f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b3, Final: b1, To: b3}) // the final block does not go back
	require.NoError(t, err)
	chain, err := f.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, b2.Number, chain.Final.Number)
}

// E7: a parked log is stored with its bytes, beside the events of its block.
func TestCommit_NotDecodable_Parked(t *testing.T) {
	f := setup(t)
	escrow := common.Address{0xe5}
	bad := approved(t, escrow)
	bad.Data, bad.Index = []byte{0, 1}, 0xfffffffc
	b1, b2 := block(1, 0), block(2, 0)
	highest := bad
	highest.Tx, highest.Index = common.Hash{2}, math.MaxUint64
	messages, err := f.Commit(t.Context(), store.Step{
		Epoch: f.epoch, To: b2, Blocks: []store.Read{read(b1, nil, deployed(t, escrow)), read(b2, registry{escrow: true}, bad, approved(t, escrow), highest)},
	})
	require.NoError(t, err)
	require.Len(t, messages, 2)
	require.Contains(t, messages[1].EventID, ":1")
	require.Equal(t, 1, f.count(`SELECT count(*) FROM escrow_parked WHERE data = '\x0001' AND escrow = $1 AND block_hash = $2 AND log_index = 4294967292 AND reason <> ''`, escrow[:], b2.Hash[:]))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM escrow_parked WHERE tx_hash = $1 AND log_index = 9223372036854775807`, highest.Tx[:]))
	_, err = f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b2, Ancestor: &b1, To: block(2, 1)})
	require.NoError(t, err)
	require.Zero(t, f.count(`SELECT count(*) FROM escrow_parked`))
}

// E5: a start with other settings than the stored ones is refused.
func TestRegister_OtherSettings_Refused(t *testing.T) {
	f := setup(t)
	require.NoError(t, f.Register(t.Context(), store.Settings{Factories: []common.Address{factory}, StartBlock: 1}))
	err := f.Register(t.Context(), store.Settings{Factories: []common.Address{{2}, {1}}, StartBlock: 9})
	require.ErrorContains(t, err, "FACTORY_ADDRESS is 0x0100000000000000000000000000000000000000,0x0200000000000000000000000000000000000000, and the database has 0xfa00000000000000000000000000000000000000")
	require.ErrorContains(t, err, "START_BLOCK is 9, and the database has 1")
	require.NotContains(t, err.Error(), "ESCROW_EVENTS")
}

// statements records the statements of a database.
type statements struct {
	mu  sync.Mutex
	all []statement
}

type statement struct {
	sql  string
	rows int64 // that it affected
}

type sqlKey struct{}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, sqlKey{}, data.SQL)
}

func (s *statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s.add(ctx.Value(sqlKey{}).(string), data.CommandTag)
}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statements) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.add(data.SQL, data.CommandTag)
}

func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (s *statements) add(sql string, tag pgconn.CommandTag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, statement{sql, tag.RowsAffected()})
}

// record returns the statements of a call.
func (f *fixture) record(call func(*store.Store)) []statement {
	f.t.Helper()
	s := new(statements)
	cfg := f.db.Config()
	cfg.ConnConfig.Tracer = s
	db, err := pgxpool.NewWithConfig(f.t.Context(), cfg)
	require.NoError(f.t, err)
	defer db.Close()
	opened, err := store.New(db, store.Config{ChainID: chainID, Events: set, Targets: []string{"topic", "hook"}})
	require.NoError(f.t, err)
	call(opened)
	return s.all
}

// A step with many events inserts their messages by several statements, in order: one has a limit of time.
func TestCommit_ManyEvents_InsertedInParts(t *testing.T) {
	f := setup(t)
	escrow := common.Address{0xe5}
	logs := []events.Log{deployed(t, escrow)}
	one := approved(t, escrow)
	for i := range 3_000 {
		one.Tx = common.Hash{byte(i >> 8), byte(i), 1}
		logs = append(logs, one)
	}
	b := block(1, 0)
	var messages []*events.Message
	inserts := 0
	for _, s := range f.record(func(s *store.Store) {
		var err error
		messages, err = s.Commit(t.Context(), store.Step{Epoch: f.epoch, To: b, Blocks: []store.Read{read(b, nil, logs...)}})
		require.NoError(t, err)
	}) {
		if strings.HasPrefix(s.sql, "INSERT INTO escrow_outbox") {
			inserts++
			require.LessOrEqual(t, s.rows, int64(5_000))
		}
	}
	require.Equal(t, 2, inserts)
	require.Len(t, messages, 3_001)
	require.Equal(t, messages, f.messages("topic"))
	require.Equal(t, messages, f.messages("hook"))
}

// A reorganization of very many events, and the rewind of a backfill, are stored in several transactions. The messages are those of one.
func TestCommit_ManyEventsRemoved_InParts(t *testing.T) {
	f := setup(t)
	escrow := common.Address{0xe5}
	first := block(1, 0)
	final := store.Step{Epoch: f.epoch, To: first, Final: first, Blocks: []store.Read{read(first, nil, deployed(t, escrow))}}
	_, err := f.Commit(t.Context(), final)
	require.NoError(t, err)
	// add stores blocks with numbers of events, and returns the last one.
	add := func(seed int, counts ...int) events.Block {
		step := store.Step{Epoch: f.epoch, From: first}
		one := approved(t, escrow)
		for i, n := range counts {
			logs := make([]events.Log, n)
			for k := range logs {
				one.Tx = common.Hash{byte(seed), byte(i), byte(k >> 8), byte(k), 1}
				logs[k] = one
			}
			step.To = block(uint64(2+i), seed)
			step.Blocks = append(step.Blocks, read(step.To, registry{escrow: true}, logs...))
		}
		_, err := f.Commit(t.Context(), step)
		require.NoError(t, err)
		return step.To
	}
	all, renewed := len(f.messages("topic")), 0
	renew := func(context.Context) error { renewed++; return nil }
	for name, c := range map[string]struct {
		counts  []int
		parts   []int64 // that have events
		renewed int
		remove  func(*store.Store, events.Block) error
	}{
		"a reorganization": {[]int{2, 1, 5_001, 0}, []int64{5_001, 3}, 2, func(s *store.Store, last events.Block) error {
			messages, err := s.Commit(t.Context(), store.Step{Epoch: f.epoch, From: last, Ancestor: &first, To: first, Between: renew})
			require.Len(t, messages, 3, "of the last part")
			return err
		}},
		"a backfill": {[]int{2, 1, 5_000, 0}, []int64{5_000, 3}, 1, func(s *store.Store, _ events.Block) error {
			seen, err := s.Chain(t.Context())
			require.NoError(t, err)
			_, err = s.CommitLate(t.Context(), store.Late{Seen: seen, To: 1, Last: &store.LastLate{Epoch: f.epoch, Settings: seen.Settings, Between: renew}})
			return err
		}},
	} {
		renewed = 0
		last := add(len(name), c.counts...)
		var parts []int64
		for _, s := range f.record(func(s *store.Store) { require.NoError(t, c.remove(s, last), name) }) {
			if strings.HasPrefix(s.sql, "INSERT INTO processed_events") {
				parts = append(parts, s.rows)
			}
		}
		require.Equal(t, c.parts, parts, name)
		require.Equal(t, c.renewed, renewed, name)
		chain, err := f.Chain(t.Context())
		require.NoError(t, err)
		require.Equal(t, first.Hash, chain.Cursor.Hash)
		messages := f.messages("topic")[all:]
		all += len(messages)
		for i, m := range messages {
			require.Equal(t, messages[0].Sequence+int64(i), m.Sequence)
			if i >= len(messages)/2 { // the newest first
				require.Equal(t, []any{events.Retracted, messages[len(messages)-1-i].EventID}, []any{m.Status, m.EventID})
			}
		}
	}
}

// The messages of a step are for the targets that the newest start has stored.
func TestCommit_OtherTargetsStored_GetTheMessages(t *testing.T) {
	f := setup(t)
	s, err := store.New(f.db, store.Config{ChainID: chainID, Events: set, Targets: []string{"topic", "new"}})
	require.NoError(t, err)
	require.NoError(t, s.Register(t.Context(), store.Settings{Factories: []common.Address{factory}, StartBlock: 1}))
	b1 := block(1, 0)
	messages, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, To: b1, Blocks: []store.Read{read(b1, nil, deployed(t, common.Address{1}))}})
	require.NoError(t, err)
	require.Equal(t, messages, f.messages("topic"))
	require.Equal(t, messages, f.messages("new"))
	require.Empty(t, f.messages("hook"))
}

// A limited number of pending events, but at least a block, becomes final by a step.
func TestFinalizeUpTo_PendingEvents_AreLimited(t *testing.T) {
	f := setup(t)
	escrow := common.Address{0xe5}
	step := store.Step{Epoch: f.epoch}
	for i, n := range []int{2, 0, 3, 1, 1, 0} { // events of the blocks from 1 on
		var logs []events.Log
		for k := range n {
			one := approved(t, escrow)
			one.Tx = common.Hash{byte(i), byte(k), 1}
			logs = append(logs, one)
		}
		step.To = block(uint64(i+1), 0)
		step.Blocks = append(step.Blocks, read(step.To, registry{escrow: true}, logs...))
	}
	_, err := f.Commit(t.Context(), step)
	require.NoError(t, err)
	for _, c := range []struct{ upto, final, want uint64 }{
		{upto: 6, want: 2}, {upto: 2, want: 2}, {upto: 6, final: 2, want: 3}, {upto: 6, final: 3, want: 6}, {upto: 4, final: 3, want: 4}, {upto: 6, final: 6, want: 6},
	} {
		_, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: step.To, To: step.To, Final: block(c.final, 0)})
		require.NoError(t, err)
		got, err := f.FinalizeUpTo(t.Context(), c.upto, 2)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// The newest start decides about the targets, unless it is refused.
func TestRegister_OtherTargets_ReplaceTheStored(t *testing.T) {
	f := setup(t)
	settings := store.Settings{Factories: []common.Address{factory}, StartBlock: 1}
	register := func(settings store.Settings, targets ...string) error {
		s, err := store.New(f.db, store.Config{ChainID: chainID, Events: set, Targets: targets})
		require.NoError(t, err)
		return s.Register(t.Context(), settings)
	}
	stored := func() []string {
		chain, err := f.Chain(t.Context())
		require.NoError(t, err)
		return chain.Targets
	}
	require.Equal(t, []string{"hook", "topic"}, stored())
	require.NoError(t, register(settings, "topic", "new", "hook"))
	require.Equal(t, []string{"hook", "new", "topic"}, stored())
	require.Error(t, register(store.Settings{Factories: []common.Address{factory}, StartBlock: 2}, "topic"))
	require.Equal(t, []string{"hook", "new", "topic"}, stored())
	require.NoError(t, register(settings, "topic"))
	require.Equal(t, []string{"topic"}, stored())
}

// E8: random chains with reorganizations, read by processes that stop at any step: the messages of the outbox are those of a ledger in memory
// that sees the same chain.
func TestCommit_RandomChains_LikeTheLedger(t *testing.T) {
	f := setup(t)
	r := rand.New(rand.NewPCG(1, 2))
	var chain []store.Read
	var from events.Block
	final, seed := 0, 0
	var want []*events.Message
	l := events.Ledger{Chain: chainID, Accounts: map[common.Address]*events.Account{}, Last: map[string]*events.Message{}}
	for range 150 {
		step := store.Step{Epoch: f.epoch, From: from}
		l.Messages = nil
		if r.IntN(4) == 0 && len(chain) > final {
			keep := final + r.IntN(len(chain)-final)
			if keep > 0 {
				step.Ancestor = &chain[keep-1].Block
				changed := map[common.Address]bool{}
				for _, b := range slices.Backward(chain[keep:]) {
					for _, o := range slices.Backward(b.Found) {
						require.NoError(t, l.Retract(o.ID.String()))
						changed[o.Escrow] = true
					}
				}
				chain = slices.Clone(chain[:keep])
				for escrow := range changed {
					var standing []*events.Message
					for _, b := range chain {
						for _, o := range b.Found {
							if o.Escrow == escrow {
								standing = append(standing, l.Last[o.ID.String()])
							}
						}
					}
					l.Restate(escrow, set, standing)
				}
			}
		}
		if upto := len(chain); upto > final && r.IntN(2) == 0 {
			for final < upto && r.IntN(3) > 0 {
				for _, o := range chain[final].Found {
					require.NoError(t, l.Finalize(o.ID.String()))
				}
				final++
			}
			if final > 0 {
				step.Final = chain[final-1].Block
			}
		}
		for range 1 + r.IntN(3) {
			seed++
			known := registry{}
			for escrow, a := range l.Accounts {
				known[escrow] = a.Created != nil
			}
			var logs []events.Log
			for range r.IntN(5) {
				escrow := common.Address{byte(1 + r.IntN(4))}
				one := []func(testing.TB, common.Address) events.Log{deployed, approved, released}[r.IntN(3)](t, escrow)
				one.Tx = common.Hash{byte(r.IntN(10)), byte(len(chain))}
				logs = append(logs, one)
			}
			b := read(block(uint64(len(chain)+1), seed), known, logs...)
			chain, step.Blocks = append(chain, b), append(step.Blocks, b)
			for i := range b.Found {
				require.NoError(t, l.Add(b.Block, &b.Found[i], events.Pending))
			}
		}
		step.To = chain[len(chain)-1].Block
		got, err := f.Commit(t.Context(), step)
		require.NoError(t, err)
		require.Equal(t, len(l.Messages), len(got))
		for i := range got {
			require.Equal(t, l.Messages[i], got[i])
		}
		want, from = append(want, got...), step.To
		if r.IntN(10) == 0 {
			f.elect("another")
			f.Store = f.open()
		}
		stored, err := f.Escrows(t.Context())
		require.NoError(t, err)
		for escrow, a := range l.Accounts {
			require.Equal(t, a.Created != nil, slices.Contains(stored, escrow))
		}
	}
	require.Equal(t, want, f.messages("topic"))
	require.Greater(t, len(want), 200)
}

// Block numbers may exceed 2^31.
func TestCommit_HighBlocks_AreStored(t *testing.T) {
	f := setup(t)
	b1, b2, other := block(3_000_000_000, 0), block(3_000_000_001, 0), block(3_000_000_001, 1)
	escrow := common.Address{0xe5}
	_, err := f.Commit(t.Context(), store.Step{
		Epoch: f.epoch, Final: b1, To: b2, Blocks: []store.Read{read(b1, nil, deployed(t, escrow)), read(b2, registry{escrow: true}, approved(t, escrow))},
	})
	require.NoError(t, err)
	messages, err := f.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b2, Ancestor: &b1, To: other, Blocks: []store.Read{read(other, nil)}})
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.Equal(t, events.Retracted, messages[0].Status)
}

func TestOutbox_HasTheTemplate(t *testing.T) {
	t.Parallel()
	outboxtest.RequireTemplate(t, testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t), store.Outbox)
}

// The conformance kit takes minutes: make soak runs it.
func TestOutbox_Conforms(t *testing.T) {
	if testing.Short() {
		t.Skip("the kit runs on other tables in short runs")
	}
	t.Parallel()
	outboxtest.Run(t, outboxtest.Setup{Table: store.Outbox, Migrations: []postgres.Migrations{store.Migrations()}})
}
