package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// notes returns a database with a table of notes.
func notes(t *testing.T) (*testpostgres.DB, *pgxpool.Pool) {
	t.Helper()
	db := testpostgres.New(t)
	pool := db.Pool(t)
	createNotes(t, pool)
	return db, pool
}

func createNotes(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(), "CREATE TABLE notes (id int PRIMARY KEY, n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	require.NoError(t, err)
}

func note(ctx context.Context, id int) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO notes VALUES ($1, $1)", id)
		return err
	}
}

func count(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	// The pool may hold connections to a server that was killed.
	require.NoError(t, postgres.Retry(t.Context(), func(ctx context.Context) error {
		return pool.QueryRow(ctx, "SELECT count(*) FROM notes").Scan(&n)
	}))
	return n
}

func TestInTx_CommitResponseLost_IsUnknown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault fault
		ends  error // of the context, once the server has executed the commit; nil: it does not end
		rows  int
	}{
		"the answer is lost":      {loseAnswer, nil, 1},
		"the COMMIT itself is":    {loseCommit, nil, 0},
		"no answer":               {withholdReply, context.DeadlineExceeded, 1},
		"and the caller hangs up": {withholdReply, context.Canceled, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, direct := notes(t)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: faulty(t, db.URL(), tc.fault)})
			require.NoError(t, err)
			defer pool.Close()
			require.NoError(t, pool.Ping(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.ends != nil {
				go func() {
					defer cancel()
					for ctx.Err() == nil {
						var n int
						if err := direct.QueryRow(ctx, "SELECT count(*) FROM notes").Scan(&n); err != nil || n > 0 {
							return
						}
					}
				}()
			}
			err = postgres.InTx(ending{ctx, tc.ends}, pool, note(ctx, 1))
			require.ErrorIs(t, err, postgres.ErrUnknown)
			require.IsType(t, &postgres.UnknownError{}, err)
			require.False(t, postgres.Retryable(err))
			require.Equal(t, tc.rows, count(t, direct))
		})
	}
}

// ending is a context that ends with a given error, such as that of a deadline.
type ending struct {
	context.Context
	with error
}

func (e ending) Err() error {
	if e.Context.Err() == nil {
		return nil
	}
	return e.with
}

func TestInTx_LostBeforeCommit_IsNotDone(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	pool := server.Pool(t)
	createNotes(t, pool)
	check := func(do func(pgx.Tx) error) {
		t.Helper()
		err := postgres.InTx(t.Context(), pool, do)
		require.Error(t, err)
		require.NotErrorIs(t, err, postgres.ErrUnknown)
		require.True(t, postgres.Retryable(err), "%v", err)
	}
	check(func(tx pgx.Tx) error { // terminated by an administrator
		require.NoError(t, note(t.Context(), 1)(tx))
		_, err := tx.Exec(t.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	})
	check(func(tx pgx.Tx) error {
		require.NoError(t, note(t.Context(), 1)(tx))
		server.Kill()
		return note(t.Context(), 2)(tx)
	})
	check(note(t.Context(), 1)) // the server is killed
	server.Restart()
	require.Zero(t, count(t, pool))

	// do loses the connection, and returns no error.
	check(func(tx pgx.Tx) error {
		require.NoError(t, note(t.Context(), 1)(tx))
		_, _ = tx.Exec(t.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
		return nil
	})

	// Only the COMMIT is left when the server stops. Whether the loss is noticed before it is sent is random.
	err := postgres.InTx(t.Context(), pool, func(tx pgx.Tx) error {
		require.NoError(t, note(t.Context(), 1)(tx))
		server.Stop()
		return nil
	})
	require.Error(t, err)
	server.Restart()
	require.Zero(t, count(t, pool))
}

func TestInTx_Committed_SurvivesKill(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	pool := server.Pool(t)
	createNotes(t, pool)
	for i := range 3 {
		require.NoError(t, postgres.Retry(t.Context(), func(ctx context.Context) error {
			return postgres.InTx(ctx, pool, note(ctx, i))
		}))
		server.Kill()
		server.Restart()
	}
	require.Equal(t, 3, count(t, pool))
}

func TestInTx_CommitRejected_IsNotDone(t *testing.T) {
	t.Parallel()
	_, pool := notes(t)
	ctx := t.Context()
	require.NoError(t, postgres.InTx(ctx, pool, note(ctx, 1)))

	// A constraint that is checked at the commit.
	err := postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO notes VALUES (2, 1)")
		require.NoError(t, err)
		return nil
	})
	require.NotErrorIs(t, err, postgres.ErrUnknown)
	require.False(t, postgres.Retryable(err))
	require.ErrorContains(t, err, "notes_n_key")

	// A statement whose failure do does not return.
	err = postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		require.Error(t, note(ctx, 1)(tx))
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
	require.NotErrorIs(t, err, postgres.ErrUnknown)

	// A caller whose context ends before the COMMIT.
	short, cancel := context.WithCancel(ctx)
	err = postgres.InTx(short, pool, func(tx pgx.Tx) error {
		defer cancel()
		return note(ctx, 3)(tx)
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, postgres.ErrUnknown)
	require.False(t, postgres.Retryable(err))

	// If do ends the transaction itself, InTx does not have the outcome.
	err = postgres.InTx(ctx, pool, func(tx pgx.Tx) error { return tx.Commit(ctx) })
	require.ErrorIs(t, err, postgres.ErrUnknown)
	require.Equal(t, 1, count(t, pool))
}

func TestInTx_Fails_IsRolledBack(t *testing.T) {
	t.Parallel()
	_, pool := notes(t)
	ctx := t.Context()
	mine := errors.New("mine")
	require.Equal(t, mine, postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
		require.NoError(t, note(ctx, 1)(tx))
		return mine
	}))
	require.PanicsWithValue(t, "oh", func() {
		_ = postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
			require.NoError(t, note(ctx, 1)(tx))
			panic("oh")
		})
	})
	require.Zero(t, pool.Stat().AcquiredConns())
	require.Zero(t, count(t, pool))
}

func TestRetry_Conflict_RunsAgain(t *testing.T) {
	t.Parallel()
	_, pool := notes(t)
	require.NoError(t, postgres.InTx(t.Context(), pool, note(t.Context(), 0)))
	met := make(chan struct{}) // both have read
	var runs [2]int
	done := make(chan error)
	for i := range 2 {
		go func() {
			done <- postgres.Retry(t.Context(), func(ctx context.Context) error {
				runs[i]++
				return postgres.InTx(ctx, pool, func(tx pgx.Tx) error {
					var n int
					if _, err := tx.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"); err != nil {
						return err
					}
					if err := tx.QueryRow(ctx, "SELECT n FROM notes WHERE id = 0").Scan(&n); err != nil {
						return err
					}
					if runs[i] == 1 {
						select {
						case met <- struct{}{}:
						case <-met:
						}
					}
					_, err := tx.Exec(ctx, "UPDATE notes SET n = $1 WHERE id = 0", n+1)
					return err
				})
			})
		}()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, 3, runs[0]+runs[1], "one of them had to run again")
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT n FROM notes").Scan(&n))
	require.Equal(t, 2, n)
}

func TestRetry_OtherErrorOrContextEnds_Returns(t *testing.T) {
	t.Parallel()
	mine, calls := errors.New("mine"), 0
	require.Equal(t, mine, postgres.Retry(t.Context(), func(context.Context) error { calls++; return mine }))
	require.Equal(t, 1, calls)
	ctx, cancel := context.WithCancel(t.Context())
	transient := &pgconn.PgError{Code: "40001"}
	err := postgres.Retry(ctx, func(context.Context) error {
		if calls++; calls == 4 {
			cancel()
		}
		return transient
	})
	require.Equal(t, transient, err)
	require.Equal(t, 4, calls)
}

func TestUncertainAndRetryable_Errors(t *testing.T) {
	t.Parallel()
	answer := func(severity, code string) error {
		return fmt.Errorf("wrapped: %w", &pgconn.PgError{SeverityUnlocalized: severity, Code: code})
	}
	for _, tc := range []struct {
		err                  error
		uncertain, retryable bool
	}{
		{nil, false, false},
		{answer("ERROR", "40001"), false, true},
		{answer("ERROR", "40P01"), false, true},
		{answer("ERROR", "55P03"), false, true},
		{answer("ERROR", "23505"), false, false},
		{answer("ERROR", "57014"), false, false},
		{answer("ERROR", "40003"), true, false},
		{answer("FATAL", "57P01"), true, true},
		{answer("WARNING", "57P02"), true, true},
		{answer("FATAL", "08P01"), true, true},
		{answer("ERROR", "08006"), true, true},
		{answer("FATAL", "28P01"), true, false},
		{&postgres.UnknownError{Err: &pgconn.PgError{Code: "57P01"}}, true, false},
		{pgx.ErrTxCommitRollback, false, false},
		{pgx.ErrNoRows, false, false},
		{pgx.ErrTxClosed, true, false},
		{pgconn.ErrConnClosed, true, true},
		{io.ErrUnexpectedEOF, true, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true, true},
		{context.DeadlineExceeded, true, false},
		{context.Canceled, true, false},
		{errors.New("mine"), true, false},
	} {
		require.Equal(t, tc.uncertain, postgres.Uncertain(tc.err), "uncertain: %v", tc.err)
		require.Equal(t, tc.retryable, postgres.Retryable(tc.err), "retryable: %v", tc.err)
	}
}
