package outboxtest

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// patience limits waits for events that a healthy system causes within seconds.
const patience = 3 * time.Minute

// shortLease is for tests that wait for its end.
const shortLease = 2 * time.Second

// resendAfter is when the dispatchers of most tests send again.
const resendAfter = 700 * time.Millisecond

// Setup is a kind of table, and perhaps a broker. Each test gets a database of its own with the table.
type Setup struct {
	Table outbox.Table
	// Migrations create the table. Default: Table.Schema.
	Migrations []postgres.Migrations
	// Transport returns a transport for an empty queue; the test closes what it needs with t.Cleanup. Default: the workers claim
	// from the table.
	Transport func(t testing.TB) outbox.Transport
}

// env is an empty table and its helpers.
type env struct {
	t   *testing.T
	url string
	db  *pgxpool.Pool
	box *outbox.Outbox
	Setup
	transport outbox.Transport
}

func (s Setup) env(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, Setup: s}
	var migrated []testpostgres.Option
	for _, m := range s.Migrations {
		migrated = append(migrated, testpostgres.Migrated(m))
	}
	e.url = testpostgres.New(t, migrated...).URL()
	e.db = e.pool(e.url)
	if s.Migrations == nil {
		e.exec(s.Table.Schema())
	}
	e.box = e.open(e.db)
	if s.Transport != nil {
		e.transport = s.Transport(t)
	}
	return e
}

func (e *env) pool(url string) *pgxpool.Pool {
	e.t.Helper()
	db, err := postgres.Open(e.t.Context(), postgres.Config{URL: url, MaxConns: 12, ApplicationName: "outboxtest"})
	require.NoError(e.t, err)
	e.t.Cleanup(db.Close)
	return db
}

func (e *env) open(db *pgxpool.Pool) *outbox.Outbox {
	e.t.Helper()
	box, err := outbox.New(db, e.Table)
	require.NoError(e.t, err)
	return box
}

// named returns SQL with the table's name in the place of $name.
func (e *env) named(sql string) string { return strings.ReplaceAll(sql, "$name", e.Table.Name) }

func (e *env) exec(sql string, args ...any) {
	e.t.Helper()
	_, err := e.db.Exec(e.t.Context(), e.named(sql), args...)
	require.NoError(e.t, err)
}

// number returns the result of a query for a number.
func (e *env) number(sql string, args ...any) (n int) {
	e.t.Helper()
	require.NoError(e.t, e.db.QueryRow(e.t.Context(), e.named(sql), args...).Scan(&n))
	return n
}

// insert commits entries. It sends no NOTIFY.
func (e *env) insert(entries ...outbox.Entry) {
	e.t.Helper()
	require.NoError(e.t, e.box.Insert(e.t.Context(), e.db, entries...))
}

// entries returns n entries of a lane, without subject.
func entries(lane string, n int) []outbox.Entry {
	list := make([]outbox.Entry, n)
	for i := range list {
		list[i] = outbox.Entry{ID: fmt.Sprintf("%s-%d", lane, i), Lane: lane}
	}
	return list
}

// ids returns the ids of entries.
func ids(list []outbox.Entry) []string {
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.ID
	}
	return ids
}

// config completes a Config for a test.
func (e *env) config(cfg outbox.Config) outbox.Config {
	cfg.Transport = e.transport
	cfg.Logger = slog.New(slog.NewTextHandler(testWriter{e.t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return cfg
}

// work runs a worker, and a dispatcher if there is a broker, until the test ends or stop is called.
func (e *env) work(cfg outbox.Config) (w *outbox.Worker, stop func()) {
	e.t.Helper()
	if e.transport != nil {
		e.dispatch(e.box)
	}
	return e.workOn(e.box, cfg)
}

// workOn runs a worker of an Outbox, as another process would.
func (e *env) workOn(box *outbox.Outbox, cfg outbox.Config) (w *outbox.Worker, stop func()) {
	e.t.Helper()
	w, err := box.NewWorker(e.config(cfg))
	require.NoError(e.t, err)
	return w, e.background(w.Run)
}

// dispatch runs a dispatcher until the test ends or stop is called.
func (e *env) dispatch(box *outbox.Outbox) (stop func()) {
	e.t.Helper()
	cfg := e.config(outbox.Config{})
	d := box.NewDispatcher(outbox.DispatcherConfig{Transport: e.transport, ResendAfter: resendAfter, Logger: cfg.Logger})
	return e.background(d.Run)
}

func (e *env) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(e.t, err)
		case <-time.After(patience):
			e.t.Error("it did not stop")
		}
	})
	e.t.Cleanup(stop)
	return stop
}

// record records what handlers work on.
type record struct {
	mu      sync.Mutex
	works   map[string][]outbox.Work
	order   []string      // ids
	changed chan struct{} // closed and replaced with each work
}

func newRecord() *record {
	return &record{works: map[string][]outbox.Work{}, changed: make(chan struct{})}
}

// add records a work and returns how many its entry has.
func (r *record) add(w outbox.Work) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.works[w.ID] = append(r.works[w.ID], w)
	r.order = append(r.order, w.ID)
	close(r.changed)
	r.changed = make(chan struct{})
	return len(r.works[w.ID])
}

// of returns the works of an entry.
func (r *record) of(id string) []outbox.Work {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]outbox.Work(nil), r.works[id]...)
}

// all returns the ids in the order of their works.
func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.order...)
}

// await waits until each entry has at least n works.
func (r *record) await(t testing.TB, n int, ids ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		missing := 0
		for _, id := range ids {
			if len(r.works[id]) < n {
				missing++
			}
		}
		changed := r.changed
		r.mu.Unlock()
		if missing == 0 {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(t, "not worked on", "%d of %d entries lack %d works", missing, len(ids), n)
		}
	}
}

// finish records each entry and finishes it.
func (r *record) finish(_ context.Context, w outbox.Work) outbox.Result {
	r.add(w)
	return outbox.Finished()
}

// eventually waits for a condition that offers no signal.
func (e *env) eventually(condition func() bool, message string) {
	e.t.Helper()
	require.Eventually(e.t, condition, patience, 20*time.Millisecond, message)
}

// settled waits until the table has n entries that are neither done nor dead.
func (e *env) settled(n int) {
	e.t.Helper()
	e.eventually(func() bool { return e.number(`SELECT count(*) FROM $name WHERE state = 'waiting'`) == n }, fmt.Sprintf("%d entries left", n))
}

// testWriter writes log lines to the test's log until the test ends.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		for lines := bufio.NewScanner(strings.NewReader(string(p))); lines.Scan(); {
			w.t.Log(lines.Text())
		}
	}
	return len(p), nil
}
