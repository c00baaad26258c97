package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// Postgres keeps plans that it made while the tables were empty. Batches must read their own transactions alone, with such
// plans and with those for many transactions.
func TestBatches_ManyTransactions_ReadTheirOwn(t *testing.T) {
	const many, size = 20_000, 20
	t.Parallel()
	config := testpostgres.New(t, testpostgres.Migrated(Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t).Config()
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	f := &fixture{t: t, db: db, Store: New(db, Config{Enqueue: queue.EnqueueSQL})}
	exec := func(sql string, args ...any) {
		_, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	// read returns how many rows and index entries of the transactions and their late acceptances a batch reads.
	read := func() (n int) {
		exec("SELECT pg_stat_force_next_flush()")
		return f.count(`SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('relay_transactions', 'relay_late_acceptances'))
			+ (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('relay_transactions', 'relay_late_acceptances'))`)
	}
	batches := func() map[string]int {
		var starts []Start
		var acceptances []Acceptance
		var reports, early []dispatch.Update
		for range size {
			tx := f.accept(transaction("shop"))
			starts = append(starts, Start{ID: tx.ID, Holder: uuid.New(), Route: route, Lease: time.Minute})
			by := route
			by.RelayerTx = uuid.NewString()
			acceptances = append(acceptances, Acceptance{ID: tx.ID, Attempt: 1, Route: by})
			reports = append(reports, dispatch.Update{RelayerTx: by.RelayerTx, Status: dispatch.Mined, Revision: 2, At: time.Now()})
			early = append(early, dispatch.Update{RelayerTx: uuid.NewString(), Status: dispatch.Mined, Revision: 2, At: time.Now()})
		}
		used := map[string]int{}
		measure := func(name string, do func() error) {
			before := read()
			require.NoError(t, do())
			used[name] = read() - before
		}
		measure("accept", func() error {
			named := make([]*dispatch.Transaction, size)
			for i := range named {
				named[i] = names{uuid.Must(uuid.NewV7()).String(), uuid.NewString()}.request("shop", false)
			}
			_, err := f.Accept(t.Context(), named)
			return err
		})
		measure("begin", func() error {
			begun, err := f.Begin(t.Context(), starts)
			for _, b := range begun {
				require.Equal(t, Fresh, b.State)
			}
			return err
		})
		measure("owners", func() error {
			ids := make([]string, size)
			for i := range ids {
				ids[i] = acceptances[i].Route.RelayerTx
			}
			_, err := f.Owners(t.Context(), ids)
			return err
		})
		measure("accepted", func() error { return f.Accepted(t.Context(), acceptances) })
		measure("apply", func() error {
			applied, err := f.Apply(t.Context(), reports)
			for _, a := range applied {
				require.True(t, a.Changed)
			}
			return err
		})
		measure("early reports", func() error { _, err := f.Apply(t.Context(), early); return err })
		measure("match reports", func() error { _, err := f.MatchReports(t.Context()); return err })
		return used
	}
	batches() // plans them
	exec(fmt.Sprintf(`INSERT INTO relay_transactions (id, client, request_hash, kind, to_address, value_wei, data, gas_limit, speed, digest, webhook,
			status, relayer_tx, outstanding)
		SELECT gen_random_uuid(), 'shop', '', 'direct', decode(repeat('00', 20), 'hex'), 0, '', 1, '', '', false, 'submitted', 'tx-' || n, true
		FROM generate_series(1, %d) n`, many))
	exec(`INSERT INTO relay_late_acceptances (tx, pool, relayer_tx, relayer, relayer_url, relayer_id, scope, settled)
		SELECT id, 'foreign', 'late-' || id, 'foreign', '', '', '', true FROM relay_transactions`)
	for _, planned := range []string{"on an empty table", "now"} {
		for name, n := range batches() {
			t.Log(name, n)
			require.Less(t, n, many/10, "%s, planned %s", name, planned)
		}
		exec("ANALYZE")
	}
}
