package store

import (
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// before are the migrations up to the one with that name.
func before(t *testing.T, name string) postgres.Migrations {
	t.Helper()
	m := Migrations()
	names, err := fs.Glob(m.FS, "*.sql")
	require.NoError(t, err)
	some := fstest.MapFS{}
	for _, n := range names {
		if n < name {
			content, err := fs.ReadFile(m.FS, n)
			require.NoError(t, err)
			some[n] = &fstest.MapFile{Data: content}
		}
	}
	m.FS = some
	return m
}

// Every pool of a chain goes on under the timeline that the chain had: a failover that nobody has reconciled is none that is
// forgotten.
func TestPoolsInheritWhatTheirChainHad(t *testing.T) {
	t.Parallel()
	server := testpostgres.New(t, testpostgres.Migrated(before(t, "00004")))
	db := server.Pool(t)
	_, err := db.Exec(t.Context(), `INSERT INTO relayer_chains (chain_id, genesis_hash, anchor_hash, timeline, tracker, tracker_epoch, tracker_until)
		VALUES (1337, '0x01', '0x01', '0000000A', 'somebody', 7, now() + interval '1 hour')`)
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `INSERT INTO relayer_pools (chain_id, pool_id, targets) VALUES (1337, 'pool', '{}'), (1337, 'pond', '{}'), (1, 'pool', '{}')`)
	require.NoError(t, err)
	migrate(t, server.URL())
	for _, pool := range []string{"pool", "pond"} {
		l := New(db, Config{ChainID: 1337, Pool: pool})
		over, err := l.FailedOver(t.Context())
		require.NoError(t, err)
		require.True(t, over)
		ok, _, err := l.AcquireTrackerLease(t.Context(), "another", time.Minute, 0)
		require.NoError(t, err)
		require.False(t, ok)
		ok, epoch, err := l.AcquireTrackerLease(t.Context(), "somebody", time.Minute, 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, int64(7), epoch)
	}
	over, err := New(db, Config{ChainID: 1, Pool: "pool"}).FailedOver(t.Context())
	require.NoError(t, err)
	require.False(t, over)
}
