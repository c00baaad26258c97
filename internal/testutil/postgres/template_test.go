package postgres_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// All servers of a run have the files of one initdb, and share nothing else.
func TestPrefill_ServersOfARun_AreCopies(t *testing.T) {
	t.Setenv(testpostgres.RunFolder, t.TempDir())
	servers := make([]*testpostgres.Server, 3)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() { servers[i] = testpostgres.Own(t) }) // the first ones fill the run's folder at once
	}
	wg.Wait()
	identifiers := map[int64]bool{}
	for _, s := range servers {
		require.NotNil(t, s)
		pool := s.Pool(t)
		var identifier int64
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT system_identifier FROM pg_control_system()").Scan(&identifier))
		identifiers[identifier] = true
		_, err := pool.Exec(t.Context(), "CREATE TABLE mine ()")
		require.NoError(t, err, "another server's table")
	}
	require.Len(t, identifiers, 1)
}
