package service_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

func scope(t *testing.T, r *relayertest.Relayer, caller string) string {
	t.Helper()
	scope, err := r.IdempotencyScope(t.Context(), caller)
	require.NoError(t, err)
	require.Len(t, scope, 64)
	return scope
}

func TestIdempotencyScope_EqualInAPool_DiffersByCallerPoolAndDatabase(t *testing.T) {
	f := setup(t, 2)
	first, second := f.start(t), f.start(t)
	require.Equal(t, scope(t, first, "shop"), scope(t, second, "shop"))
	require.Equal(t, scope(t, first, "shop"), scope(t, first, "shop"))
	seen := map[string]bool{scope(t, first, "shop"): true, scope(t, first, "sho"): true, scope(t, first, "p"): true}

	o := f.options
	o.ID, o.Ring = "another", signertest.Ring(t, t.Name()+" another", 1)
	another := relayertest.Launch(t, o)
	require.Eventually(t, func() bool {
		scope, err := another.IdempotencyScope(t.Context(), "shop")
		seen[scope] = true
		return err == nil && scope != ""
	}, 2*time.Minute, 10*time.Millisecond)
	delete(seen, "") // not registered yet

	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	defer db.Close(t.Context())
	var identities []uuid.UUID
	rows, err := db.Query(t.Context(), `SELECT identity FROM relayer_pools`)
	require.NoError(t, err)
	identities, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	require.Len(t, identities, 2)
	require.Len(t, seen, 4)
	for s := range seen {
		for _, id := range identities {
			require.NotContains(t, s, strings.ReplaceAll(id.String(), "-", ""))
		}
	}
}

func TestSubmit_AnotherScope_StoresNothing(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	s := f.submission()
	s.IdempotencyKey, s.Scope = "key", strings.Repeat("0", 64)
	_, err := r.Submit(t.Context(), s)
	require.ErrorIs(t, err, relayer.ErrOtherScope)
	s.Scope = scope(t, r, s.Caller)
	tx, err := r.Submit(t.Context(), s)
	require.NoError(t, err)
	_, total, err := r.Transactions(t.Context(), relayertest.PoolID, relayer.Filter{}, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, total)

	// A known key is found, whatever became of the gas estimate.
	again, err := r.Submit(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, tx.ID, again.ID)
}

// A failover of the database may have lost idempotency keys, so that an earlier scope is no longer valid. That holds for a
// process that still has the earlier one cached.
func TestSubmit_DatabaseFailedOver_RefusesTheEarlierScope(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	s := f.submission()
	s.IdempotencyKey, s.Scope = "key", scope(t, r, s.Caller)
	earlier := s.Scope
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `UPDATE relayer_pools SET timeline = '00000000'`)
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	require.Eventually(t, func() bool {
		_, err = r.Submit(t.Context(), s)
		require.Error(t, err)
		return !strings.Contains(err.Error(), "failed over")
	}, 2*time.Minute, 10*time.Millisecond)
	require.ErrorIs(t, err, relayer.ErrOtherScope)
	require.Eventually(t, func() bool { return scope(t, r, s.Caller) != earlier }, 2*time.Minute, 10*time.Millisecond)
	s.Scope = scope(t, r, s.Caller)
	_, err = r.Submit(t.Context(), s)
	require.NoError(t, err)
}
