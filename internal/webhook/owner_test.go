package webhook

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// Owner is an owner of deliveries. The tests of deliveries run for each.
type Owner struct {
	Name       string
	Source     Source
	Letters    deadletter.Source
	Migrations postgres.Migrations
	// Change writes a change of subject $1, with revision $2, and its deliveries to the targets $3. The payload has the id
	// and the revision. "deliveries" in it is the Source's table.
	Change string
}

// owners has the owners when the tests run: see [AddOwner].
var owners []*Owner

// AddOwner adds one. The owners import this package.
func AddOwner(o *Owner) { owners = append(owners, o) }

func ownerNamed(name string) *Owner {
	return owners[slices.IndexFunc(owners, func(o *Owner) bool { return o.Name == name })]
}

// eachOwner runs a test for each owner.
func eachOwner(t *testing.T, test func(t *testing.T, o *Owner)) {
	t.Helper()
	for _, o := range owners {
		t.Run(o.Name, func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

// testDB is a database with an owner's tables. In statements "deliveries" is the owner's table.
type testDB struct {
	*pgxpool.Pool
	owner *Owner
}

// database is for tests that do not depend on the owner.
func database(t testing.TB) *testDB {
	t.Helper()
	return ownerNamed("clients").database(t)
}

func (o *Owner) database(t testing.TB) *testDB {
	t.Helper()
	return &testDB{testpostgres.New(t, testpostgres.Migrated(o.Migrations)).Pool(t), o}
}

// letters returns the deliveries as operators see them.
func (d *testDB) letters(t testing.TB) *deadletter.Letters {
	t.Helper()
	letters, err := deadletter.New(d.Pool, d.owner.Letters)
	require.NoError(t, err)
	return letters
}

// lane returns the lane of a target.
func (d *testDB) lane(target string) string { return d.owner.Source.Prefix + target }

func (d *testDB) sql(statement string) string {
	return strings.ReplaceAll(statement, "deliveries", d.owner.Source.Table.Name)
}

func (d *testDB) Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	return d.Pool.Exec(ctx, d.sql(statement), args...)
}

func (d *testDB) QueryRow(ctx context.Context, statement string, args ...any) pgx.Row {
	return d.Pool.QueryRow(ctx, d.sql(statement), args...)
}

// write executes a statement.
func write(t testing.TB, db *testDB, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}
