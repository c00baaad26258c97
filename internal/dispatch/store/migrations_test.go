package store

import (
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// until returns the migrations up to a version, such as "00003".
func until(t *testing.T, version string) postgres.Migrations {
	t.Helper()
	all := Migrations()
	some := fstest.MapFS{}
	names, err := fs.Glob(all.FS, "*.sql")
	require.NoError(t, err)
	for _, name := range names {
		content, err := fs.ReadFile(all.FS, name)
		require.NoError(t, err)
		if name[:len(version)] <= version {
			some[name] = &fstest.MapFile{Data: content}
		}
	}
	return postgres.Migrations{FS: some, Table: all.Table}
}

// Former builds stored when a check is due, with the pause in it. The pause must not be added again.
func TestMigrations_CheckInTheFuture_IsDueAfterOnePause(t *testing.T) {
	t.Parallel()
	d := testpostgres.New(t, testpostgres.Migrated(until(t, "00003")), testpostgres.Migrated(queue.Migrations()))
	f := &fixture{t: t, db: d.Pool(t)}
	f.Store = New(f.db, Config{Enqueue: queue.EnqueueSQL})
	insert := func(checks int, check string, open bool) (id uuid.UUID) {
		id = uuid.Must(uuid.NewV7())
		_, err := f.db.Exec(t.Context(), `INSERT INTO relay_transactions (id, client, request_hash, kind, to_address, value_wei, data, gas_limit, speed,
				digest, webhook, status, relayer, relayer_url, relayer_tx, checks, check_at, open)
			VALUES ($1, 'shop', '', 'direct', decode(repeat('00', 20), 'hex'), 0, '', 1, 'average', '', false, 'submitted', 'a', 'http://a', 'r', $2,
				now() + $3::interval, $4)`, id, checks, check, open)
		require.NoError(t, err)
		return id
	}
	silent, often, overdue := insert(0, "60 s", true), insert(7, "64 min", true), insert(1, "-1 h", true)
	insert(0, "60 s", false)
	require.NoError(t, postgres.Migrate(t.Context(), d.URL(), Migrations()))

	var taken []uuid.UUID
	for _, after := range []time.Duration{0, 61 * time.Second, 64 * time.Minute} {
		_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET check_at = check_at - $1::interval`, after)
		require.NoError(t, err)
		due, err := f.TakeDue(t.Context(), 10, 0, nil)
		require.NoError(t, err)
		for _, one := range due {
			if !slices.Contains(taken, one.ID) {
				taken = append(taken, one.ID)
			}
		}
	}
	require.Equal(t, []uuid.UUID{overdue, silent, often}, taken)
}
