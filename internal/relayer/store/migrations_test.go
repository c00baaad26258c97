package store

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMigrations_DownLeavesNothingAndUpMakesItAgain(t *testing.T) {
	t.Parallel()
	server := testpostgres.New(t)
	migrate(t, server.URL())
	db := server.Pool(t)
	objects := func() (n int) {
		t.Helper()
		require.NoError(t, db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE relname LIKE 'relayer%' AND relname NOT LIKE 'relayer_migrations%')
			+ (SELECT count(*) FROM pg_proc WHERE proname LIKE 'relayer%')`).Scan(&n))
		return n
	}
	before := objects()
	content, err := fs.ReadFile(Migrations().FS, "00001_relayer.sql")
	require.NoError(t, err)
	up, down, found := strings.Cut(string(content), "-- +goose Down")
	require.True(t, found)
	_, err = db.Exec(t.Context(), down)
	require.NoError(t, err)
	require.Zero(t, objects())
	_, err = db.Exec(t.Context(), up)
	require.NoError(t, err)
	require.Equal(t, before, objects())
}
