package postgres_test

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

const (
	one = "-- +goose Up\nCREATE TABLE one (id int);\n"
	two = "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY two ON one (id);\n"
	bad = "-- +goose Up\nCREATE TABLE half (id int);\nCREATE TABLE one (id int);\n"
	// gate is a migration that waits for the test.
	gate = "-- +goose Up\nCREATE TABLE half (id int);\nSELECT pg_advisory_xact_lock(42);\n"
)

func migrations(files ...string) postgres.Migrations {
	m := fstest.MapFS{}
	for i, content := range files {
		m["0000"+string(rune('1'+i))+"_some.sql"] = &fstest.MapFile{Data: []byte(content)}
	}
	return postgres.Migrations{FS: m, Table: "some_version"}
}

var first = migrations(one)

func withWait(m postgres.Migrations, d time.Duration) postgres.Migrations {
	m.Wait = d
	return m
}

// has reports whether a table or index exists.
func has(t *testing.T, pool *pgxpool.Pool, name string) (yes bool) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT to_regclass($1) IS NOT NULL", name).Scan(&yes))
	return yes
}

// Processes that migrate an empty database concurrently take turns: none of them fails.
func TestMigrate_EmptyDatabase_NoRaceForTheTable(t *testing.T) {
	t.Parallel()
	s := testpostgres.Own(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	began := make(chan struct{})
	for i := range errs {
		wg.Go(func() {
			<-began
			errs[i] = postgres.Migrate(t.Context(), s.URL(), first)
		})
	}
	close(began)
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	log, err := os.ReadFile(s.Log())
	require.NoError(t, err)
	require.NotContains(t, string(log), "ERROR")
	var zeros int
	require.NoError(t, s.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM some_version WHERE version_id = 0").Scan(&zeros))
	require.Equal(t, 1, zeros)
}

func TestMigrate_Concurrent(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = postgres.Migrate(t.Context(), db.URL(), migrations(one, two)) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	pool := db.Pool(t)
	require.True(t, has(t, pool, "two"))
	var applied int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM some_version").Scan(&applied))
	require.Equal(t, 3, applied, "each once, beside goose's own zeroth")
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), migrations(one, two)), "and again")
}

func TestMigrate_TwoTables_HaveTheirOwnVersions(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), migrations(one, two)))
	other := migrations("-- +goose Up\nCREATE TABLE other (id int);\n")
	other.Table = "other_version"
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), other))
	require.True(t, has(t, db.Pool(t), "other"))
}

func TestMigrate_NewerDatabase_Fails(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), migrations(one, two)))
	err := postgres.Migrate(t.Context(), db.URL(), first)
	var newer *postgres.NewerError
	require.ErrorAs(t, err, &newer)
	require.Equal(t, postgres.NewerError{Table: "some_version", Database: 2, Own: 1}, *newer)
	require.ErrorContains(t, err, "run a newer program")
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), migrations(one, two)))
}

func TestMigrate_Fails_LeavesNothing(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	err := postgres.Migrate(t.Context(), db.URL(), migrations(one, bad))
	require.ErrorContains(t, err, "migrate some_version")
	require.ErrorContains(t, err, `"one" already exists`)
	pool := db.Pool(t)
	require.True(t, has(t, pool, "one"))
	require.False(t, has(t, pool, "half"))
	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), migrations(one, two)), "mended")
}

// endingContext ends when it is asked for its end for the n-th time, so at a step that depends only on n.
type endingContext struct {
	context.Context
	end  context.CancelFunc
	left atomic.Int64
}

func (c *endingContext) Done() <-chan struct{} {
	if c.left.Add(-1) == 0 {
		c.end()
	}
	return c.Context.Done()
}

// database/sql reports a context that ends between two statements as a lost connection.
func TestMigrate_Canceled_SaysSo(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	for n := int64(1); ; n += 3 { // of about 110
		ctx, cancel := context.WithCancel(t.Context())
		ending := &endingContext{Context: ctx, end: cancel}
		ending.left.Store(n)
		err := postgres.Migrate(ending, db.URL(), migrations(one, two))
		cancel()
		if err == nil {
			require.Greater(t, n, int64(30))
			return
		}
		require.ErrorIs(t, err, context.Canceled, "at step %d", n)
	}
}

// A process that dies while it migrates blocks no other one. Migrate waits for a slow one up to a limit.
func TestMigrate_AnotherMigratorDies_GoesOn(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	pool := db.Pool(t)
	ctx := t.Context()
	test, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer test.Release()
	_, err = test.Exec(ctx, "SELECT pg_advisory_lock(42)")
	require.NoError(t, err)

	ended := make(chan error)
	go func() { ended <- postgres.Migrate(ctx, db.URL(), migrations(one, gate)) }()
	var pid int
	require.Eventually(t, func() bool {
		err := pool.QueryRow(ctx, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted").Scan(&pid)
		return err == nil
	}, 2*time.Minute, time.Millisecond)

	require.ErrorContains(t, postgres.Migrate(ctx, db.URL(), withWait(migrations(one, gate), 150*time.Millisecond)), "another process migrates")
	short, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, postgres.Migrate(short, db.URL(), migrations(one, gate)), context.DeadlineExceeded)

	waiting := make(chan error)
	go func() { waiting <- postgres.Migrate(ctx, db.URL(), migrations(one, two)) }()
	_, err = test.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
	require.NoError(t, err)
	require.Error(t, <-ended)
	require.NoError(t, <-waiting)
	require.False(t, has(t, pool, "half"))
	require.True(t, has(t, pool, "two"))
	_, err = test.Exec(ctx, "SELECT pg_advisory_unlock(42)")
	require.NoError(t, err)
}
