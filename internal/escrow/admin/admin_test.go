package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/log"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated nodes
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}

const (
	chainID  = 1337
	patience = 2 * time.Minute // limits what a healthy machine does in some seconds
)

var (
	set     = events.BuiltIn()
	factory = common.Address{0xfa}
	payer   = common.Address{0xa1}
	payee   = common.Address{0xa2}
	arbiter = common.Address{0xa3}
)

// fixture is a chain in a database of its own, whose lease the test has. Its blocks are made up.
type fixture struct {
	*Admin
	t     *testing.T
	store *store.Store
	epoch int64
	at    events.Block // the cursor
	known registry
}

type registry map[common.Address]bool

func (r registry) Factory(a common.Address) bool { return a == factory }
func (r registry) Escrow(a common.Address) bool  { return r[a] }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	f := &fixture{t: t, known: registry{}}
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
	var err error
	f.store, err = store.New(db, store.Config{ChainID: chainID, Events: set, Targets: []string{"topic", "hook"}})
	require.NoError(t, err)
	require.NoError(t, f.store.Register(t.Context(), store.Settings{Factories: []common.Address{factory}, StartBlock: 1}))
	f.elect()
	f.Admin, err = Open(t.Context(), db, 0)
	require.NoError(t, err)
	return f
}

func (f *fixture) elect() {
	f.t.Helper()
	epoch, elected, err := f.store.WatcherLease().Elect(f.t.Context(), "test", time.Minute, 0)
	require.NoError(f.t, err)
	require.True(f.t, elected)
	f.epoch = epoch
}

// block returns a made-up block.
func block(number uint64, seed byte) events.Block {
	return events.Block{
		Number: number, Hash: common.Hash{seed, 31: byte(number)}, Parent: common.Hash{seed, 31: byte(number - 1)}, Time: time.Unix(int64(1e9+number), 0).UTC(),
	}
}

// final stores the next block with logs, as final, and returns its messages.
func (f *fixture) final(logs ...events.Log) []*events.Message {
	f.t.Helper()
	b := block(f.at.Number+1, 1)
	found, parked := set.Match(chainID, logs, f.known)
	for _, o := range found {
		f.known[o.Escrow] = true
	}
	messages, err := f.store.Commit(f.t.Context(), store.Step{
		Epoch: f.epoch, From: f.at, Final: b, To: b, Count: 1, Blocks: []store.Read{{Block: b, Found: found, Parked: parked}},
	})
	require.NoError(f.t, err)
	f.at = b
	return messages
}

// emit returns the log of an event, in a transaction of its own.
func emit(t testing.TB, by common.Address, contract abi.ABI, name string, tx byte, args ...any) events.Log {
	t.Helper()
	topics, data, err := escrowchain.Log(contract, name, args...)
	require.NoError(t, err)
	return events.Log{Contract: by, Topics: topics, Data: data, Tx: common.Hash{tx}}
}

func deployed(t testing.TB, escrow common.Address) events.Log {
	return emit(t, factory, escrowchain.FactoryABI(), "EscrowDeployed", escrow[0], escrow, payer, payee, arbiter, big.NewInt(5), big.NewInt(3600), uint8(2))
}

func approved(t testing.TB, escrow common.Address, tx byte) events.Log {
	return emit(t, escrow, escrowchain.EscrowABI(), "Approved", tx, payer)
}

func released(t testing.TB, escrow common.Address) events.Log {
	return emit(t, escrow, escrowchain.EscrowABI(), "EscrowReleased", 9, payee, big.NewInt(5), big.NewInt(6))
}

func undecodable(t testing.TB, escrow common.Address) events.Log {
	bad := approved(t, escrow, 8)
	bad.Data, bad.Index = []byte{0, 1}, 0xfffffffc
	return bad
}

// exec runs a statement.
func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.db.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

// publish marks the waiting messages that match a condition as published.
func (f *fixture) publish(where string) {
	f.t.Helper()
	f.exec(`UPDATE escrow_outbox SET state = 'done', settled_at = clock_timestamp() WHERE state = 'waiting' AND ` + where)
}

// payloads returns the messages to a target in the order of the outbox.
func payloads(t *testing.T, db *pgxpool.Pool, target string) (all [][]byte) {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT payload FROM escrow_outbox WHERE lane = $1 ORDER BY seq`, store.Lane(chainID, target))
	require.NoError(t, err)
	all, err = pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(t, err)
	return all
}

func decode(t *testing.T, payload []byte) *events.Message {
	t.Helper()
	m := new(events.Message)
	require.NoError(t, json.Unmarshal(payload, m))
	return m
}

func TestOpen_ChainByIdOrAlone(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	_, err := Open(t.Context(), db.Pool(t), 0)
	require.ErrorAs(t, err, new(*postgres.OlderError))
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), store.Migrations()))
	_, err = Open(t.Context(), db.Pool(t), 0)
	require.EqualError(t, err, "the database has no chain of an escrow monitor")
	for _, id := range []uint64{7, 5} {
		s, err := store.New(db.Pool(t), store.Config{ChainID: id, Events: set})
		require.NoError(t, err)
		require.NoError(t, s.Register(t.Context(), store.Settings{}))
	}
	_, err = Open(t.Context(), db.Pool(t), 0)
	require.EqualError(t, err, "the database has several chains: 5, 7")
	_, err = Open(t.Context(), db.Pool(t), 6)
	require.EqualError(t, err, "the database has no chain 6: it has 5, 7")
	a, err := Open(t.Context(), db.Pool(t), 7)
	require.NoError(t, err)
	require.Equal(t, uint64(7), a.ChainID)
}

func TestStatus_NewChain_HasNoCursor(t *testing.T) {
	f := newFixture(t)
	s, err := f.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, Status{
		ChainID: chainID, Factories: []common.Address{factory}, StartBlock: 1, Leader: "test", Epoch: 1, ByState: map[events.State]int64{}, Messages: []Messages{},
		Instances: []Instance{},
	}, s)
}

func TestStatus_CountsEscrowsParkedAndMessages(t *testing.T) {
	f := newFixture(t)
	one, two := common.Address{1}, common.Address{2}
	f.final(deployed(t, one), deployed(t, two))
	f.final(approved(t, one, 7), released(t, one), undecodable(t, two))
	f.publish(`lane = '1337/hook'`)
	f.exec(`UPDATE escrow_outbox SET state = 'dead', settled_at = now() WHERE lane = '1337/topic' AND subject LIKE '%/0x02%'`)
	require.NoError(t, f.store.Halt(t.Context(), "block 1 has changed"))
	f.exec(`UPDATE escrow_chains SET watcher_until = now() - interval '1 s'`)
	s, err := f.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Messages, 1)
	require.WithinDuration(t, time.Now(), s.Messages[0].Oldest.Time, patience)
	require.WithinDuration(t, time.Now(), s.MovedAt.Time, patience)
	s.Messages[0].Oldest, s.MovedAt = s.MovedAt, s.Messages[0].Oldest
	require.Equal(t, Status{
		ChainID: chainID, Factories: []common.Address{factory}, StartBlock: 1, Epoch: 1, Halted: "block 1 has changed",
		Cursor: &Block{f.at.Number, f.at.Hash, s.Cursor.Time}, Final: &Block{Number: f.at.Number, Hash: f.at.Hash}, MovedAt: s.MovedAt, Blocks: 2,
		Escrows: 2, ByState: map[events.State]int64{events.Active: 1, events.Released: 1}, Parked: 1,
		Messages: []Messages{{To: "topic", Waiting: 3, Dead: 1, Oldest: s.Messages[0].Oldest}}, Instances: []Instance{},
	}, s)
	require.True(t, f.at.Time.Equal(s.Cursor.Time.Time))
}

// The cost of the counts does not grow with the number of published messages, which stay.
func TestStatusAndPartitions_ManyPublished_ReadFewPages(t *testing.T) {
	f := newFixture(t)
	f.final(deployed(t, common.Address{1}))
	f.publish(`lane = '1337/hook'`)
	f.exec(`INSERT INTO escrow_outbox (state, settled_at, lane, subject, partition, payload)
		SELECT 'done', now(), '1337/topic', '1337/topic/' || n, n % 2520, repeat('x', 200)::bytea FROM generate_series(1, 20000) AS n`)
	f.exec(`VACUUM ANALYZE escrow_outbox`)
	cfg := f.db.Config()
	cfg.MaxConns = 1 // its own counts are flushed
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer db.Close()
	a, err := Open(t.Context(), db, chainID)
	require.NoError(t, err)
	pages := func() (n, scans int) {
		_, err := db.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`)
		require.NoError(t, err)
		require.NoError(t, db.QueryRow(t.Context(), `SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit, seq_scan
			FROM pg_statio_user_tables JOIN pg_stat_user_tables USING (relid) WHERE relid = 'escrow_outbox'::regclass`).Scan(&n, &scans))
		return n, scans
	}
	before, scans := pages()
	for range 10 { // prepared statements get a plan for any value after some
		s, err := a.Status(t.Context())
		require.NoError(t, err)
		require.Len(t, s.Messages, 1)
		list, err := a.Partitions(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, int64(1), list[0].Unpublished)
	}
	after, scansAfter := pages()
	require.Equal(t, scans, scansAfter)
	require.Less(t, after-before, 1_000, "20 reads of an outbox with more pages than that")
}

// A row that a killed process has left counts as leading only while the lease is held.
func TestStatus_Instances_WithHeartbeatAndLeader(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.store.Join(t.Context(), store.Instance{ID: "two", Run: "1", Version: "v1", Host: "here", PID: 7, Leader: true}))
	require.NoError(t, f.store.Join(t.Context(), store.Instance{ID: "one", Run: "1", Total: 3, Number: 2}))
	f.exec(`UPDATE relayer_instances SET heartbeat_at = now() - interval '2 hours' WHERE instance_id = 'one'`)
	s, err := f.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Instances, 2)
	one, two := s.Instances[0], s.Instances[1]
	require.InDelta(t, 7200, one.HeartbeatAge, 120)
	require.Less(t, two.HeartbeatAge, patience.Seconds())
	require.Equal(t, Instance{ID: "one", Total: 3, Partition: 2, StartedAt: one.StartedAt, HeartbeatAge: one.HeartbeatAge}, one)
	require.Equal(t, Instance{ID: "two", Version: "v1", Host: "here", PID: 7, Leading: true, StartedAt: two.StartedAt, HeartbeatAge: two.HeartbeatAge}, two)
	f.exec(`UPDATE escrow_chains SET watcher_until = now() - interval '1 s'`)
	s, err = f.Status(t.Context())
	require.NoError(t, err)
	require.False(t, s.Instances[1].Leading)
}

func TestPartitions_ByPartitionAndByTotal(t *testing.T) {
	f := newFixture(t)
	one, two, three := common.Address{19: 1}, common.Address{19: 2}, common.Address{19: 4}
	f.final(deployed(t, one), deployed(t, two), deployed(t, three))
	f.publish(`subject LIKE '%02'`)
	list, err := f.Partitions(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, Partition{Partition: 2, Escrows: 1}, list[1])
	require.Equal(t, []int{1, 4}, []int{list[0].Partition, list[2].Partition})
	require.Equal(t, int64(2), list[0].Unpublished)
	require.False(t, list[0].Oldest.IsZero())

	list, err = f.Partitions(t.Context(), 3)
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, Partition{}, list[0])
	require.Equal(t, Partition{Partition: 1, Escrows: 2, Unpublished: 4, Oldest: list[1].Oldest}, list[1])
	require.Equal(t, Partition{Partition: 2, Escrows: 1}, list[2])
}

func TestEvents_FilterAndLimit(t *testing.T) {
	f := newFixture(t)
	one, two := common.Address{1}, common.Address{2}
	var all []*events.Message
	all = append(all, f.final(deployed(t, one), deployed(t, two))...)
	all = append(all, f.final(approved(t, two, 7), undecodable(t, one))...)
	all = append(all, f.final(released(t, one))...)
	for _, c := range []struct {
		Filter
		want []*events.Message
	}{
		{Filter{}, all},
		{Filter{Limit: 2}, all[2:]},
		{Filter{Escrow: &one}, []*events.Message{all[0], all[3]}},
		{Filter{From: 2}, all[2:]},
		{Filter{To: 2, Limit: 2}, all[1:3]},
		{Filter{From: 9}, nil},
	} {
		got, err := f.Events(t.Context(), c.Filter)
		require.NoError(t, err)
		require.Equal(t, len(c.want), len(got))
		for i := range got {
			require.Equal(t, c.want[i], got[i])
		}
	}
	parked, err := f.Parked(t.Context(), Filter{})
	require.NoError(t, err)
	bad := undecodable(t, one)
	require.Equal(t, []Parked{{
		EventID: parked[0].EventID, BlockNumber: 2, BlockHash: block(2, 1).Hash, Escrow: &one, Contract: one, TxHash: bad.Tx, LogIndex: 0xfffffffc, Topics: bad.Topics, Data: bad.Data,
		Reason: parked[0].Reason, ParkedAt: parked[0].ParkedAt,
	}}, parked)
	require.NotEmpty(t, parked[0].Reason)
	parked, err = f.Parked(t.Context(), Filter{Escrow: &two})
	require.NoError(t, err)
	require.Empty(t, parked)
}

// The messages that wait at the begin and all later ones are seen, each once for each target, in the order of their escrow, whatever the
// order in which they are published.
func TestFollow_PublishedMessages_EachOnceInOrder(t *testing.T) {
	f := newFixture(t)
	one, two := common.Address{1}, common.Address{2}
	f.final(deployed(t, one))
	f.publish(`true`) // before the begin: not seen
	waiting := f.final(approved(t, one, 7), deployed(t, two))
	seen := make(chan Published)
	ended := make(chan error)
	follow := func(escrow *common.Address) (stop func()) {
		ctx, stop := context.WithCancel(t.Context())
		follower, err := f.Follow(ctx, escrow)
		require.NoError(t, err)
		go func() {
			ended <- follower.Run(ctx, func(p Published) error {
				seen <- p
				return nil
			})
		}()
		return stop
	}
	stop := follow(nil)
	is := func(to string, want *events.Message) {
		t.Helper()
		select {
		case p := <-seen:
			require.Equal(t, to, p.To)
			require.Equal(t, want, p.Message)
			require.False(t, p.PublishedAt.IsZero())
		case <-time.After(patience):
			require.FailNow(t, "not seen", want.EventID)
		}
	}
	f.publish(`lane = '1337/topic' AND subject LIKE '%/0x02%'`)
	is("topic", waiting[1])
	later := f.final(released(t, one))
	f.publish(`lane = '1337/topic'`)
	is("topic", waiting[0])
	is("topic", later[0])
	f.exec(`DELETE FROM escrow_outbox WHERE lane = '1337/hook' AND state = 'waiting' AND subject LIKE '%/0x01%' AND seq = (SELECT min(seq) FROM escrow_outbox
		WHERE lane = '1337/hook' AND state = 'waiting' AND subject LIKE '%/0x01%')`) // an operator drops the approval
	f.publish(`lane = '1337/hook' AND subject LIKE '%/0x01%'`)
	is("hook", later[0])
	stop()
	require.NoError(t, <-ended)

	// Of one escrow only.
	stop = follow(&one)
	f.publish(`true`)
	last := f.final(approved(t, two, 3), approved(t, one, 4))
	f.publish(`lane = '1337/hook'`)
	is("hook", last[1])
	stop()
	require.NoError(t, <-ended)
}

func TestDeadLetters_OfAChain_AreShownAndReplayed(t *testing.T) {
	f := newFixture(t)
	set, err := deadletter.Open(t.Context(), deadletter.Any, DeadLetters(f.db))
	require.NoError(t, err)
	one := common.Address{1}
	m := f.final(deployed(t, one))[0]
	f.final(approved(t, one, 7))
	f.exec(`UPDATE escrow_outbox SET state = 'dead', settled_at = now(), reason = 'the topic refuses it' WHERE lane = '1337/topic' AND payload LIKE '%EscrowDeployed%'`)
	list, more, err := set.List(t.Context(), deadletter.Selection{To: "topic"}, outbox.Dead, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, list, 1)
	l := list[0]
	require.Equal(t, []any{"escrow-events", "1337/topic", m.TxHash.Hex(), m.Type, m.Revision, "the topic refuses it"},
		[]any{l.Of, l.To, l.Transaction, l.Event, l.Revision, l.Reason})
	shown, err := set.Show(t.Context(), l.ID)
	require.NoError(t, err)
	require.Equal(t, m, decode(t, []byte(shown.Payload)))
	_, _, err = set.List(t.Context(), deadletter.Selection{Transactions: []string{m.TxHash.Hex()}}, outbox.Dead, 10)
	require.ErrorIs(t, err, deadletter.ErrNoTransaction)
	changes, err := set.Replay(t.Context(), deadletter.Selection{IDs: []string{l.ID}})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{Subject: l.ID, Count: 1}}, changes)
	list, _, err = set.List(t.Context(), deadletter.Selection{}, outbox.Dead, 10)
	require.NoError(t, err)
	require.Empty(t, list)

	// A published message would follow newer ones, without the member replay.
	f.publish(`true`)
	changes, err = set.Replay(t.Context(), deadletter.Selection{IDs: []string{l.ID}})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{Subject: l.ID, Err: deadletter.ErrFinished}}, changes)
	shown, err = set.Show(t.Context(), l.ID)
	require.NoError(t, err)
	require.Equal(t, outbox.Done, shown.State)
	changes, err = set.Drop(t.Context(), deadletter.Selection{IDs: []string{l.ID}})
	require.NoError(t, err)
	require.Equal(t, []deadletter.Change{{Subject: l.ID, Count: 1}}, changes)

	_, err = deadletter.Open(t.Context(), deadletter.Any, DeadLetters(testpostgres.New(t).Pool(t)))
	require.ErrorIs(t, err, deadletter.ErrNone)
}
