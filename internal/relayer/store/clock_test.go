package store

import (
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// A process with a wrong clock (here in the year 2000) dates its rows by the database's clock. Rows are compared with the
// database's time, to find abandoned ones, and those that were pending at a cancellation of all.
func TestRows_ProcessClockIsWrong_HaveDatabaseTime(t *testing.T) {
	t.Parallel()
	url := testpostgres.New(t, testpostgres.Migrated(Migrations())).URL()
	synctest.Test(t, func(t *testing.T) {
		db, err := pgxpool.New(t.Context(), url)
		require.NoError(t, err)
		defer db.Close()
		l, terms := open(t, db, 2)
		began, err := l.Now(t.Context())
		require.NoError(t, err)
		require.Greater(t, time.Until(began), 24*time.Hour)

		funding := terms.Held[1]
		require.NoError(t, l.Register(t.Context(), []Registration{{Address: funding, Funding: true}}))
		txs := accept(t, l, terms, draft(l))
		require.NoError(t, onlyErr(l.AdvanceNonce(t.Context(), terms.Held[0], known(t, l).Generation, 3)))
		filled, err := l.FillNonceGaps(t.Context(), terms.Held[0], known(t, l).Generation, 0, 0)
		require.NoError(t, err)
		require.Len(t, filled, 2)
		topUp, err := l.TopUp(t.Context(), TopUp{From: funding, To: txs[0].From, Amount: big.NewInt(1), Fee: big.NewInt(1), Gas: 21_000, Cap: 16})
		require.NoError(t, err)
		by, err := l.Now(t.Context())
		require.NoError(t, err)
		for _, tx := range append(append(txs, filled...), topUp) {
			require.WithinRange(t, tx.CreatedAt, began.Truncate(time.Microsecond), by)
			stored := read(t, l, tx)
			require.True(t, stored.CreatedAt.Equal(tx.CreatedAt))
			require.True(t, stored.UpdatedAt.Equal(tx.UpdatedAt))
		}

		fresh, err := l.Unsigned(t.Context(), all(terms), time.Minute, 10)
		require.NoError(t, err)
		require.Empty(t, fresh, "the process that allocated them may be signing")
		later := accept(t, l, AllocationLimits{Held: terms.Held, Cap: 4, Queue: 10}, draft(l))
		canceled, err := l.CancelPending(t.Context(), terms.Held[0], by, "all", 10)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{txs[0].ID}, canceled)
		require.Equal(t, relayer.IntentSend, read(t, l, later[0]).Intent)
	})
}
