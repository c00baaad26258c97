package webhook

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// Owner is an owner of deliveries. The tests of deliveries run for each.
type Owner struct {
	Name       string
	Source     Source
	Migrations postgres.Migrations
	// Change writes a change of subject $1, with revision $2, and its deliveries to the targets $3. The payload has the id
	// and the revision. "deliveries" in it is the Source's table.
	Change string
}

// plain owns a table for PlainSource: that of the relay path.
var plain = &Owner{
	Name:   "plain",
	Source: PlainSource("relay_deliveries", "transaction_update"),
	Migrations: postgres.Migrations{Table: "relay_migrations", FS: fstest.MapFS{"00001_relay.sql": {Data: []byte(`-- +goose Up
CREATE TABLE relay_txs (
    id       uuid    PRIMARY KEY,
    revision integer NOT NULL
);
` + relayDeliveries())}}},
	Change: `
		WITH changed AS (INSERT INTO relay_txs (id, revision) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET revision = $2 RETURNING *)
		INSERT INTO deliveries (target, subject, revision, payload)
		SELECT target, c.id, c.revision, jsonb_build_object('id', c.id, 'revision', c.revision)
		FROM changed c CROSS JOIN unnest($3::text[]) AS target`,
}

// owners has more when the tests run: see [AddOwner].
var owners = []*Owner{plain}

// AddOwner adds one that imports this package.
func AddOwner(o *Owner) { owners = append(owners, o) }

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
	return plain.database(t)
}

func (o *Owner) database(t testing.TB) *testDB {
	t.Helper()
	return &testDB{testpostgres.New(t, testpostgres.Migrated(o.Migrations)).Pool(t), o}
}

func (d *testDB) outbox() *Outbox { return NewOutbox(d.Pool, d.owner.Source) }

func (d *testDB) sql(statement string) string {
	return strings.ReplaceAll(statement, "deliveries", d.owner.Source.Table)
}

func (d *testDB) Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	return d.Pool.Exec(ctx, d.sql(statement), args...)
}

func (d *testDB) QueryRow(ctx context.Context, statement string, args ...any) pgx.Row {
	return d.Pool.QueryRow(ctx, d.sql(statement), args...)
}

// insert inserts deliveries: the columns of a selection, and those of the owner's scope.
func (d *testDB) insert(t testing.TB, columns, selection string, args ...any) {
	t.Helper()
	var names, values string
	for _, c := range d.owner.Source.Scope {
		names += c.Name + ", "
		values += fmt.Sprintf("'%v', ", c.Value)
	}
	_, err := d.Exec(t.Context(), "INSERT INTO deliveries ("+names+columns+") SELECT "+values+selection, args...)
	require.NoError(t, err)
}

// relayDeliveries returns the DDL of the relay path's deliveries, from the migration.
func relayDeliveries() string {
	migration, err := os.ReadFile("../dispatch/store/migrations/00001_relay.sql")
	if err != nil {
		panic(err)
	}
	_, ddl, _ := strings.Cut(string(migration), "CREATE TABLE relay_deliveries")
	ddl, _, _ = strings.Cut(ddl, "-- +goose Down")
	return "CREATE TABLE relay_deliveries" + ddl
}
