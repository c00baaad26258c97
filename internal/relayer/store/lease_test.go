package store

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/lease/leasetest"
)

func TestTrackerLease_Conformance(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leasetest.Subject {
		s, _ := setup(t, 1)
		other, _ := pond(t, s.db)
		return leasetest.Subject{
			DB: s.db, Table: trackerLease, Row: []any{s.ChainID, s.Pool}, Other: []any{other.ChainID, other.Pool},
			Missing: []any{s.ChainID, "not registered"},
		}
	})
}

// The lease of a pool is in the pool's own row, and registering again keeps it.
func TestTrackerLease_IsThePools(t *testing.T) {
	t.Parallel()
	s, _ := setup(t, 1)
	other, _ := pond(t, s.db)
	_, elected, err := s.TrackerLease().Elect(t.Context(), "a", time.Hour, 0)
	require.NoError(t, err)
	require.True(t, elected)
	require.NoError(t, s.Register(t.Context(), nil))
	_, held, err := s.TrackerLease().Current(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	_, held, err = other.TrackerLease().Current(t.Context())
	require.NoError(t, err)
	require.False(t, held)
	rows, err := s.db.Query(t.Context(), `SELECT pool_id FROM relayer_pools WHERE tracker = 'a'`)
	require.NoError(t, err)
	pools, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{s.Pool}, pools)
}
