package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// A frozen server keeps its sockets open, and its kernel acknowledges all data. Only a timeout detects it.
func TestDial_ServerIsFrozen_TimesOut(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{
		URL: server.URL(), StatementTimeout: time.Second, ConnectTimeout: time.Second, MaxConns: 2,
	})
	require.NoError(t, err)
	defer pool.Close()
	patient := server.Pool(t) // signing in may take longer than a second on a busy machine
	createNotes(t, patient)
	answers := func() bool { return pool.Ping(t.Context()) == nil }
	require.Eventually(t, answers, 2*time.Minute, 10*time.Millisecond)
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// More calls than there are connections, by callers without a deadline: single statements, and a transaction.
	for i := range 4 {
		_, err := pool.Exec(context.WithoutCancel(ctx), "SELECT 1")
		require.Error(t, err)
		require.Error(t, postgres.InTx(context.WithoutCancel(ctx), pool, note(ctx, i)))
	}
	require.NoError(t, ctx.Err())
	server.Resume()
	require.Eventually(t, answers, 2*time.Minute, 10*time.Millisecond)
	require.Zero(t, count(t, patient))
}

// The limit does not override what pgx does at the end of a context. A connection that was idle for longer still works.
func TestDial_ContextEndsOrConnectionIdle_LimitDoesNotApply(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: server.URL(), StatementTimeout: time.Hour, MaxConns: 1})
	require.NoError(t, err)
	defer pool.Close()
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = pool.Exec(ctx, "SELECT 1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	server.Resume()

	quick, err := postgres.Open(t.Context(), postgres.Config{URL: server.URL(), StatementTimeout: 2 * time.Second, MaxConns: 1})
	require.NoError(t, err)
	defer quick.Close()
	pid := func() (pid int, err error) {
		err = quick.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid)
		return pid, err
	}
	require.Eventually(t, func() bool { // on a busy machine an answer may exceed the limit
		before, err := pid()
		if err != nil {
			return false
		}
		<-time.After(3 * time.Second) // nothing must happen meanwhile
		after, err := pid()
		return err == nil && before == after
	}, 2*time.Minute, time.Millisecond)
}
