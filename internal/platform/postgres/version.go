package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

// OlderError means that a database lacks migrations that this program needs.
type OlderError struct {
	Table         string
	Database, Own int64 // versions; 0: none was ever applied
}

func (e *OlderError) Error() string {
	return fmt.Sprintf("the database's schema (%s) is at version %d and this program needs %d", e.Table, e.Database, e.Own)
}

// Querier reads one row: a pool, a connection, or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Versions returns the database's version, 0 if nothing was ever applied, and the newest of the migrations. It changes
// nothing, and sends one query.
func Versions(ctx context.Context, db Querier, m Migrations) (database, own int64, err error) {
	if own, err = m.newest(); err != nil {
		return 0, 0, fmt.Errorf("check %s: %w", m.Table, err)
	}
	// Migrations are applied in order, and a version that was reverted has no row any more.
	err = db.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM `+pgx.Identifier{m.Table}.Sanitize()).Scan(&database)
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok && answer.Code == "42P01" { // undefined_table
		return 0, own, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("check %s: %w", m.Table, err)
	}
	return database, own, nil
}

// Check returns nil if the database is at the newest of the migrations, and otherwise an *OlderError or a *NewerError,
// from [Versions]. It waits for a server that goes away as long as [Open] does by default: a server that restarts
// accepts and closes connections before it stops doing so.
func Check(ctx context.Context, db Querier, m Migrations) error {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	var database, own int64
	err := Retry(ctx, func(ctx context.Context) (err error) {
		database, own, err = Versions(ctx, db, m)
		return err
	})
	switch {
	case err != nil:
		return err
	case database < own:
		return &OlderError{Table: m.Table, Database: database, Own: own}
	case database > own:
		return &NewerError{Table: m.Table, Database: database, Own: own}
	}
	return nil
}

// newest returns the highest version among the files.
func (m Migrations) newest() (version int64, err error) {
	names, err := fs.Glob(m.FS, "*.sql")
	for _, name := range names {
		v, err := goose.NumericComponent(name)
		if err != nil {
			return 0, err
		}
		version = max(version, v)
	}
	return version, err
}
