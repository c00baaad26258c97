package queue_test

import (
	"context"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if os.Getenv(name) == "" {
			if err := os.Setenv(name, "test"); err != nil {
				panic(err)
			}
		}
	}
	goleak.VerifyTestMain(testpostgres.Main(testrabbitmq.Main(testsqs.Main(m))))
}

const patience = 2 * time.Minute

func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
}

// enqueue enqueues transactions of a client.
func enqueue(t testing.TB, db *pgxpool.Pool, client string, ids ...uuid.UUID) {
	t.Helper()
	_, err := db.Exec(t.Context(), `WITH stored AS (SELECT id, $2::text AS client FROM unnest($1::uuid[]) AS id), queued AS (`+queue.EnqueueSQL("stored")+`) SELECT`, ids, client)
	require.NoError(t, err)
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	return ids
}

// start runs a queue with a handler until the test ends.
func start(t testing.TB, db *pgxpool.Pool, cfg queue.Config, handle outbox.Handler) *queue.Queue {
	t.Helper()
	q, err := queue.Open(db, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = q.Run(ctx) })
	running.Go(func() { _ = q.Receive(ctx, handle) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		require.NoError(t, q.Close())
	})
	return q
}

// shows waits until a metric has values, by its label.
func shows(t testing.TB, reg *prometheus.Registry, name string, want map[string]float64) {
	t.Helper()
	var got map[string]float64
	assert.Eventually(t, func() bool {
		got = map[string]float64{}
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == name {
				for _, m := range family.GetMetric() {
					got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		return maps.Equal(got, want)
	}, patience, 50*time.Millisecond)
	require.Equal(t, want, got, name)
}

// backends return the URL of an empty queue.
var backends = map[string]func(*testing.T) string{
	"Postgres": func(*testing.T) string { return queue.Postgres },
	"RabbitMQ": func(t *testing.T) string { return testrabbitmq.URL(t) + "?queue=relay-" + uuid.NewString() },
	"SQS": func(t *testing.T) string {
		endpoint := testsqs.Endpoint(t)
		_, address, _ := strings.Cut(testsqs.QueueURL(t, endpoint, "relay-"+uuid.NewString()), "://")
		return "sqs://" + address + "?create=true&endpoint=" + url.QueryEscape(endpoint)
	},
}

// The handler gets each transaction by each backend, and the metrics count what it did.
func TestQueue_EachBackend_HandlesEachTransaction(t *testing.T) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, reg := database(t), prometheus.NewRegistry()
			done, failing, poison := newIDs(10), newIDs(1)[0], newIDs(1)[0]
			handled := make(chan string, 100)
			q := start(t, db, queue.Config{URL: open(t), Concurrency: 4, Registerer: reg}, func(_ context.Context, w outbox.Work) outbox.Result {
				handled <- w.ID
				switch {
				case w.ID == poison.String():
					return outbox.GiveUp("there is no such transaction")
				case w.ID == failing.String() && w.Attempts == 1:
					return outbox.Retry("panicked", 0)
				case w.ID == failing.String() && w.Attempts == 2:
					return outbox.Later(0)
				}
				return outbox.Finished()
			})
			enqueue(t, db, "shop", append(done, failing)...)
			enqueue(t, db, "bank", poison)
			q.Notify()
			times := map[string]int{}
			for range len(done) + 4 {
				select {
				case id := <-handled:
					times[id]++
				case <-time.After(patience):
					require.FailNow(t, "not all are handled", "%v", times)
				}
			}
			require.Len(t, times, len(done)+2)
			require.Equal(t, 3, times[failing.String()])
			shows(t, reg, "rollcall_relay_queue_verdicts_total", map[string]float64{"dead": 1, "done": 11, "failed": 1, "later": 1})
			shows(t, reg, "rollcall_relay_queue_messages", map[string]float64{"dead": 1, "delayed": 0, "handled": 0, "waiting": 0})
			require.NoError(t, q.Health())
			letters, err := deadletter.New(db, queue.Letters())
			require.NoError(t, err)
			list, err := letters.List(t.Context(), deadletter.Filter{Transaction: poison})
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, []any{"queue", poison.String(), poison.String(), "bank", "there is no such transaction"},
				[]any{list[0].Of, list[0].ID, list[0].Transaction, list[0].To, list[0].Reason})
		})
	}
}

// A consumer that loses its relayers stops to receive, and does so again when it has one. Meanwhile the entries are counted, and the
// metrics have nothing about a worker.
func TestQueue_ReceivesAgain_GetsTheLaterTransactions(t *testing.T) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, reg := database(t), prometheus.NewRegistry()
			q, err := queue.Open(db, queue.Config{URL: open(t), Registerer: reg})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			running := make(chan error, 1)
			go func() { running <- q.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				require.NoError(t, <-running)
				require.NoError(t, q.Close())
			})
			ids := newIDs(3)
			for _, id := range ids {
				enqueue(t, db, "shop", id)
				shows(t, reg, "rollcall_relay_queue_messages", map[string]float64{"dead": 0, "delayed": 0, "handled": 0, "waiting": 1})
				receiving, stop := context.WithCancel(ctx)
				received := ""
				require.NoError(t, q.Receive(receiving, func(_ context.Context, w outbox.Work) outbox.Result {
					received = w.ID
					stop()
					return outbox.Finished()
				}))
				stop()
				require.Equal(t, id.String(), received)
				parts := map[string]float64{"dispatcher": 1, "broker": 1}
				if name == "Postgres" {
					parts = map[string]float64{"notifier": 1}
				}
				shows(t, reg, "rollcall_relay_queue_available", parts)
			}
		})
	}
}

func TestQueue_BrokerIsAway_HealthNamesIt(t *testing.T) {
	t.Parallel()
	db, reg := database(t), prometheus.NewRegistry()
	q := start(t, db, queue.Config{URL: "amqp://user:s3cr3t@127.0.0.1:1/", Registerer: reg}, func(context.Context, outbox.Work) outbox.Result {
		return outbox.Finished()
	})
	enqueue(t, db, "shop", newIDs(1)...)
	q.Notify()
	shows(t, reg, "rollcall_relay_queue_available", map[string]float64{"worker": 1, "receiver": 0, "dispatcher": 1, "broker": 0})
	err := q.Health()
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "s3cr3t")
}

// A client with a backlog delays no other one.
func TestQueue_ClientHasABacklog_OtherIsServed(t *testing.T) {
	t.Parallel()
	db := database(t)
	enqueue(t, db, "shop", newIDs(200)...)
	late := newIDs(1)[0]
	enqueue(t, db, "bank", late)
	var mu sync.Mutex
	var order []string
	served := make(chan struct{})
	start(t, db, queue.Config{Concurrency: 2}, func(_ context.Context, w outbox.Work) outbox.Result {
		mu.Lock()
		defer mu.Unlock()
		if order = append(order, w.ID); w.ID == late.String() {
			close(served)
		}
		return outbox.Finished()
	})
	select {
	case <-served:
	case <-time.After(patience):
		require.FailNow(t, "the other client is not served")
	}
	mu.Lock()
	defer mu.Unlock()
	require.Less(t, len(order), 20)
}

// A transaction that kills its consumers each time is given up, and may fail as often again after a replay.
func TestQueue_FailsEachTime_IsGivenUpAndReplayed(t *testing.T) {
	t.Parallel()
	db := database(t)
	id := newIDs(1)[0]
	attempts := make(chan int, 100)
	start(t, db, queue.Config{}, func(_ context.Context, w outbox.Work) outbox.Result {
		attempts <- w.Attempts
		panic("poison")
	})
	enqueue(t, db, "shop", id)
	_, err := db.Exec(t.Context(), `UPDATE relay_queue SET attempts = 18, failures = 18`)
	require.NoError(t, err)
	letters, err := deadletter.New(db, queue.Letters())
	require.NoError(t, err)
	var tries int
	require.Eventually(t, func() bool {
		list, err := letters.List(t.Context(), deadletter.Filter{State: outbox.Dead})
		if err != nil || len(list) == 0 {
			return false
		}
		tries = list[0].Attempts
		return tries >= 20 && list[0].Reason == "the handler panicked: poison"
	}, patience, 50*time.Millisecond)
	require.NoError(t, letters.ReplayOne(t.Context(), id.String()))
	require.Eventually(t, func() bool {
		select {
		case n := <-attempts:
			return n == tries+1
		default:
			return false
		}
	}, patience, time.Millisecond)
}

func TestCheckURL_Valid_OpensItsBackend(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "postgres", "sqs://sqs.eu-west-1.amazonaws.com/123456789012/relay", "amqp://guest:guest@127.0.0.1:5672/",
		"amqps://user:p%40ss@broker.example/vhost?queue=relaying",
	} {
		require.NoError(t, queue.CheckURL(url), url)
		q, err := queue.Open(nil, queue.Config{URL: url})
		require.NoError(t, err, url)
		require.NoError(t, q.Close())
	}
}

func TestCheckURL_Invalid_ReturnsAnErrorWithoutTheURL(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, url := range []string{
		"postgres://user:" + secret + "@host/db", secret, "sqs:" + secret, "sqs://user:" + secret + "@sqs.eu-west-1.amazonaws.com/1/q",
		"amqp:" + secret, "amqp://user:" + secret + "%@host/", "amqp://user:" + secret + "@host:port/", "amqp://u:" + secret + "@host/?queue=",
	} {
		err := queue.CheckURL(url)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), secret)
		_, err = queue.Open(nil, queue.Config{URL: url})
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), secret)
	}
}

// The tests of package outbox have no table without a broker whose dead entries do not block in short runs: it is this one.
func TestTables_Conform(t *testing.T) {
	t.Parallel()
	outboxtest.Run(t, outboxtest.Setup{Table: queue.Table, Migrations: []postgres.Migrations{store.Migrations(), queue.Migrations()}})
}

func TestTable_HasTheTemplate(t *testing.T) {
	t.Parallel()
	outboxtest.RequireTemplate(t, database(t), queue.Table)
}

// The former table's entries are in the new one, and those of transactions whose messages are in a broker.
func TestMigrations_FormerTable_BecomesEntriesAndBack(t *testing.T) {
	t.Parallel()
	all := queue.Migrations()
	content := func(name string) string {
		c, err := fs.ReadFile(all.FS, name)
		require.NoError(t, err)
		return string(c)
	}
	first := postgres.Migrations{FS: fstest.MapFS{"00001_queue.sql": {Data: []byte(content("00001_queue.sql"))}}, Table: all.Table}
	d := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(first))
	db := d.Pool(t)
	ids := newIDs(6)
	_, err := db.Exec(t.Context(), `INSERT INTO relay_transactions (id, client, request_hash, kind, to_address, value_wei, data, gas_limit, speed, digest, webhook, status, open)
		SELECT id, 'shop', '', 'direct', decode(repeat('00', 20), 'hex'), 0, '', 1, 'average', '', false, status, status <> 'confirmed'
		FROM unnest($1::uuid[], ARRAY['queued', 'submitting', 'queued', 'queued', 'confirmed']) AS t (id, status)`, ids[:5])
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `INSERT INTO relay_queue (id, claimed_until, claimant, attempts, failures, reason, due_at, dead_at, enqueued_at) VALUES
		($1, '-infinity', NULL, 0, 0, '', now() - interval '1 h', NULL, now() - interval '2 h'),
		($2, now() + interval '1 min', gen_random_uuid(), 3, 2, 'x', now() + interval '5 min', NULL, now() - interval '3 h'),
		($3, '-infinity', NULL, 20, 20, 'poison', 'infinity', now() - interval '7 h', now() - interval '9 h'),
		($4, '-infinity', NULL, 20, 20, 'gone', 'infinity', now() - interval '6 h', now() - interval '8 h')`, ids[0], ids[1], ids[2], ids[5])
	require.NoError(t, err)
	list := func(sql string) []string {
		rows, err := db.Query(t.Context(), sql)
		require.NoError(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return list
	}
	const former = `SELECT concat_ws(' ', id, claimed_until, attempts, failures, reason, due_at, dead_at, enqueued_at) FROM relay_queue WHERE id <> $1 ORDER BY id`
	formerly := func() []string { return list(strings.ReplaceAll(former, "$1", "'"+ids[3].String()+"'")) }
	before := formerly()
	require.NoError(t, postgres.Migrate(t.Context(), d.URL(), all))
	require.Equal(t, []string{
		ids[0].String() + " shop waiting 0 0  -60 120 -", ids[1].String() + " shop waiting 3 2 x 5 180 -",
		ids[2].String() + " shop dead 20 20 poison 0 540 420", ids[3].String() + " shop waiting 0 0  0 0 -", ids[5].String() + "  dead 20 20 gone 0 480 360",
	}, list(`SELECT concat_ws(' ', id, lane, state, attempts, failures, reason, round(extract(epoch FROM due_at - now()) / 60),
		round(extract(epoch FROM now() - created_at) / 60), coalesce(round(extract(epoch FROM now() - settled_at) / 60)::text, '-')) FROM relay_queue ORDER BY id`))

	_, down, found := strings.Cut(content("00002_outbox.sql"), "-- +goose Down")
	require.True(t, found)
	_, err = db.Exec(t.Context(), down)
	require.NoError(t, err)
	require.Equal(t, before, formerly())
}
