package store

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
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

// The outbox's table has the webhooks of the table that it replaces: due ones with their attempts, dead letters and delivered ones.
func TestMigrations_Webhooks_BecomeEntriesAndBack(t *testing.T) {
	t.Parallel()
	d := testpostgres.New(t, testpostgres.Migrated(until(t, "00007")))
	db := d.Pool(t)
	id := uuid.Must(uuid.NewV7())
	_, err := db.Exec(t.Context(), `INSERT INTO relay_deliveries (target, subject, revision, payload, state, attempts, retry_until, next_at, delivered_at, last_error, created_at)
		VALUES ('shop', $1, 4, '{"n": 9007199254740993}', 'due', 0, NULL, now() + interval '1 h', NULL, '', now() - interval '3 h'),
			('shop', $1, 3, '{"reason": "é"}', 'due', 4, now() + interval '2 h', now() + interval '9 min', NULL, 'answered 500', now() - interval '4 h'),
			('shop', $1, 2, '{}', 'dead_letter', 9, now() - interval '1 h', now(), NULL, 'answered 404', now() - interval '30 h'),
			('shop', $1, 1, '{}', 'delivered', 1, now() + interval '1 h', now(), now() - interval '1 h', '', now() - interval '5 h')`, id)
	require.NoError(t, err)
	list := func(sql string) []string {
		rows, err := db.Query(t.Context(), sql)
		require.NoError(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return list
	}
	const former = `SELECT concat_ws(' ', id, target, subject, revision, payload, state, attempts, delivered_at, last_error, created_at) FROM relay_deliveries ORDER BY id`
	before := list(former)
	require.NoError(t, postgres.Migrate(t.Context(), d.URL(), until(t, "00008")))
	require.Equal(t, []string{
		"shop 1 done 1 1  true - 0 {} true",
		"shop 2 dead 9 9 answered 404 true 25 0 {} true",
		`shop 3 waiting 4 4 answered 500 true 22 9 {"reason": "é"} false`,
		`shop 4 waiting 0 0  true - -180 {"n": 9007199254740993} false`,
	}, list(`SELECT concat_ws(' ', lane, revision, state, attempts, failures, reason, CASE WHEN subject = about || '/shop' THEN 'true' END,
			coalesce(round(extract(epoch FROM now() - failing_since) / 3600)::text, '-'), round(extract(epoch FROM due_at - now()) / 60),
			convert_from(payload, 'UTF8'), CASE WHEN settled_at <= now() THEN 'true' ELSE 'false' END) FROM relay_webhooks ORDER BY seq`))

	// The dead letters stay for the operator.
	letters, err := deadletter.New(db, WebhookLetters())
	require.NoError(t, err)
	n, err := letters.Replay(t.Context(), deadletter.Filter{To: "shop"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = db.Exec(t.Context(), `UPDATE relay_webhooks SET state = 'dead', attempts = 9, reason = 'answered 404' WHERE revision = 2`)
	require.NoError(t, err)

	undo(t, db, "00008_webhooks.sql")
	require.Equal(t, before, list(former))
}

// undo executes the second half of a migration.
func undo(t *testing.T, db *pgxpool.Pool, name string) {
	t.Helper()
	content, err := fs.ReadFile(Migrations().FS, name)
	require.NoError(t, err)
	_, down, found := strings.Cut(string(content), "-- +goose Down")
	require.True(t, found)
	_, err = db.Exec(t.Context(), down)
	require.NoError(t, err)
}

// A webhook whose payload an earlier build has written is sent with the same content.
func TestMigrations_WebhookPayloads_BecomeColumnsAndBack(t *testing.T) {
	t.Parallel()
	d := testpostgres.New(t, testpostgres.Migrated(until(t, "00008")))
	f := &fixture{t: t, db: d.Pool(t)}
	_, err := f.db.Exec(t.Context(), `INSERT INTO relay_webhooks (lane, subject, about, revision, payload) SELECT 'shop', 's', $1, 3, convert_to(p::jsonb::text, 'UTF8')
		FROM unnest($2::text[]) AS p`, uuid.New(), []string{
		`{"transactionId": "order-1", "hash": null, "status": "failed", "reason": "\"é\" ", "revision": 3, "createdAt": "2026-11-12T13:14:15.678Z", "updatedAt": "2026-11-12T13:14:16.000Z"}`,
		`{"transactionId": "order-2", "hash": "0xab` + strings.Repeat("00", 31) + `", "status": "mined", "reason": "", "revision": 3, "createdAt": "2026-11-12T13:14:15.678Z", "updatedAt": "2026-11-12T13:14:16.500Z"}`,
	})
	require.NoError(t, err)
	payloads := func() string {
		var all string
		require.NoError(t, f.db.QueryRow(t.Context(), `SELECT string_agg(convert_from(payload, 'UTF8'), E'\n' ORDER BY seq) FROM relay_webhooks`).Scan(&all))
		return all
	}
	before := payloads()
	require.NoError(t, postgres.Migrate(t.Context(), d.URL(), Migrations()))
	at := time.Date(2026, 11, 12, 13, 14, 15, 678e6, time.UTC)
	first := dispatch.Transaction{ClientID: "order-1", Status: dispatch.Failed, Reason: "\"é\" ", Revision: 3, CreatedAt: at, UpdatedAt: at.Add(322 * time.Millisecond)}
	second := dispatch.Transaction{ClientID: "order-2", Status: dispatch.Mined, Hash: &common.Hash{0xab}, Revision: 3, CreatedAt: at, UpdatedAt: at.Add(822 * time.Millisecond)}
	require.Equal(t, []sent{{EventTransaction, first.View(), nil}, {EventTransaction, second.View(), nil}}, f.webhooks(2))
	undo(t, f.db, "00009_webhook_changes.sql")
	require.Equal(t, before, payloads())
}
