package postgres_test

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// All servers of a run have the files of one initdb, and share nothing else.
func TestPrefill_ServersOfARun_AreCopies(t *testing.T) {
	t.Setenv(testpostgres.RunFolder, t.TempDir())
	var mu sync.Mutex
	identifiers := map[int64]int{}
	t.Run("servers", func(t *testing.T) {
		for range 3 { // the first ones make the template at once
			t.Run("", func(t *testing.T) {
				t.Parallel()
				pool := testpostgres.Own(t).Pool(t)
				var identifier int64
				require.NoError(t, pool.QueryRow(t.Context(), "SELECT system_identifier FROM pg_control_system()").Scan(&identifier))
				_, err := pool.Exec(t.Context(), "CREATE TABLE mine ()")
				require.NoError(t, err, "another server's table")
				mu.Lock()
				defer mu.Unlock()
				identifiers[identifier]++
			})
		}
	})
	require.Equal(t, []int{3}, slices.Collect(maps.Values(identifiers)))
}
