package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/lease/leasetest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// E2: the lease in the row of a chain is one of the kit.
func TestWatcherLease_Conforms(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) leasetest.Subject {
		db := testpostgres.New(t, testpostgres.Migrated(Migrations())).Pool(t)
		for _, id := range []uint64{1, 2} {
			s, err := New(db, Config{ChainID: id, Events: events.BuiltIn()})
			require.NoError(t, err)
			require.NoError(t, s.Register(t.Context(), Settings{}))
		}
		return leasetest.Subject{DB: db, Table: watcherLease, Row: []any{1}, Other: []any{2}, Missing: []any{3}}
	})
}
