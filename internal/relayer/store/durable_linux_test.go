package store

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// lazy opens a store on a server that writes nothing to its disk before a commit waits for it: its background writer is
// stopped.
func lazy(t *testing.T) (*testpostgres.Server, *Store, AllocationLimits) {
	t.Helper()
	server := testpostgres.Own(t)
	migrate(t, server.URL())
	s, limits := open(t, server.Pool(t), 2)
	var pid int
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`).Scan(&pid))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // it may be gone
	// Stopped while it writes, it would hold the log's lock, and every commit would wait for ever.
	for idle, deadline := false, time.Now().Add(2*time.Minute); !idle; {
		require.True(t, time.Now().Before(deadline), "it always writes")
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && strings.Contains(string(stat), ") T ")
		}, 2*time.Minute, time.Millisecond)
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT wait_event IS NOT DISTINCT FROM 'WalWriterMain' FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&idle))
		if !idle {
			require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		}
	}
	return server, s, limits
}

// flushed reports whether the server's log is on disk up to a position.
func flushed(t *testing.T, s *Store, position string) (is bool) {
	t.Helper()
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn`, position).Scan(&is))
	return is
}

// position returns the current position of the server's log.
func position(t *testing.T, s *Store) (at string) {
	t.Helper()
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&at))
	return at
}

// Accept and Dispatch return when the allocated nonces are on disk, although their first commits do not wait for that.
func TestAccept_Returned_IsOnTheDisk(t *testing.T) {
	t.Parallel()
	server, s, limits := lazy(t)
	limits.Cap = 1
	txs := accept(t, s, limits, newTxs(s, 5)...)
	require.True(t, flushed(t, s, position(t, s)))
	limits.Cap = 2
	again, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, again, 2)
	require.True(t, flushed(t, s, position(t, s)))
	server.Kill()
	server.Restart()
	s.db.Reset()
	nonces := map[uint64]int{}
	for _, tx := range txs {
		if now := read(t, s, tx); now.Nonce != nil {
			nonces[*now.Nonce]++
		}
	}
	require.Equal(t, map[uint64]int{0: 2, 1: 2}, nonces)
}

// unflushed stores new transactions in the server's memory only, as they are for a moment before Accept returns.
func unflushed(t *testing.T, s *Store, limits AllocationLimits, newTxs ...*NewTransaction) {
	t.Helper()
	a := &acceptBatch{store: s, limits: limits, newTxs: newTxs, results: make([]AcceptResult, len(newTxs))}
	require.NoError(t, pgx.BeginFunc(t.Context(), s.db, func(tx pgx.Tx) error {
		batch := relaxed()
		require.NoError(t, a.lock(batch))
		require.NoError(t, tx.SendBatch(t.Context(), batch).Close())
		batch = new(pgx.Batch)
		require.NoError(t, a.write(batch))
		return tx.SendBatch(t.Context(), batch).Close()
	}))
	require.False(t, flushed(t, s, position(t, s)))
}

// A repeated request, or a read of its transaction, returns after the transaction is on disk. The process that stores it
// need not have waited yet.
func TestTransaction_AcceptedLately_IsOnTheDisk(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(*Store, AllocationLimits, *NewTransaction) error{
		"read": func(s *Store, _ AllocationLimits, d *NewTransaction) error {
			_, err := s.Transaction(t.Context(), d.ID)
			return err
		},
		"listed": func(s *Store, _ AllocationLimits, d *NewTransaction) error {
			txs, _, err := s.Transactions(t.Context(), Filter{}, 0, 10)
			require.Len(t, txs, 1)
			return err
		},
		"repeated": func(s *Store, limits AllocationLimits, d *NewTransaction) error {
			again := newTx(s)
			again.IdempotencyKey = "key"
			results, err := s.Accept(t.Context(), limits, []*NewTransaction{again})
			require.NoError(t, err)
			require.Equal(t, d.ID, results[0].Tx.ID)
			return results[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, s, limits := lazy(t)
			d := newTx(s)
			d.IdempotencyKey = "key"
			unflushed(t, s, limits, d)
			require.NoError(t, read(s, limits, d))
			server.Kill()
			server.Restart()
			s.db.Reset()
			_, err := s.Transaction(t.Context(), d.ID)
			require.NoError(t, err)
		})
	}
}

// A server that crashes before a commit is on its disk loses it. Bytes signed meanwhile are not stored, and so not
// broadcasted; the nonce is allocated again.
func TestStoreAttempts_CrashTookTheTransaction_StoresNothing(t *testing.T) {
	t.Parallel()
	server, s, limits := lazy(t)
	d := newTx(s)
	d.Key = limits.Held[0]
	unflushed(t, s, limits, d)
	tx := s.transactionOf(d, time.Now())
	tx.From, tx.Nonce = limits.Held[0], new(uint64)
	server.Kill()
	server.Restart()
	s.db.Reset()
	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(tx, 1, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{false}, stored)
	again := newTx(s)
	again.Key = limits.Held[0]
	require.Zero(t, *accept(t, s, limits, again)[0].Nonce)
}

// A commit whose response was lost may still happen while the server holds its locks.
func TestAccept_AnswerWasLost_FindsOut(t *testing.T) {
	t.Parallel()
	server, s, limits := lazy(t)
	stored, never := newTx(s), newTx(s)
	unflushed(t, s, limits, stored)
	resolve := func(d *NewTransaction) error {
		a := &acceptBatch{store: s, limits: limits, rows: []*relayer.Transaction{s.transactionOf(d, time.Now())}}
		return a.resolve(t.Context(), relayer.ErrUnknown)
	}
	var err error
	var early bool
	done := make(chan struct{})
	beside(t, s, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `SELECT FROM relayer_keys FOR UPDATE`)
		require.NoError(t, err)
	}, func() error {
		defer close(done)
		err = resolve(never)
		return nil
	}, func() {
		select {
		case <-done:
			early = true
		default:
		}
	})
	require.False(t, early, "it did not wait for the locks")
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	require.NotErrorIs(t, err, relayer.ErrUnknown)

	require.NoError(t, resolve(stored))
	server.Kill()
	server.Restart()
	s.db.Reset()
	_, err = s.Transaction(t.Context(), stored.ID)
	require.NoError(t, err)
}
