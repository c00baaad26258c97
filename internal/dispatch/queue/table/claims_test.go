package table

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).Pool(t)
}

func exec(t testing.TB, db queuetest.Executor, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func enqueue(t testing.TB, db *pgxpool.Pool, n int) []uuid.UUID {
	t.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	require.NoError(t, queuetest.Enqueue(t.Context(), db, ids...))
	return ids
}

func take(t testing.TB, c *claimant, n int, results ...result) []*claim {
	t.Helper()
	claims, err := c.turn(t.Context(), results, nil, n)
	require.NoError(t, err)
	return claims
}

func TestTurn_LateResult_ChangesNothing(t *testing.T) {
	t.Parallel()
	db := database(t)
	ids := enqueue(t, db, 4)
	slow, other := newClaimant(db, time.Millisecond), newClaimant(db, time.Hour)
	late := take(t, slow, 10)
	require.Len(t, late, 4)
	var claims []*claim
	require.Eventually(t, func() bool { // the claims end
		claims = append(claims, take(t, other, 10)...)
		return len(claims) == 4
	}, 2*time.Minute, time.Millisecond)
	extended, err := slow.turn(t.Context(), []result{
		{claim: late[0], outcome: done}, {claim: late[1], outcome: dead, reason: "late"},
		{claim: late[2], outcome: later}, {claim: late[3], outcome: returned},
	}, late, 10)
	require.NoError(t, err)
	require.Empty(t, extended)
	for _, c := range claims {
		require.Equal(t, 2, c.Attempts)
		require.Equal(t, 2, c.failures, "an expired claim counts")
	}
	var n int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM relay_queue WHERE id = ANY($1) AND claimant = $2 AND attempts = 2
		AND failures = 2 AND claimed_until > now() + interval '50 min' AND dead_at IS NULL AND due_at <= now()`, ids, other.id).Scan(&n))
	require.Equal(t, 4, n)

	// The same process may claim an entry again after its claim ended. Its first result is late, too.
	again := *claims[0]
	again.Attempts--
	take(t, other, 0, result{claim: &again, outcome: done})
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM relay_queue`).Scan(&n))
	require.Equal(t, 4, n)
}

func TestTurn_Results_CountAsDocumented(t *testing.T) {
	t.Parallel()
	db := database(t)
	c := newClaimant(db, time.Hour)
	enqueue(t, db, 600) // more than one statement changes
	claims := take(t, c, 600)
	require.Len(t, claims, 600)
	var results []result
	for i, one := range claims {
		results = append(results, result{claim: one, outcome: outcome(i % 5), delay: time.Hour, reason: "why"})
	}
	take(t, c, 0, results...)
	rows, err := db.Query(t.Context(), `SELECT format('%s attempts, %s failures, %s, %s, %s, %s, %s', attempts, failures, reason,
			CASE WHEN due_at = 'infinity' THEN 'never' WHEN due_at > now() + interval '50 min' THEN 'in an hour' ELSE 'now' END,
			dead_at IS NOT NULL, claimed_until, claimant) AS state, count(*) FROM relay_queue GROUP BY state`)
	require.NoError(t, err)
	defer rows.Close()
	states := map[string]int{}
	for rows.Next() {
		var state string
		var n int
		require.NoError(t, rows.Scan(&state, &n))
		states[state] = n
	}
	require.NoError(t, rows.Err())
	require.Equal(t, map[string]int{ // the done ones are gone
		"1 attempts, 0 failures, , in an hour, f, -infinity, ":    120,
		"1 attempts, 1 failures, why, in an hour, f, -infinity, ": 120,
		"1 attempts, 1 failures, why, never, t, -infinity, ":      120,
		"0 attempts, 0 failures, , now, f, -infinity, ":           120,
	}, states)
}

// An entry of a transaction that commits late is due before the newest claimed one.
func TestTurn_EntryCommittedLate_Claimed(t *testing.T) {
	t.Parallel()
	db := database(t)
	c := newClaimant(db, time.Hour)
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	id := uuid.New()
	require.NoError(t, queuetest.Enqueue(t.Context(), tx, id))
	exec(t, tx, `UPDATE relay_queue SET due_at = now() - interval '1 h' WHERE id = $1`, id)
	enqueue(t, db, 3)
	require.Len(t, take(t, c, 10), 3)
	require.Empty(t, take(t, c, 10))
	require.NoError(t, tx.Commit(t.Context()))
	require.Eventually(t, func() bool {
		claims := take(t, c, 10)
		return len(claims) == 1 && claims[0].ID == id
	}, 2*time.Minute, 10*time.Millisecond)
}

func TestTurn_ConcurrentClaimants_ClaimEachEntryOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	ids := enqueue(t, db, 1000)
	claimed := make(chan uuid.UUID, 2*len(ids))
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			c := newClaimant(db, time.Hour)
			errs <- func() error {
				for {
					claims, err := c.turn(t.Context(), nil, nil, 7)
					if err != nil || len(claims) == 0 {
						return err
					}
					for _, one := range claims {
						claimed <- one.ID
					}
				}
			}()
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	// Claimants that met others' locks may leave entries.
	for _, one := range take(t, newClaimant(db, time.Hour), 1000) {
		claimed <- one.ID
	}
	close(claimed)
	var got []uuid.UUID
	for id := range claimed {
		got = append(got, id)
	}
	require.ElementsMatch(t, ids, got)
}

// plans holds the statements of a turn, prepared on a connection that keeps the first plan of each.
type plans struct {
	t    testing.TB
	conn *pgxpool.Conn
}

func planned(t testing.TB, db *pgxpool.Pool) *plans {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	exec(t, conn, "SET plan_cache_mode = force_generic_plan")
	for name, sql := range map[string]string{"claim": sqlClaim, "done": sqlDone, "extend": sqlExtend, "settle": sqlSettle} {
		exec(t, conn, "PREPARE "+name+" AS "+sql)
	}
	return &plans{t, conn}
}

// pages executes a statement in a turn and returns the number of pages that it read, from the cache or not.
func (p *plans) pages(execute string) int {
	p.t.Helper()
	exec(p.t, p.conn, "BEGIN")
	exec(p.t, p.conn, sqlPlan)
	var text []byte
	require.NoError(p.t, p.conn.QueryRow(p.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "+execute).Scan(&text))
	exec(p.t, p.conn, "COMMIT")
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(p.t, json.Unmarshal(text, &plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

func (p *plans) claim(me uuid.UUID, since string) int {
	return p.pages(fmt.Sprintf("claim(50, '1 h', '%s', '%s')", me, since))
}

// all executes the other statements for the entries that me has claimed.
func (p *plans) all(me uuid.UUID) map[string]int {
	p.t.Helper()
	var ids []uuid.UUID
	var attempts []int
	require.NoError(p.t, p.conn.QueryRow(p.t.Context(), `SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(attempts), '{}')
		FROM (SELECT id, attempts FROM relay_queue WHERE claimant = $1 ORDER BY due_at LIMIT 50) AS mine`, me).Scan(&ids, &attempts))
	var names, numbers []string
	for i, id := range ids {
		names, numbers = append(names, id.String()), append(numbers, fmt.Sprint(attempts[i]))
	}
	keys := fmt.Sprintf("'{%s}', '{%s}', '%s'", strings.Join(names, ","), strings.Join(numbers, ","), me)
	settle := func(n int) string {
		return fmt.Sprintf(`settle(%s, array_fill(0, ARRAY[%d]), array_fill(1, ARRAY[%[2]d]), array_fill('1 h'::interval, ARRAY[%[2]d]),
			array_fill(false, ARRAY[%[2]d]), array_fill('no'::text, ARRAY[%[2]d]))`, keys, n)
	}
	return map[string]int{
		"extend": p.pages("extend(" + keys + ", '1 h')"),
		"done":   p.pages("done("+keys+")") / 2, // heap and indexes
		"settle": p.pages(settle(max(len(ids), 1))),
	}
}

// Postgres keeps plans that it made while the table was empty.
func TestTurn_PlannedOnAnEmptyTable_ReadsLittleOfALargeBacklog(t *testing.T) {
	t.Parallel()
	db := database(t)
	p := planned(t, db)
	me := uuid.New()
	p.claim(me, "-infinity")
	p.all(me)

	insert := func(due, dead string) {
		exec(t, p.conn, `INSERT INTO relay_queue (id, due_at, dead_at) SELECT gen_random_uuid(), `+due+`, `+dead+` FROM generate_series(1, 25000) n`)
	}
	exec(t, p.conn, "SET statement_timeout = 0") // a busy machine takes a while
	insert("now() - n * interval '1 ms'", "NULL")
	insert("now() + interval '1 h' + n * interval '1 ms'", "NULL")
	insert("'infinity'", "now()")
	for round := range 3 {
		claim := p.claim(me, "-infinity")
		t.Log(claim)
		require.Less(t, claim, 2000, "round %d", round)
		for name, pages := range p.all(me) {
			t.Log(name, pages)
			require.Less(t, pages, 2000, "%s, round %d", name, round)
		}
	}
}

// Index entries of deleted rows stay until they are vacuumed, or longer because of an old transaction. Only a sweep reads
// past them.
func TestTurn_ManyDeletedEntries_ReadByTheSweepAlone(t *testing.T) {
	t.Parallel()
	db := database(t)
	p := planned(t, db)
	exec(t, db, `INSERT INTO relay_queue (id, due_at) SELECT gen_random_uuid(), now() - interval '1 h' FROM generate_series(1, 20000)`)
	old, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, old.Rollback(context.Background())) })
	exec(t, old, "SELECT FROM relay_queue LIMIT 1")
	exec(t, db, "DELETE FROM relay_queue")
	me := uuid.New()
	require.Greater(t, p.claim(me, "-infinity"), 500)
	ids := enqueue(t, db, 1)
	require.Less(t, p.claim(me, time.Now().Add(-time.Minute).Format(time.RFC3339Nano)), 100)
	var claimed uuid.UUID
	require.NoError(t, db.QueryRow(t.Context(), "SELECT id FROM relay_queue WHERE claimant = $1", me).Scan(&claimed))
	require.Equal(t, ids[0], claimed)

	// A claimant sweeps once, and then not for a second or more.
	c := newClaimant(db, time.Hour)
	take(t, c, 10)
	require.WithinRange(t, c.newest, time.Now().Add(-time.Minute), time.Now().Add(time.Minute))
	require.True(t, c.sweepAt.After(time.Now().Add(-time.Minute)))
}
