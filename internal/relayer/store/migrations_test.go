package store

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// migration returns the statements of a migration, to execute alone.
func migration(t *testing.T, name string) (up, down string) {
	t.Helper()
	content, err := fs.ReadFile(Migrations().FS, name)
	require.NoError(t, err)
	up, down, found := strings.Cut(string(content), "-- +goose Down")
	require.True(t, found)
	return up, down
}

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
	exec := func(sql string) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	before := objects()
	firstUp, firstDown := migration(t, "00001_relayer.sql")
	secondUp, secondDown := migration(t, "00002_webhooks.sql")
	exec(secondDown)
	exec(firstDown)
	require.Zero(t, objects())
	exec(firstUp)
	exec(secondUp)
	require.Equal(t, before, objects())
}

// The outbox's table has the deliveries of the table that it replaces: due ones with their attempts, dead letters and delivered ones.
func TestMigrations_Deliveries_BecomeEntriesAndBack(t *testing.T) {
	t.Parallel()
	all := Migrations()
	first, err := fs.ReadFile(all.FS, "00001_relayer.sql")
	require.NoError(t, err)
	d := testpostgres.New(t, testpostgres.Migrated(postgres.Migrations{FS: fstest.MapFS{"00001_relayer.sql": {Data: first}}, Table: all.Table}))
	db := d.Pool(t)
	tx, key := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	_, err = db.Exec(t.Context(), `INSERT INTO relayer_deliveries (chain_id, pool_id, target, subject, revision, status, tx_hash, payload, contents,
			state, attempts, retry_until, next_at, claimed_until, delivered_at, last_error, created_at)
		VALUES (1, 'pool', 'here', $1, 3, 'mined', '\x0a', NULL, '{"gasLimit": 1}', 'due', 0, NULL, now() + interval '1 h', '-infinity', NULL, '', now() - interval '3 h'),
			(1, 'pool', 'here', $1, 2, 'submitted', NULL, NULL, NULL, 'due', 4, now() + interval '2 h', now() + interval '9 min', '-infinity', NULL, 'answered 500', now() - interval '4 h'),
			(1, 'pool', 'here', $1, 1, 'queued', NULL, NULL, NULL, 'delivered', 1, now() + interval '1 h', now(), 'infinity', now() - interval '1 h', '', now() - interval '5 h'),
			(1, 'pool', 'there', $1, 1, 'queued', NULL, NULL, NULL, 'dead_letter', 9, now() - interval '1 h', now(), '-infinity', NULL, 'answered 404', now() - interval '30 h'),
			(2, 'pond', 'here', $2, 1, NULL, NULL, '{"n": 9007199254740993}', NULL, 'due', 1, now() + interval '1 day', now(), now() + interval '1 min', NULL, '', now())`, tx, key)
	require.NoError(t, err)
	type old struct {
		ID, Subject            uuid.UUID
		Chain                  int
		Pool, Target, State    string
		Revision, Attempts     int
		Status, Error, Payload *string
		Contents               *string
		Hash                   []byte
		Created                time.Time
		Delivered              *time.Time
	}
	read := func() []old {
		rows, err := db.Query(t.Context(), `SELECT id, subject, chain_id, pool_id, target, state, revision, attempts, status, last_error, payload::text,
			contents::text, tx_hash, created_at, delivered_at FROM relayer_deliveries ORDER BY id`)
		require.NoError(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[old])
		require.NoError(t, err)
		return list
	}
	before := read()
	require.NoError(t, postgres.Migrate(t.Context(), d.URL(), all))

	rows, err := db.Query(t.Context(), `SELECT lane || ' ' || revision || ' ' || state || ' ' || attempts || ' ' || failures || ' ' || reason || ' '
			|| (subject = about || '/' || split_part(lane, '/', 3)) || ' ' || coalesce(round(extract(epoch FROM now() - failing_since) / 3600)::text, '-') || ' '
			|| round(extract(epoch FROM due_at - now()) / 60) || ' ' || (claimed_until > now()) || ' ' || coalesce(convert_from(payload, 'UTF8'), '-') || ' '
			|| coalesce(settled_at <= now(), false) FROM relayer_webhooks ORDER BY about, lane, seq`)
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{
		"1/pool/here 1 done 1 1  true - 0 false - true",
		"1/pool/here 2 waiting 4 4 answered 500 true 22 9 false - false",
		"1/pool/here 3 waiting 0 0  true - -180 false - false",
		"1/pool/there 1 dead 9 9 answered 404 true 25 0 false - true",
		`2/pond/here 1 waiting 1 1  true - 0 true {"n": 9007199254740993} false`,
	}, list)

	_, down := migration(t, "00002_webhooks.sql")
	_, err = db.Exec(t.Context(), down)
	require.NoError(t, err)
	require.Equal(t, before, read())
}
