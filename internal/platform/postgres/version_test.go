package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// A server that restarts may accept one connection and close the next.
func TestMigrate_ServerClosesSecondConnection_Waits(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	require.NoError(t, postgres.Migrate(t.Context(), faulty(t, db.URL(), endSecond), first))
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: faulty(t, db.URL(), endSecond)})
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, postgres.Check(t.Context(), pool, first))
}

func TestCheck_ComparesVersions(t *testing.T) {
	t.Parallel()
	db := testpostgres.New(t)
	pool := db.Pool(t)
	var older *postgres.OlderError
	require.ErrorAs(t, postgres.Check(t.Context(), pool, migrations(one, two)), &older)
	require.Equal(t, postgres.OlderError{Table: "some_version", Own: 2}, *older)
	require.False(t, has(t, pool, "some_version"), "asking leaves no trace")

	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), first))
	require.NoError(t, postgres.Check(t.Context(), pool, first))
	require.ErrorAs(t, postgres.Check(t.Context(), pool, migrations(one, two)), &older)
	require.Equal(t, postgres.OlderError{Table: "some_version", Database: 1, Own: 2}, *older)

	require.NoError(t, postgres.Migrate(t.Context(), db.URL(), migrations(one, two)))
	var newer *postgres.NewerError
	require.ErrorAs(t, postgres.Check(t.Context(), pool, first), &newer)
	require.Equal(t, postgres.NewerError{Table: "some_version", Database: 2, Own: 1}, *newer)
}
