package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// cpuReader returns processor time used so far.
type cpuReader func() (time.Duration, error)

// ownCPU returns the processor time of this program.
func ownCPU() (time.Duration, error) {
	var r syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

// processorTime starts counting the use of each reader; the returned function ends that, with a sample for each of n
// operations.
func (s *suite) processorTime(readers map[string]cpuReader) (end func(row string, n int) error, err error) {
	read := func() (map[string]time.Duration, error) {
		used := make(map[string]time.Duration, len(readers))
		var errs []error
		for who, reader := range readers {
			now, err := reader()
			used[who], errs = now, append(errs, err)
		}
		return used, errors.Join(errs...)
	}
	before, err := read()
	return func(row string, n int) error {
		after, err := read()
		if err != nil {
			return err
		}
		for who := range readers {
			s.sample(cpuRow(row, who), float64((after[who]-before[who]).Microseconds())/float64(n), "µs")
		}
		return nil
	}, err
}

// tellStatements prints the statements that took the server most of its time, if it counts them, and how tables were
// written.
func (r *relayed) tellStatements(ctx context.Context) error {
	const name = "relay"
	return r.db.do(ctx, r.db.server.DatabaseURL(name), func(conn *pgx.Conn) error {
		var counted bool
		err := conn.QueryRow(ctx, "SELECT current_setting('shared_preload_libraries') = 'pg_stat_statements'").Scan(&counted)
		if err != nil || !counted {
			return err
		}
		if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `SELECT 100 * total_exec_time / sum(total_exec_time) OVER (), calls, rows, mean_exec_time,
				left(regexp_replace(query, '\s+', ' ', 'g'), 100)
			FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid WHERE datname = $1 AND calls > 1 ORDER BY total_exec_time DESC LIMIT 15`, name)
		if err != nil {
			return err
		}
		var share, mean float64
		var calls, count int64
		var query string
		if _, err = pgx.ForEachRow(rows, []any{&share, &calls, &count, &mean, &query}, func() error {
			progress("%5.1f %%  %7d calls  %8d rows  %8.3f ms each  %s", share, calls, count, mean, query)
			return nil
		}); err != nil {
			return err
		}
		// A hot update writes no index.
		rows, err = conn.Query(ctx, `SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables ORDER BY n_tup_upd DESC LIMIT 4`)
		if err != nil {
			return err
		}
		var table string
		var inserted, updated, hot int64
		_, err = pgx.ForEachRow(rows, []any{&table, &inserted, &updated, &hot}, func() error {
			progress("%s: %d inserted, %d updated, %d of them hot", table, inserted, updated, hot)
			return nil
		})
		return err
	})
}
