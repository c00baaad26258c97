package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Table names a table that holds leases, and its columns. The names become part of statements, so they must be constants.
type Table struct {
	Name   string
	Key    []string // the columns that select one row
	Holder string   // text NOT NULL, '' while the lease is free
	Until  string   // timestamptz NOT NULL, at first '-infinity'
	Epoch  string   // bigint NOT NULL, at first 0
	// Advisory is the first key of an advisory lock that an election takes in its transaction, for programs that know such a lock only.
	// The second one is the row's first key, an integer, modulo 2^31. While another transaction has the lock, no process is elected.
	// Default 0: none.
	Advisory int32
}

// Row is a lease. It is safe for concurrent use, by any number of processes.
type Row struct {
	db   *pgxpool.Pool
	name string
	key  []any

	elect, renew, release, read string
}

// Row returns the lease of a row. key has a value for each column of Table.Key. The caller creates the row; while it is missing,
// no process is elected.
func (t Table) Row(db *pgxpool.Pool, key ...any) Row {
	where := func(from int) string {
		var columns []string
		for i, column := range t.Key {
			columns = append(columns, fmt.Sprintf("%s = $%d", column, from+i))
		}
		return strings.Join(columns, " AND ")
	}
	advisory := ""
	if t.Advisory != 0 {
		advisory = fmt.Sprintf(" AND pg_try_advisory_xact_lock(%d, (%s %% 2147483648)::int)", t.Advisory, t.Key[0])
	}
	return Row{
		db: db, name: fmt.Sprintf("%s %v", t.Name, key), key: key,
		elect: fmt.Sprintf(`UPDATE %[1]s SET %[2]s = $1, %[3]s = now() + $2::interval, %[4]s = %[4]s + 1
			WHERE (%[2]s = $1 AND $3::interval = '0' OR %[3]s < now() - $3::interval) AND %[5]s%[6]s RETURNING %[4]s`,
			t.Name, t.Holder, t.Until, t.Epoch, where(4), advisory),
		renew: fmt.Sprintf(`UPDATE %s SET %s = now() + $3::interval WHERE %s = $1 AND %s = $2 AND %s`,
			t.Name, t.Until, t.Holder, t.Epoch, where(4)),
		release: fmt.Sprintf(`UPDATE %[1]s SET %[2]s = '', %[3]s = now() WHERE %[2]s = $1 AND %[4]s`,
			t.Name, t.Holder, t.Until, where(2)),
		read: fmt.Sprintf(`SELECT %s, %s > now() FROM %s WHERE %s`, t.Epoch, t.Until, t.Name, where(1)),
	}
}

// Elect gives the lease to holder for term, and returns the epoch, which grows with each election. It reports whether holder
// was elected: the lease is free, has expired, or is holder's. If free is above 0, holder is elected only if the lease has been
// free for so long.
//
// If it returns an error, holder may have been elected.
func (r Row) Elect(ctx context.Context, holder string, term, free time.Duration) (epoch int64, elected bool, err error) {
	err = r.db.QueryRow(ctx, r.elect, append([]any{holder, term, free}, r.key...)...).Scan(&epoch)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("take the lease %s: %w", r.name, err)
	}
	return epoch, true, nil
}

// Renew extends the lease of an epoch to term from now. It reports whether the lease is still that of holder's election: it was
// not released, and no other election took place.
//
// If it returns an error, the lease may have been extended.
func (r Row) Renew(ctx context.Context, holder string, epoch int64, term time.Duration) (renewed bool, err error) {
	tag, err := r.db.Exec(ctx, r.renew, append([]any{holder, epoch, term}, r.key...)...)
	if err != nil {
		return false, fmt.Errorf("renew the lease %s: %w", r.name, err)
	}
	return tag.RowsAffected() > 0, nil
}

// Release ends holder's lease, so that another process can be elected at once. It changes nothing if the lease is not holder's.
func (r Row) Release(ctx context.Context, holder string) error {
	if _, err := r.db.Exec(ctx, r.release, append([]any{holder}, r.key...)...); err != nil {
		return fmt.Errorf("release the lease %s: %w", r.name, err)
	}
	return nil
}

// Current returns the epoch of the last election, 0 if there was none, and reports whether a process has the lease now.
func (r Row) Current(ctx context.Context) (epoch int64, held bool, err error) {
	err = r.db.QueryRow(ctx, r.read, r.key...).Scan(&epoch, &held)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fmt.Errorf("read the lease %s: %w", r.name, err)
	}
	return epoch, held, nil
}
