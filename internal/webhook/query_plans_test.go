package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// turnPlans holds the statements of a turn, prepared on a connection that keeps the first plan of each.
type turnPlans struct {
	t    testing.TB
	db   *testDB
	conn *pgxpool.Conn
}

// planned prepares the statements and executes each once, so that their plans fit the current table.
func planned(t testing.TB, db *testDB) *turnPlans {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	p := &turnPlans{t, db, conn}
	p.exec("SET plan_cache_mode = force_generic_plan")
	turn := newTurnStatements(db.owner.Source)
	for name, sql := range map[string]string{
		"claim":     turn.claim,
		"retryNow":  turn.retryNow,
		"delivered": turn.delivered,
		"deleted":   turn.deleted,
		"failed":    turn.failed,
		"returned":  turn.returned,
		"follow":    turn.follow,
	} {
		p.exec("PREPARE " + name + " AS " + sql)
	}
	for _, execute := range []string{
		p.claim(1), p.retryNowPlan(), p.delivered("delivered"), p.delivered("deleted"), p.failed(), p.returned(), p.follow(),
	} {
		p.buffers(execute)
	}
	return p
}

func (p *turnPlans) exec(sql string) {
	p.t.Helper()
	_, err := p.conn.Exec(p.t.Context(), sql)
	require.NoError(p.t, err)
}

// ids returns a literal of deliveries' ids.
func (p *turnPlans) ids(where string) (literal string) {
	p.t.Helper()
	require.NoError(p.t, p.conn.QueryRow(p.t.Context(),
		p.db.sql("SELECT coalesce(array_agg(id), '{}')::text FROM (SELECT id FROM deliveries WHERE "+where+" ORDER BY id LIMIT 100) d")).Scan(&literal))
	return "'" + literal + "'"
}

func (p *turnPlans) claim(n int) string { return p.claimSince(n, "-infinity") }

func (p *turnPlans) claimSince(n int, since string) string {
	return fmt.Sprintf("claim('here', %d, '1 min', '%s', '1 h', '%s'%s)", n, uuid.Nil, since, p.scope())
}

func (p *turnPlans) retryNowPlan() string { return "retryNow('here'" + p.scope() + ")" }

// scope returns the values of the scope as further arguments.
func (p *turnPlans) scope() (arguments string) {
	for _, c := range p.db.owner.Source.Scope {
		arguments += fmt.Sprintf(", '%v'", c.Value)
	}
	return arguments
}

func (p *turnPlans) delivered(how string) string {
	return how + "(" + p.ids("state = 'due'") + ")"
}

func (p *turnPlans) failed() string {
	return fmt.Sprintf(`failed(%s, array_fill(1, ARRAY[100]), array_fill('1 s'::interval, ARRAY[100]), array_fill(false, ARRAY[100]),
		array_fill('no'::text, ARRAY[100]), '%s')`, p.ids("claimant IS NOT NULL"), uuid.Nil)
}

func (p *turnPlans) returned() string {
	return fmt.Sprintf("returned(%s, array_fill(1, ARRAY[100]), '%s')", p.ids("claimant IS NOT NULL"), uuid.Nil)
}

func (p *turnPlans) follow() string {
	var subjects string
	require.NoError(p.t, p.conn.QueryRow(p.t.Context(), "SELECT array_agg(md5(n::text)::uuid)::text FROM generate_series(1, 100) n").Scan(&subjects))
	return "follow('" + subjects + "', array_fill('here'::text, ARRAY[100]), array_fill(1, ARRAY[100]))"
}

// buffers executes a statement in a turn and returns the number of pages that it read, from the cache or not.
func (p *turnPlans) buffers(execute string) int {
	p.t.Helper()
	p.exec("BEGIN")
	p.exec(sqlPlan)
	var text []byte
	require.NoError(p.t, p.conn.QueryRow(p.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "+execute).Scan(&text))
	p.exec("COMMIT")
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(p.t, json.Unmarshal(text, &plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// backlog writes four deliveries of each subject: the first revision is delivered, the others are due.
func backlog(t testing.TB, db *testDB, subjects int) {
	t.Helper()
	const step = 2500 // within the statement timeout of a busy machine
	for first := 1; first <= subjects; first += step {
		db.insert(t, "target, subject, revision, payload, state",
			`'here', md5(n::text)::uuid, revision, '{}', CASE revision WHEN 1 THEN 'delivered' ELSE 'due' END
			FROM generate_series($1::int, $2::int) n, generate_series(1, 4) revision`, first, min(first+step-1, subjects))
	}
}

// Postgres keeps plans that it made while the table was almost empty.
func TestTurn_PlannedOnEmptyTable_ReadsFewPages(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		const (
			perRow = 40 // pages that a statement may read for each row that it changes: it writes to four indexes
			rows   = 100
		)
		for name, prepare := range map[string]string{"unknown": "SELECT 1", "vacuumed": "VACUUM ANALYZE deliveries"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := o.database(t)
				_, err := db.Exec(t.Context(), prepare)
				require.NoError(t, err)
				p := planned(t, db)
				backlog(t, db, 25_000)
				for range 3 {
					require.Less(t, p.buffers(p.claim(rows)), rows*perRow, "claim")
				}
				require.Less(t, p.buffers(p.returned()), rows*perRow, "return")
				require.Less(t, p.buffers(p.claim(rows)), rows*perRow, "claim")
				require.Less(t, p.buffers(p.failed()), rows*perRow, "fail")
				require.Less(t, p.buffers(p.retryNowPlan()), rows*perRow, "retryNow")
				require.Less(t, p.buffers(p.delivered("delivered")), rows*perRow, "deliver")
				require.Less(t, p.buffers(p.follow()), rows*perRow, "follow")
				require.Less(t, p.buffers(p.delivered("deleted")), rows*perRow, "delete")
			})
		}
	})
}

// A target rejects some transactions for hours and accepts the others. A claim must not read all later revisions of the
// rejected ones, nor may these delay the others.
func TestClaim_ManyWaitForLowerRevision_ReadsFewPages(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		p := planned(t, db)
		backlog(t, db, 2000)
		write(t, db, "UPDATE deliveries SET next_at = now() + interval '1 h' WHERE revision = 2") // the lowest due ones
		r := newReceiver(t, nil)
		cfg := settings(r.target("here"))
		cfg.tuning.poll = time.Hour // turns run without notifications
		id := newTx(t)
		change(t, db, id, 1, "here")
		_, stop := run(t, db, cfg)
		require.Equal(t, id.String(), r.waitTaken(1)[0].Payload.ID)
		stop()

		_, err := db.Exec(t.Context(), "VACUUM deliveries") // as autovacuum does
		require.NoError(t, err)
		id = newTx(t)
		change(t, db, id, 1, "here")
		require.Less(t, p.buffers(p.claim(100)), 300)
		require.Equal(t, 1, only(t, db, id, 1).Attempts)
	})
}

// Index entries of delivered rows stay while a transaction is open that may see them, or until a table with a long
// history is vacuumed. Only a sweep reads past them.
func TestClaim_ManyDeliveredBefore_ReadsFewPages(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		db := o.database(t)
		p := planned(t, db)
		db.insert(t, "target, subject, revision, payload, next_at",
			`'here', md5(n::text)::uuid, 1, '{}', now() - interval '1 h' FROM generate_series(1, 20000) n`)
		old, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, old.Rollback(context.Background())) })
		_, err = old.Exec(t.Context(), db.sql("SELECT FROM deliveries LIMIT 1"))
		require.NoError(t, err)
		write(t, db, "UPDATE deliveries SET state = 'delivered'")
		require.Greater(t, p.buffers(p.claim(100)), 500)
		id := newTx(t)
		change(t, db, id, 1, "here")
		require.Less(t, p.buffers(p.claimSince(100, time.Now().Add(-time.Minute).Format(time.RFC3339Nano))), 200)
		require.Equal(t, 1, only(t, db, id, 1).Attempts)
	})
}

// A deferred revision does not wait for its time once the lower one is delivered or dead.
func TestClaim_LowerRevisionEnds_DeferredIsDue(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		for name, verdict := range map[string]verdict{"delivered": delivered, "dead": permanent} {
			for _, retention := range []time.Duration{time.Hour, -1} {
				t.Run(fmt.Sprint(name, retention), func(t *testing.T) {
					t.Parallel()
					db := o.database(t)
					d := claimer(t, db, func(c *Config) { c.Retention = retention })
					id := newTx(t)
					change(t, db, id, 1, "here")
					claims := claimAll(t, d)
					change(t, db, id, 2, "here")
					change(t, db, id, 3, "here")
					require.Empty(t, claimAll(t, d)) // defers the second and the third
					second := only(t, db, id, 2)
					require.True(t, second.NextAt.After(second.CreatedAt.Time))
					write(t, db, "UPDATE deliveries SET next_at = now() + interval '1 h' WHERE target = 'here' AND revision > 1")
					claims = claimAll(t, d, deliveryResult{claim: claims[0], verdict: verdict})
					require.Len(t, claims, 1)
					require.Equal(t, 2, claims[0].revision)
					claims = claimAll(t, d, deliveryResult{claim: claims[0], verdict: verdict})
					require.Len(t, claims, 1)
					require.Equal(t, 3, claims[0].revision)
					// A failed delivery that stays due keeps the later ones deferred.
					change(t, db, id, 4, "here")
					require.Empty(t, claimAll(t, d, deliveryResult{claim: claims[0], verdict: failed, delay: time.Hour, reason: "no"}))
					require.WithinDuration(t, time.Now().Add(time.Hour), only(t, db, id, 4).NextAt.Time, time.Minute)
				})
			}
		}
	})
}
