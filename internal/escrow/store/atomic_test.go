package store_test

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// E1: readers see nothing of a step that is written in part, neither before its process dies nor afterwards.
func TestCommit_DiesInTheMiddle_NothingIsSeen(t *testing.T) {
	f := setup(t)
	b1 := block(1, 0)
	step := store.Step{Epoch: f.epoch, To: b1, Blocks: []store.Read{read(b1, nil, deployed(t, common.Address{1}))}}
	lock, err := f.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), "LOCK TABLE escrow_blocks IN SHARE MODE") // a step writes the blocks after events and messages
	require.NoError(t, err)
	committed := make(chan error, 1)
	go func() {
		_, err := f.Commit(t.Context(), step)
		committed <- err
	}()
	var pid int32
	require.Eventually(t, func() bool {
		err := f.db.QueryRow(t.Context(), `SELECT w.pid FROM pg_locks w JOIN pg_locks e ON e.pid = w.pid AND e.relation = 'processed_events'::regclass
			AND e.mode = 'RowExclusiveLock' WHERE w.relation = 'escrow_blocks'::regclass AND NOT w.granted`).Scan(&pid)
		if err != nil {
			require.ErrorIs(t, err, pgx.ErrNoRows)
		}
		return err == nil
	}, time.Minute, 5*time.Millisecond, "the step does not reach the blocks")
	nothing := func() {
		t.Helper()
		require.Zero(t, f.count(`SELECT (SELECT count(*) FROM processed_events) + (SELECT count(*) FROM escrow_outbox) + (SELECT count(*) FROM escrow_accounts)
			+ (SELECT count(cursor_number) FROM escrow_chains)`))
	}
	nothing()
	_, err = f.db.Exec(t.Context(), "SELECT pg_terminate_backend($1)", pid)
	require.NoError(t, err)
	err = <-committed
	require.Error(t, err)
	require.NotErrorAs(t, err, new(*postgres.UnknownError))
	nothing()
	require.NoError(t, lock.Rollback(t.Context()))
	_, err = f.Commit(t.Context(), step)
	require.NoError(t, err)
	require.Len(t, f.messages("topic"), 1)
}
