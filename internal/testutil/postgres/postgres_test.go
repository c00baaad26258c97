package postgres_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// schema returns new migrations each time: equal migrations share a template, not identical ones.
func schema() postgres.Migrations {
	return postgres.Migrations{
		Table: "test_version",
		FS: fstest.MapFS{"00001_one.sql": {
			Data: []byte("-- +goose Up\nCREATE TABLE one (id int PRIMARY KEY, v text);\n"),
		}},
	}
}

// failing is a testing.TB that records a failure.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (*failing) Skip(...any) { panic("skipped") }

func TestOwn_ServerMissing_FailsTheTest(t *testing.T) {
	testpostgres.SetBin(t.TempDir())
	defer testpostgres.SetBin("")
	f := &failing{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { testpostgres.Own(f) })
	wg.Wait()
	require.Contains(t, f.message, "apt-get install postgresql")
}

func databases(t *testing.T, pool *pgxpool.Pool, like string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname LIKE $1", like).Scan(&n))
	return n
}

func TestNew_EachTest_HasItsOwnDatabase(t *testing.T) {
	mine := testpostgres.New(t).Pool(t)
	var left sync.Map
	t.Run("group", func(t *testing.T) {
		for i := range 8 {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				db := testpostgres.New(t, testpostgres.Migrated(schema()))
				pool := db.Pool(t)
				_, err := pool.Exec(t.Context(), "INSERT INTO one VALUES (1, $1)", t.Name())
				require.NoError(t, err)
				require.NoError(t, postgres.Migrate(t.Context(), db.URL(), schema()), "nothing to do")
				conn, err := pgx.Connect(t.Context(), db.URL()) // not closed in time, as after a failed test
				require.NoError(t, err)
				left.Store(i, conn)
			})
		}
	})
	for _, conn := range left.Range {
		_ = conn.(*pgx.Conn).Close(t.Context())
	}
	require.Equal(t, 1, databases(t, mine, "test\\_%"), "they were dropped")
	require.Equal(t, 1, databases(t, mine, "template\\__"), "they were migrated once")
	var tables int
	require.NoError(t, mine.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables))
	require.Zero(t, tables)
}

func TestOwn_StopKillPauseAndRestart(t *testing.T) {
	t.Parallel()
	s := testpostgres.Own(t, map[string]string{"max_connections": "17"})
	pool := s.Pool(t)
	var fsync, connections string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT current_setting('fsync'), current_setting('max_connections')").Scan(&fsync, &connections))
	require.Equal(t, []string{"on", "17"}, []string{fsync, connections})
	put := func(v int) error {
		return postgres.Retry(t.Context(), func(ctx context.Context) error {
			_, err := pool.Exec(ctx, "INSERT INTO t VALUES ($1)", v)
			return err
		})
	}
	_, err := pool.Exec(t.Context(), "CREATE TABLE t (v int PRIMARY KEY)")
	require.NoError(t, err)
	url := s.URL()
	for i, fail := range []func(){s.Stop, s.Kill} {
		require.NoError(t, put(i))
		fail()
		s.Restart()
	}
	require.NoError(t, put(2))
	s.Pause()
	answered := make(chan error)
	go func() { answered <- put(3) }()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = postgres.Open(short, postgres.Config{URL: url})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	s.Resume()
	require.NoError(t, <-answered)
	var sum int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT sum(v) FROM t").Scan(&sum))
	require.Equal(t, 6, sum)
	require.Equal(t, url, s.URL())
}

func BenchmarkNew(b *testing.B) {
	testpostgres.New(b, testpostgres.Migrated(schema())) // starts the server
	for b.Loop() {
		testpostgres.New(b, testpostgres.Migrated(schema()))
	}
}

// A dump holds the contents of the database at one time. After Replace, new connections to the same URL reach the
// restored one.
func TestServer_Replace_ShowsTheDump(t *testing.T) {
	t.Parallel()
	s := testpostgres.Own(t)
	pool := s.Pool(t)
	exec := func(statement string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	values := func(of *pgxpool.Pool) (all []int) {
		t.Helper()
		require.NoError(t, of.QueryRow(t.Context(), "SELECT array_agg(v ORDER BY v) FROM one").Scan(&all))
		return all
	}
	exec("CREATE TABLE one (v int)")
	exec("INSERT INTO one VALUES (1)")
	file := filepath.Join(t.TempDir(), "dump")
	s.Dump(file)
	exec("INSERT INTO one VALUES (2)")
	another, restored := s.Restored(file), s.Restored(file)
	replaced := s.Replace(restored)
	require.Eventually(t, func() bool { return pool.Ping(t.Context()) == nil }, 2*time.Minute, time.Millisecond)
	require.Equal(t, []int{1}, values(pool))
	exec("INSERT INTO one VALUES (3)")
	require.Equal(t, []int{1, 3}, values(pool))
	require.Equal(t, []int{1, 2}, values(replaced.Pool(t)))
	require.Equal(t, []int{1}, values(another.Pool(t)))
}
