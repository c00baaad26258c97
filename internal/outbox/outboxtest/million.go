package outboxtest

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// pages records how many pages each statement reads, from the cache or not. The extension auto_explain reports it.
type pages struct {
	mu   sync.Mutex
	read map[string][]int // by the name of a statement
}

// statements are parts of the engine's statements that identify them.
var statements = map[string]string{
	"WITH RECURSIVE found": "discover", "claimed AS (": "claim", "marked AS (": "send", "WITH RECURSIVE lanes": "count",
	"AND NOT again": "done", "CASE WHEN again": "done", "AS f (id, claim": "settle", "AS s (subject)": "promote", "SET claimed_until = now() + $3": "extend",
}

func (p *pages) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	_, text, found := strings.Cut(n.Message, "plan:")
	if !found {
		return
	}
	var plan struct {
		Query string `json:"Query Text"`
		Plan  struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if json.Unmarshal([]byte(text), &plan) != nil {
		return
	}
	for part, name := range statements {
		if strings.Contains(plan.Query, part) {
			p.mu.Lock()
			p.read[name] = append(p.read[name], plan.Plan.Hit+plan.Plan.Read)
			p.mu.Unlock()
			return
		}
	}
}

// forget removes what was recorded.
func (p *pages) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.read)
}

// highest returns the most pages that a statement read, and how often it was executed.
func (p *pages) highest(name string) (most, times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.read[name] {
		most = max(most, n)
	}
	return most, len(p.read[name])
}

// explained returns a pool whose statements keep the first plan that Postgres makes, and report the pages that they read.
func (e *env) explained() (*pgxpool.Pool, *pages) {
	e.t.Helper()
	p := &pages{read: map[string][]int{}}
	cfg := e.db.Config()
	cfg.MaxConns = 4
	cfg.ConnConfig.OnNotice = p.notice
	connected := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on;
			SET auto_explain.log_timing = off; SET auto_explain.log_format = json; SET client_min_messages = log; SET plan_cache_mode = force_generic_plan`); err != nil {
			return err
		}
		return connected(ctx, conn)
	}
	db, err := pgxpool.NewWithConfig(e.t.Context(), cfg)
	require.NoError(e.t, err)
	e.t.Cleanup(db.Close)
	return db, p
}

// million plans all statements on an empty table, and inserts a million entries of several kinds. Then no statement may read more pages
// than the entries that it changes need. A count reads about as many pages as with 20,000 entries.
func million(e *env) {
	rows := 1_000_000
	if testing.Short() {
		rows = 100_000
	}
	const (
		perRow = 40   // pages for each changed entry: it writes to its row and to six indexes
		fixed  = 3000 // lanes
	)
	e.exec(`ALTER TABLE $name SET (autovacuum_enabled = false)`) // it would replace the plans
	db, p := e.explained()
	box := e.open(db)
	r := newRecord()
	var running sync.Map
	_, stop := e.workOn(box, outbox.Config{Concurrency: 4, Lease: time.Second, Handle: e.plays(r, &running)})
	var end func()
	if e.transport != nil {
		end = e.dispatch(box)
	}
	for n := range 4 { // each statement on each connection
		e.insert(scenario(n)...)
		e.check(r, n)
	}
	_, err := box.Counts(e.t.Context(), "")
	require.NoError(e.t, err)
	stop()
	if end != nil {
		end()
	}

	const (
		few  = 20_000 // as many as a count reads of each lane and kind, and more
		step = 50_000 // within the statement timeout of a busy machine
	)
	insert := func(first, end int) {
		e.t.Helper()
		e.exec(`INSERT INTO $name (id, lane, partition, subject, due_at, state, settled_at)
			SELECT 'row/' || n, 'lane' || n % 5, n % 3, CASE WHEN n % 4 = 0 THEN 'subject' || n % 1000 END,
				CASE WHEN n % 10 = 9 THEN now() + interval '1 h' ELSE now() - interval '1 min' END, CASE WHEN n % 20 = 10 THEN 'dead' ELSE 'waiting' END, now()
			FROM generate_series($1::int, $2::int) n`, first, end-1)
	}
	counted := func() (list []outbox.Count, pages int) {
		e.t.Helper()
		p.forget()
		list, err := box.Counts(e.t.Context(), "")
		require.NoError(e.t, err)
		pages, times := p.highest("count")
		require.Equal(e.t, 1, times)
		return list, pages
	}
	insert(0, few)
	first, pagesOfFew := counted()
	for n := few; n < rows; n += step {
		insert(n, min(n+step, rows))
	}
	all, pagesOfAll := counted()
	e.t.Logf("count: %d pages with %d entries, %d with %d", pagesOfFew, few, pagesOfAll, rows)
	require.Len(e.t, all, 5)
	require.Equal(e.t, outbox.CountLimit, first[1].Waiting)
	require.Equal(e.t, outbox.CountLimit, all[1].Waiting)
	require.Equal(e.t, outbox.CountLimit, all[4].Delayed)
	require.Less(e.t, pagesOfAll, 2*pagesOfFew)
	p.forget()
	// Entries claimed at the same time as all others wait: a worker, and one that handles them for longer than its lease.
	worked := newRecord()
	_, stop = e.workOn(box, outbox.Config{Concurrency: 8, Lease: time.Second, Handle: func(ctx context.Context, w outbox.Work) outbox.Result {
		switch n := worked.add(w); {
		case n == 1 && w.ID[len(w.ID)-1] == '1':
			return outbox.Retry("why", 0)
		case len(worked.all())%500 == 0:
			select { // long enough for an extension
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
		return outbox.Finished()
	}})
	if e.transport != nil {
		end = e.dispatch(box)
	}
	e.eventually(func() bool { return len(worked.all()) >= 3000 }, "some works")
	stop()
	if end != nil {
		end()
	}

	used := []string{"discover", "claim", "done", "settle", "extend", "promote"}
	if e.transport != nil {
		used = append(used, "send")
	}
	for _, name := range used {
		most, times := p.highest(name)
		e.t.Logf("%s: %d times, at most %d pages", name, times, most)
		require.Positive(e.t, times, name)
		limit := 256*perRow + fixed
		switch name {
		case "discover":
			limit = 400
		case "claim", "send": // and as many entries behind those that they pick
			limit += 256 * perRow
		}
		require.Less(e.t, most, limit, name)
	}
}
