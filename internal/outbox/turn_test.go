package outbox

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// tracer records the statements of each batch.
type tracer struct {
	mu      sync.Mutex
	batches [][]string
}

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (tr *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (tr *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	var all []string
	for _, q := range data.Batch.QueuedQueries {
		all = append(all, q.SQL)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.batches = append(tr.batches, all)
	return ctx
}
func (tr *tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (tr *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// testBox is an Outbox with one connection and a new table.
type testBox struct {
	*Outbox
	t      *testing.T
	traces *tracer
	lanes  *lanes
}

func newBox(t *testing.T, table Table, extra string) *testBox {
	t.Helper()
	cfg := testpostgres.New(t).Pool(t).Config()
	b := &testBox{t: t, traces: &tracer{}, lanes: &lanes{mine: func(laneKey) bool { return true }}}
	cfg.MaxConns, cfg.ConnConfig.Tracer = 1, b.traces
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	_, err = db.Exec(t.Context(), table.Schema()+extra)
	require.NoError(t, err)
	b.Outbox, err = New(db, table)
	require.NoError(t, err)
	return b
}

// turn runs a turn that claims up to most entries.
func (b *testBox) turn(most int, settle ...settlement) *turn {
	b.t.Helper()
	t := &turn{settle: settle, lanes: b.lanes, most: most, lease: time.Minute, allowed: func(string) int { return most }}
	require.NoError(b.t, b.run(b.t.Context(), t))
	return t
}

// claims claims up to most entries of lanes that may be unknown.
func (b *testBox) claims(most int) []*claim {
	b.t.Helper()
	first := b.turn(most)
	if len(first.claims) > 0 {
		return first.claims
	}
	return b.turn(most).claims
}

func TestTurn_ClaimsWaitForDisk_OnlyWhereConfigured(t *testing.T) {
	t.Parallel()
	for _, wait := range []bool{false, true} {
		b := newBox(t, Table{Name: "works", ClaimsWaitForDisk: wait}, "")
		require.NoError(t, b.Insert(t.Context(), b.db, Entry{}))
		claims := b.claims(1)
		require.Len(t, claims, 1)
		b.turn(0, settlement{claims[0], Finished()})
		for _, statements := range b.traces.batches {
			claims, relaxed := false, false
			for _, sql := range statements {
				claims = claims || strings.Contains(sql, "WITH RECURSIVE found")
				relaxed = relaxed || strings.Contains(sql, "synchronous_commit")
			}
			require.Equal(t, !wait || !claims, relaxed, "%q", statements)
		}
		require.Len(t, b.traces.batches, 3)
	}
}

// A worker whose claims are full looks for lanes at times, and another one in each turn.
func TestTurn_ClaimsAreFull_DiscoversAtTimes(t *testing.T) {
	t.Parallel()
	b := newBox(t, Table{Name: "works"}, "")
	for range 4 {
		require.NoError(t, b.Insert(t.Context(), b.db, Entry{Lane: "a"}))
	}
	require.Empty(t, b.turn(1).claims, "the lane is discovered")
	require.Len(t, b.turn(1).claims, 1)
	b.lanes.discoverAt = time.Now().Add(time.Hour)
	require.NoError(t, b.Insert(t.Context(), b.db, Entry{Lane: "b"}))
	b.turn(1)
	require.Len(t, b.lanes.sorted, 1)
	b.lanes.discoverAt = time.Now()
	require.True(t, b.turn(1).more)
	require.Len(t, b.lanes.sorted, 2)
	require.Greater(t, time.Until(b.lanes.discoverAt), time.Duration(0))

	require.Len(t, b.turn(10).claims, 2, "all, and fewer than asked for")
	b.lanes.discoverAt = time.Now().Add(time.Hour)
	require.NoError(t, b.Insert(t.Context(), b.db, Entry{Lane: "c"}))
	b.turn(10)
	require.Len(t, b.lanes.sorted, 3)
}

// A claim and its extension write no index.
func TestTurn_ClaimAndExtend_HotUpdates(t *testing.T) {
	t.Parallel()
	b := newBox(t, Table{Name: "works"}, "")
	require.NoError(t, b.Insert(t.Context(), b.db, Entry{Subject: "s"}, Entry{}, Entry{}))
	claims := b.claims(10)
	require.Len(t, claims, 3)
	extend := &turn{extend: claims, lease: time.Hour}
	require.NoError(t, b.run(t.Context(), extend))
	require.Len(t, extend.kept, 3)
	var updated, hot int
	_, err := b.db.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`)
	require.NoError(t, err)
	require.NoError(t, b.db.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'works'`).Scan(&updated, &hot))
	require.Equal(t, 6, updated)
	require.Equal(t, updated, hot)
}

func TestTurn_DomainColumns_Read(t *testing.T) {
	t.Parallel()
	table := Table{
		Name: "works", Columns: "e.extra, c.name", Joins: "LEFT JOIN LATERAL (SELECT name FROM causes WHERE id = e.extra LIMIT 1) AS c ON true",
		Scan: func(row pgx.CollectableRow) (any, error) {
			values, err := row.Values()
			if err != nil || len(row.FieldDescriptions()) != 2 || len(row.RawValues()) != 2 {
				return nil, err
			}
			var extra *int
			var name *string
			return values, row.Scan(&extra, &name)
		},
	}
	b := newBox(t, table, `ALTER TABLE works ADD extra integer; CREATE TABLE causes (id integer PRIMARY KEY, name text); INSERT INTO causes VALUES (1, 'one')`)
	for _, extra := range []any{1, 2, nil} {
		_, err := b.db.Exec(t.Context(), `INSERT INTO works (extra) VALUES ($1)`, extra)
		require.NoError(t, err)
	}
	var data []any
	for _, c := range b.claims(10) {
		data = append(data, c.Data)
	}
	require.ElementsMatch(t, []any{[]any{int32(1), "one"}, []any{int32(2), nil}, []any{nil, nil}}, data)
}

// Index entries of deleted rows stay while a transaction is open that may see them. Only a sweep reads past them.
func TestTurn_ManyFinishedBefore_ReadsFewPages(t *testing.T) {
	t.Parallel()
	b := newBox(t, Table{Name: "works"}, `ALTER TABLE works SET (autovacuum_enabled = false)`)
	insert := func(n int, age time.Duration) {
		_, err := b.db.Exec(t.Context(), `INSERT INTO works (lane, due_at) SELECT 'a', now() - $2::interval FROM generate_series(1, $1::int)`, n, age)
		require.NoError(t, err)
	}
	insert(20_000, time.Minute) // longer ago than sweepMargin, however fast the machine is
	cfg := b.db.Config()
	cfg.ConnConfig.Tracer = nil
	other, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	old, err := other.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, old.Rollback(context.Background())) })
	_, err = old.Exec(t.Context(), "SELECT FROM works LIMIT 1")
	require.NoError(t, err)
	require.Len(t, b.claims(1), 1)
	_, err = b.db.Exec(t.Context(), `DELETE FROM works`)
	require.NoError(t, err)
	pages := func() (n int) { // that this connection has read
		_, err := b.db.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`)
		require.NoError(t, err)
		require.NoError(t, b.db.QueryRow(t.Context(), `SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
			FROM pg_statio_user_tables WHERE relname = 'works'`).Scan(&n))
		return n
	}
	b.lanes.sweepAt = time.Time{}
	before := pages()
	require.Empty(t, b.turn(1).claims)
	require.Greater(t, pages()-before, 500, "a sweep")
	b.lanes.sweepAt = time.Now().Add(time.Hour)
	insert(1, 0)
	before = pages()
	require.Len(t, b.turn(1).claims, 1)
	require.Less(t, pages()-before, 200)
}

// An entry of a transaction that commits late is due before the newest claimed one.
func TestTurn_EntryCommittedLate_Claimed(t *testing.T) {
	t.Parallel()
	b := newBox(t, Table{Name: "works"}, "")
	require.NoError(t, b.Insert(t.Context(), b.db, Entry{Lane: "a"}))
	require.Len(t, b.claims(1), 1)
	b.lanes.sweepAt = time.Now().Add(time.Hour)
	_, err := b.db.Exec(t.Context(), `INSERT INTO works (lane, due_at) VALUES ('a', now() - interval '500 ms')`)
	require.NoError(t, err)
	require.Len(t, b.turn(1).claims, 1)
}

// Postgres refuses the whole turn for one invalid value.
func TestResult_Normal_Storable(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a b", Retry("a\x00b", 0).normal().Reason)
	require.Equal(t, "no reason given", GiveUp(" \n").normal().Reason)
	require.Len(t, []rune(GiveUp(strings.Repeat("ö", 900)).normal().Reason), maxReason)
	require.Equal(t, "\uFFFD", GiveUp("\xff").normal().Reason)
	require.Zero(t, Later(-time.Second).normal().Delay)
	require.Equal(t, maxDelay, Later(1<<62).normal().Delay)
	require.Equal(t, KindRetry, Result{Kind: 17}.normal().Kind)
}

func TestBackoff_Failures_DoublesUpToLimit(t *testing.T) {
	t.Parallel()
	for failures, full := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second, 5000: 10 * time.Second} {
		for range 50 {
			pause := Backoff(failures, time.Second, 10*time.Second)
			require.LessOrEqual(t, pause, full)
			require.Greater(t, pause, full/2-1)
		}
	}
}

func TestConfig_Invalid_AllProblems(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Table{Name: "Works; DROP", Columns: "e.extra"})
	require.ErrorContains(t, err, `table name "Works; DROP"`)
	require.ErrorContains(t, err, "set Columns and Scan together")
	_, err = New(nil, Table{Name: strings.Repeat("a", maxName+1)})
	require.Error(t, err)
	box, err := New(nil, Table{Name: "works"})
	require.NoError(t, err)
	_, err = box.NewWorker(Config{Concurrency: -1, Lease: time.Millisecond, RetryFor: -1, Partitions: 2, Partition: 2})
	for _, problem := range []string{"worker of works", "handler is missing", "concurrency -1", "lease 1ms", "must not be negative", "partition 2 of 2"} {
		require.ErrorContains(t, err, problem)
	}
}

// A claim must not block an entry whose lower one is being finished: the result of that one no longer unblocks it.
func TestTurn_LowerEntryEndsMeanwhile_NotBlockedForEver(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		b := newBox(t, Table{Name: "works", KeepDone: keep}, "")
		cfg := b.db.Config()
		cfg.ConnConfig.Tracer = nil
		other, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(other.Close)
		require.NoError(t, b.Insert(t.Context(), b.db, Entry{ID: "lower", Subject: "s"}, Entry{ID: "upper", Subject: "s"}))
		claims := b.claims(1)
		require.Equal(t, "lower", claims[0].ID)
		_, err = b.db.Exec(t.Context(), `UPDATE works SET due_at = now() WHERE id = 'upper'`) // as before it was picked
		require.NoError(t, err)

		tx, err := other.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), b.sql.done, []string{"lower"}, []int64{claims[0].number})
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), b.sql.promote, []string{"s"}, false)
		require.NoError(t, err)
		b.lanes.sweepAt = time.Time{}
		require.Empty(t, b.turn(1).claims, "the result is not stored yet")
		require.NoError(t, tx.Commit(t.Context()))
		next := b.turn(1)
		require.Len(t, next.claims, 1)
		require.Equal(t, "upper", next.claims[0].ID)
	}
}
