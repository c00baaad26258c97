package store

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// After a promotion no nonce is allocated until the nodes were queried; then only nonces above theirs.
func TestAccept_AfterFailover_GivesOutNothing(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	migrate(t, server.URL())
	db := server.Pool(t)
	s, limits := open(t, db, 2)
	accept(t, s, limits, newTx(s))
	other, otherTerms := pond(t, db)
	var folder string
	require.NoError(t, db.QueryRow(t.Context(), `SHOW data_directory`).Scan(&folder))
	server.Stop()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "standby.signal"), nil, 0o644))
	server.Restart()
	require.Eventually(t, func() bool {
		_, err := db.Exec(t.Context(), `SELECT pg_promote()`)
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond)

	over, err := s.FailedOver(t.Context())
	require.NoError(t, err)
	require.True(t, over)
	work, err := other.HasWork(t.Context(), otherTerms.Held)
	require.NoError(t, err)
	require.True(t, work, "its nonces must be compared, although no transaction is open")
	results, err := s.Accept(t.Context(), limits, []*NewTransaction{newTx(s)})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, relayer.ErrUnavailable)
	require.NoError(t, s.Reconcile(t.Context(), 0, map[common.Address]uint64{limits.Held[0]: 7, limits.Held[1]: 0}))
	over, err = s.FailedOver(t.Context())
	require.NoError(t, err)
	require.False(t, over)
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(7), keys[0].NextNonce)
	require.LessOrEqual(t, keys[1].NextNonce, uint64(1))
	// The nodes were not queried about another pool's keys.
	over, err = other.FailedOver(t.Context())
	require.NoError(t, err)
	require.True(t, over)
	require.ErrorIs(t, result(t, other, otherTerms, newTx(other)).Err, relayer.ErrUnavailable)
	accept(t, s, limits, newTx(s))
}

// A dump restored under running processes has allocated fewer nonces than they have. No nonce is allocated until the nodes
// were queried. Another restore of the same dump is detected as well.
func TestAccept_RestoredDump_WaitsForReconcile(t *testing.T) {
	t.Parallel()
	server := testpostgres.Own(t)
	migrate(t, server.URL())
	db := server.Pool(t)
	s, limits := open(t, db, 1)
	accept(t, s, limits, newTx(s))
	file := filepath.Join(t.TempDir(), "dump")
	server.Dump(file)
	accept(t, s, limits, newTx(s))
	earlier, err := s.Identity(t.Context())
	require.NoError(t, err)
	over, err := s.FailedOver(t.Context())
	require.NoError(t, err)
	require.False(t, over)
	for next := range uint64(2) {
		server.Replace(server.Restored(file))
		require.Eventually(t, func() bool { return db.Ping(t.Context()) == nil }, 2*time.Minute, 10*time.Millisecond)
		over, err = s.FailedOver(t.Context())
		require.NoError(t, err)
		require.True(t, over)
		require.ErrorIs(t, result(t, s, limits, newTx(s)).Err, relayer.ErrUnavailable)
		require.NoError(t, s.Reconcile(t.Context(), 0, map[common.Address]uint64{limits.Held[0]: 2 + next}))
		// Keys that were accepted after the dump are lost.
		identity, err := s.Identity(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, earlier, identity)
		lost := newTx(s)
		lost.IdempotencyKey, lost.Identity = "lost", earlier
		require.ErrorIs(t, result(t, s, limits, lost).Err, relayer.ErrOtherScope)
		earlier = identity
		over, err = s.FailedOver(t.Context())
		require.NoError(t, err)
		require.False(t, over)
		require.Equal(t, 2+next, *accept(t, s, limits, newTx(s))[0].Nonce)
	}
}

func TestIdentity_IsThePoolsAndStays(t *testing.T) {
	t.Parallel()
	server := testpostgres.New(t, testpostgres.Migrated(Migrations()))
	db := server.Pool(t)
	_, err := New(db, Config{ChainID: 1337, Pool: "pool"}).Identity(t.Context())
	require.ErrorIs(t, err, relayer.ErrNotFound)
	s, limits := open(t, db, 1)
	other, _ := pond(t, db)
	identity, err := s.Identity(t.Context())
	require.NoError(t, err)
	another, err := other.Identity(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, identity, another)

	again, _ := open(t, db, 1) // registers again
	require.NoError(t, again.Reconcile(t.Context(), 0, nil))
	now, err := again.Identity(t.Context())
	require.NoError(t, err)
	require.Equal(t, identity, now, "nothing was lost")

	right, wrong := newTx(s), newTx(s)
	right.IdempotencyKey, right.Identity = "right", identity
	wrong.IdempotencyKey, wrong.Identity = "wrong", another
	results, err := s.Accept(t.Context(), limits, []*NewTransaction{wrong, right})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, relayer.ErrOtherScope)
	require.NoError(t, results[1].Err)
	tx, err := s.Replay(t.Context(), "caller", "wrong", wrong.BodyHash)
	require.NoError(t, err)
	require.Nil(t, tx)
}
