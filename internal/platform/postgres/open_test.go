package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

const secret = "s3cr3t/pa?ss"

// changed returns a URL with one part changed.
func changed(t *testing.T, raw string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	change(u)
	return u.String()
}

func TestOpen_Settings(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	show := func(cfg postgres.Config, setting string) (value string) {
		pool, err := postgres.Open(t.Context(), cfg)
		require.NoError(t, err)
		defer pool.Close()
		require.NoError(t, pool.QueryRow(t.Context(), "SHOW "+setting).Scan(&value))
		return value
	}
	given := changed(t, db.URL(), func(u *url.URL) {
		u.RawQuery += "&statement_timeout=1234&pool_max_conns=3&application_name=mine"
	})
	for _, tc := range []struct {
		cfg           postgres.Config
		setting, want string
	}{
		{postgres.Config{}, "statement_timeout", "15s"},
		{postgres.Config{}, "lock_timeout", "5s"},
		{postgres.Config{}, "idle_in_transaction_session_timeout", "10s"},
		{postgres.Config{}, "application_name", "rollcall"},
		{postgres.Config{}, "enable_seqscan", "off"},
		{postgres.Config{}, "jit", "off"},
		{postgres.Config{ApplicationName: "relayer"}, "application_name", "relayer"},
		{postgres.Config{StatementTimeout: 2 * time.Second}, "statement_timeout", "2s"},
		{postgres.Config{LockTimeout: -1}, "lock_timeout", "0"},
		{postgres.Config{URL: given, StatementTimeout: time.Hour}, "statement_timeout", "1234ms"},
		{postgres.Config{URL: given, ApplicationName: "relayer"}, "application_name", "mine"},
	} {
		if tc.cfg.URL == "" {
			tc.cfg.URL = db.URL()
		}
		require.Equal(t, tc.want, show(tc.cfg, tc.setting), "%s", tc.setting)
	}
	for _, tc := range []struct {
		cfg  postgres.Config
		want int32
	}{
		{postgres.Config{URL: given, MaxConns: 9}, 3},
		{postgres.Config{URL: db.URL(), MaxConns: 9}, 9},
	} {
		pool, err := postgres.Open(t.Context(), tc.cfg)
		require.NoError(t, err)
		require.Equal(t, tc.want, pool.Config().MaxConns)
		pool.Close()
	}
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: db.URL()})
	require.NoError(t, err)
	defer pool.Close()
	require.GreaterOrEqual(t, pool.Config().MaxConns, int32(8))
	require.LessOrEqual(t, pool.Config().MaxConns, int32(64))
}

func TestOpen_ServerIsDown_Waits(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	server.Stop()
	began := time.Now()
	_, err := postgres.Open(t.Context(), postgres.Config{URL: server.URL(), Wait: -1})
	require.ErrorContains(t, err, "connect to postgres")
	_, err = postgres.Open(t.Context(), postgres.Config{URL: server.URL(), Wait: 100 * time.Millisecond})
	require.ErrorContains(t, err, "connect to postgres")
	require.Less(t, time.Since(began), 20*time.Second, "the limit holds")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = postgres.Open(ctx, postgres.Config{URL: server.URL()})
	require.ErrorContains(t, err, "connect to postgres")

	type opened struct {
		pool *pgxpool.Pool
		err  error
	}
	done := make(chan opened)
	go func() {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: server.URL(), Wait: time.Minute})
		done <- opened{pool, err}
	}()
	server.Restart()
	got := <-done
	require.NoError(t, got.err)
	got.pool.Close()
}

func TestOpen_Rejected_DoesNotWait(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	for name, raw := range map[string]string{
		"password": changed(t, db.URL(), func(u *url.URL) { u.User = url.UserPassword("rollcall", secret) }),
		"user":     changed(t, db.URL(), func(u *url.URL) { u.User = url.UserPassword("absent", secret) }),
		"database": changed(t, db.URL(), func(u *url.URL) { u.Path = "/none" }),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		_, err := postgres.Open(ctx, postgres.Config{URL: raw, Wait: time.Hour})
		require.Error(t, err, name)
		require.NoError(t, ctx.Err(), name)
		cancel()
		require.NotContains(t, err.Error(), "s3cr3t")
		require.ErrorContains(t, postgres.Migrate(t.Context(), raw, first), "connect to postgres")
	}
}

func TestOpen_Errors_DoNotShowPassword(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for _, raw := range []string{
		"postgres://u:s3cr3t@" + closed.Addr().String() + "/db",
		"postgres://u:s3cr3t/pa?ss@localhost:5432/db", // not encoded
		"postgres://u:s3cr3t#x@localhost/db",
		"postgres://u:s3cr3t%zz@localhost/db",
		"postgres://u@x:s3cr3t@localhost:port/db",
		"postgres://localhost:s3cr3t/db",
		"postgres://u:s3cr3t@localhost/db?sslmode=s3cr3t",
		"postgres://u:s3cr3t@localhost/db?pool_max_conns=s3cr3t",
		"postgres://u:s3cr3t@localhost/db?sslrootcert=/none/ca.pem&sslmode=verify-full",
		"mysql://u:s3cr3t@localhost/db",
		"host=localhost password=s3cr3t port=x",
		"host=localhost password='s3cr3t pass' port=x",
		"s3cr3t",
		"",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := postgres.Open(ctx, postgres.Config{URL: raw, Wait: -1})
		failed := postgres.Migrate(ctx, raw, withWait(first, time.Millisecond))
		cancel()
		for _, err := range []error{err, failed} {
			require.Error(t, err)
			for ; err != nil; err = errors.Unwrap(err) {
				require.False(t, strings.Contains(err.Error(), "s3cr3t"), "%v", err)
			}
		}
	}
	_, err = postgres.Open(t.Context(), postgres.Config{URL: "postgres://u:s3cr3t@localhost/db?sslrootcert=/none/ca.pem&sslmode=verify-full"})
	require.ErrorContains(t, err, "/none/ca.pem", "a file that is missing is named")
}

// A server that commits without waiting for its disk loses accepted transactions in a crash. The relayer would send
// them again under nonces that are used. Open rejects the setting, wherever it was made.
func TestOpen_RefusesAsynchronousCommit(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	join := "?"
	if strings.Contains(db.URL(), "?") {
		join = "&"
	}
	open := func(url string) error {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
		if err == nil {
			pool.Close()
		}
		return err
	}
	err := open(db.URL() + join + "synchronous_commit=off")
	require.ErrorIs(t, err, postgres.ErrAsyncCommit, "set in the URL")
	require.ErrorContains(t, err, "synchronous_commit is off")
	require.NoError(t, open(db.URL()+join+"synchronous_commit=local"))

	// An open pool gets no new connection once the setting is off.
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: db.URL()})
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	require.NoError(t, err)
	require.ErrorIs(t, open(db.URL()), postgres.ErrAsyncCommit, "set for the database")
	require.ErrorIs(t, postgres.Migrate(t.Context(), db.URL(), first), postgres.ErrAsyncCommit)
	pool.Reset()
	require.ErrorIs(t, pool.Ping(t.Context()), postgres.ErrAsyncCommit)

	require.NoError(t, open(db.URL()+join+"synchronous_commit=on"), "the URL may say otherwise")
}

func TestReason_NamesNeitherUserNorDatabase(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"the database system is starting up":                &pgconn.PgError{Code: "57P03", Message: "the database system is starting up"},
		"it has no connection left":                         &pgconn.PgError{Code: "53300", Message: `too many connections for role "alice"`},
		"it refuses connections, SQLSTATE 08P01":            &pgconn.PgError{Code: "08P01", Message: "no such user: alice"}, // PgBouncer
		"lookup db.invalid on 10.0.0.1:53: no such host":    &net.DNSError{Err: "no such host", Name: "db.invalid", Server: "10.0.0.1:53"},
		"dial tcp 127.0.0.1:1: connect: connection refused": &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, Err: errors.New("connect: connection refused")},
		"no answer in time":                                 context.DeadlineExceeded,
		"the connection failed":                             errors.New("user=alice"),
	} {
		require.Equal(t, want, postgres.Reason(fmt.Errorf("connect as alice: %w", err)))
	}
}

// The class of an error has nothing of its text.
func TestClass_ErrorsOfPostgres(t *testing.T) {
	t.Parallel()
	_, refused := pgx.Connect(t.Context(), "postgres://alice:secret@127.0.0.1:1/sales")
	require.ErrorContains(t, refused, "alice")
	db := testpostgres.New(t)
	_, query := db.Pool(t).Exec(t.Context(), `SELECT secret`)
	hung, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, slow := db.Pool(t).Exec(hung, `SELECT pg_sleep(60)`)
	for _, c := range []struct {
		want string
		err  error
	}{
		{"unreachable", refused},
		{"answers with an error", query},
		{"does not answer in time", slow},
		{"starts or stops", &pgconn.PgError{Code: "57P03"}},
		{"has no connection left", &pgconn.PgError{Code: "53300"}},
		{"refuses the login", &pgconn.PgError{Code: "28P01", Message: "alice"}},
		{"unreachable", &net.DNSError{Err: "no such host", Name: "db.invalid"}},
		{"unreachable", io.ErrUnexpectedEOF},
		{"is migrated by another process", postgres.ErrLocked},
		{"", errors.New("no key is registered")},
	} {
		require.Error(t, c.err)
		require.Equal(t, c.want, postgres.Class(fmt.Errorf("read: %w", c.err)), "%v", c.err)
	}
}

// The cause is logged at once, and then every 10 s.
func TestLogWaiting_ManyCauses_LogsEveryTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		var class string
		waiting := postgres.LogWaiting(slog.New(slog.NewTextHandler(&out, nil)), func(c string) { class = c })
		for range 250 {
			waiting(errors.New("user=secret"))
			<-time.After(100 * time.Millisecond)
		}
		require.Equal(t, 3, strings.Count(out.String(), "waiting for the database"))
		require.Equal(t, "unreachable", class)
		<-time.After(2 * time.Minute)
		out.Reset()
		waiting(postgres.ErrLocked)
		require.Contains(t, out.String(), "level=INFO", "which is usual where several start at once")
		require.Equal(t, "is migrated by another process", class)
	})
}
