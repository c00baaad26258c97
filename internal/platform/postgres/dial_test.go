package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// A server that freezes keeps its sockets open, and its kernel acknowledges everything: nothing but time tells.
func TestSilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{
		URL: server.URL(), StatementTimeout: 300 * time.Millisecond, ConnectTimeout: 300 * time.Millisecond, MaxConns: 2,
	})
	require.NoError(t, err)
	defer pool.Close()
	createNotes(t, pool)
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// More often than there are connections, by whoever has no deadline of his own: those without one, and a transaction.
	for i := range 4 {
		_, err := pool.Exec(context.WithoutCancel(ctx), "SELECT 1")
		require.Error(t, err)
		require.Error(t, postgres.InTx(context.WithoutCancel(ctx), pool, note(ctx, i)))
	}
	require.NoError(t, ctx.Err())
	server.Resume()
	require.NoError(t, postgres.Retry(ctx, func(ctx context.Context) error { return postgres.InTx(ctx, pool, note(ctx, 9)) }))
	require.Equal(t, 1, count(t, pool))
}

// What pgx does at the end of a context is not undone by the limit, and a connection that was idle for longer is as good
// as before.
func TestLimitIsOnlyForWhoWaits(t *testing.T) {
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

	quick, err := postgres.Open(t.Context(), postgres.Config{URL: server.URL(), StatementTimeout: 600 * time.Millisecond, MaxConns: 1})
	require.NoError(t, err)
	defer quick.Close()
	pid := func() (pid int) {
		require.NoError(t, quick.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		return pid
	}
	first := pid()
	<-time.After(time.Second) // the very thing that is tested: nothing happens meanwhile
	require.Equal(t, first, pid())
}
