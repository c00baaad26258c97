package testpostgres_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/postgres"
	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

var schema = postgres.Migrations{
	Table: "test_version",
	FS:    fstest.MapFS{"00001_one.sql": {Data: []byte("-- +goose Up\nCREATE TABLE one (id int PRIMARY KEY, v text);\n")}},
}

func TestDatabasesAreTheTestsOwn(t *testing.T) {
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			pool := testpostgres.New(t, testpostgres.Migrated(schema)).Pool(t)
			_, err := pool.Exec(t.Context(), "INSERT INTO one VALUES (1, $1)", t.Name())
			require.NoError(t, err)
		})
	}
}

func TestDatabaseIsEmpty(t *testing.T) {
	t.Parallel()
	pool := testpostgres.New(t).Pool(t)
	var tables int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables))
	require.Zero(t, tables)
}
