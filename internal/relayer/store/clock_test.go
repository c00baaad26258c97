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
		s, limits := open(t, db, 2)
		began, err := s.Now(t.Context())
		require.NoError(t, err)
		require.Greater(t, time.Until(began), 24*time.Hour)

		funding := limits.Held[1]
		require.NoError(t, s.Register(t.Context(), []Registration{{Address: funding, Funding: true}}))
		txs := accept(t, s, limits, newTx(s))
		require.NoError(t, onlyErr(s.AdvanceNonce(t.Context(), limits.Held[0], known(t, s).Generation, 3)))
		filled, err := s.FillNonceGaps(t.Context(), limits.Held[0], known(t, s).Generation, 0, 0)
		require.NoError(t, err)
		require.Len(t, filled, 2)
		topUp, err := s.TopUp(t.Context(), TopUp{From: funding, To: txs[0].From, Amount: big.NewInt(1), Fee: big.NewInt(1), Gas: 21_000, Cap: 16})
		require.NoError(t, err)
		by, err := s.Now(t.Context())
		require.NoError(t, err)
		for _, tx := range append(append(txs, filled...), topUp) {
			require.WithinRange(t, tx.CreatedAt, began.Truncate(time.Microsecond), by)
			stored := read(t, s, tx)
			require.True(t, stored.CreatedAt.Equal(tx.CreatedAt))
			require.True(t, stored.UpdatedAt.Equal(tx.UpdatedAt))
		}

		fresh, err := s.Unsigned(t.Context(), all(limits), time.Minute, 10)
		require.NoError(t, err)
		require.Empty(t, fresh, "the process that allocated them may be signing")
		later := accept(t, s, AllocationLimits{Held: limits.Held, Cap: 4, Queue: 10}, newTx(s))
		canceled, err := s.CancelPending(t.Context(), limits.Held[0], by, "all", 10)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{txs[0].ID}, canceled)
		require.Equal(t, relayer.IntentSend, read(t, s, later[0]).Intent)
	})
}
