package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// Migrations are the migrations of one part of the schema.
type Migrations struct {
	// FS has goose's files at its top level: 00001_name.sql.
	FS fs.FS
	// Table stores which of them were applied. Every part of the schema has its own. Required.
	Table string
	// Wait is how long to wait for another process that migrates, or for a server that is not up yet. Default 5 min.
	Wait time.Duration
	// Waiting is called with each cause of waiting: a failed attempt to connect, or ErrLocked.
	Waiting func(error)
	// Log receives a line for each migration. Default: discard.
	Log *slog.Logger
}

// NewerError means that a newer program has migrated the database. An older one might misread it.
type NewerError struct {
	Table         string
	Database, Own int64 // versions
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("the database's schema (%s) is at version %d and this program supports %d: run a newer program", e.Table, e.Database, e.Own)
}

// ErrLocked means that another process migrates.
var ErrLocked = errors.New("another process migrates the database")

const (
	lockPoll    = 100 * time.Millisecond
	unlockLimit = 5 * time.Second
	attempts    = 3
)

// Migrate applies all outstanding migrations. Any number of processes may call it concurrently. Each migration is a
// transaction, unless it declares otherwise. Migrate may be called again after any error. It returns a *NewerError,
// without any change, if the database is ahead.
//
// The lock is an advisory lock of the session that migrates. So it ends when the process dies or loses its connection,
// and only after the server has ended that session's work. A frozen process holds it for at most a minute. The lock
// needs a session: see the package comment about PgBouncer.
func Migrate(ctx context.Context, url string, m Migrations) error {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return urlError(err)
	}
	// A migration may run long, but must not wait for a lock for long, because later transactions would wait behind it.
	Config{
		ApplicationName: "rollcall migrate", StatementTimeout: -1, LockTimeout: 30 * time.Second, IdleInTxTimeout: time.Minute,
	}.apply(c)
	c.RuntimeParams["idle_session_timeout"] = "60000" // ms: also of a process that froze between two migrations
	limit := m.Wait
	if limit <= 0 {
		limit = 5 * time.Minute
	}
	// A server that restarts may go away again after an answer. A migration that has started and failed is not retried.
	for attempt := 1; ; attempt++ {
		if err := await(ctx, c, limit, m.Waiting); err != nil {
			return err
		}
		db := stdlib.OpenDB(*c)
		err = m.up(ctx, db, limit)
		if e := db.Close(); e != nil && err == nil {
			err = e
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			// The driver reports the end of ctx in some places as a lost connection.
			return fmt.Errorf("migrate %s: %w", m.Table, context.Cause(ctx))
		case attempt == attempts || !connecting(err):
			return fmt.Errorf("migrate %s: %w", m.Table, err)
		}
	}
}

func (m Migrations) up(ctx context.Context, db *sql.DB, limit time.Duration) error {
	log := m.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lock := sessionLock{id: lockID(m.Table), limit: limit, waiting: m.Waiting, ended: func() bool { return ctx.Err() != nil }}
	if err := m.createTable(ctx, db, lock); err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, m.FS, goose.WithTableName(m.Table), goose.WithSessionLocker(lock),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	// If the database is ahead this does nothing, because versions are applied in order.
	results, err := p.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
	}
	for _, r := range results {
		log.LogAttrs(ctx, slog.LevelInfo, "schema migrated", slog.String("table", m.Table), slog.Int64("version", r.Source.Version), slog.Duration("took", r.Duration))
	}
	if err != nil {
		return err
	}
	current, own, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if current > own {
		return &NewerError{Table: m.Table, Database: current, Own: own}
	}
	return nil
}

// createTable creates the version table under the lock. goose creates it without the lock. Processes that migrate an
// empty database concurrently would then all try to create it. All but one would fail, and wait a second.
func (m Migrations) createTable(ctx context.Context, db *sql.DB, lock sessionLock) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	exists := func() (yes bool, err error) {
		err = conn.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", m.Table).Scan(&yes)
		return yes, err
	}
	if yes, err := exists(); err != nil || yes {
		return err
	}
	if err := lock.SessionLock(ctx, conn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.SessionUnlock(context.WithoutCancel(ctx), conn)) }()
	if yes, err := exists(); err != nil || yes { // another process created it
		return err
	}
	store, err := database.NewStore(database.DialectPostgres, m.Table)
	if err != nil {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after a commit
	if err := store.CreateVersionTable(ctx, tx); err != nil {
		return err
	}
	if err := store.Insert(ctx, tx, database.InsertRequest{Version: 0}); err != nil {
		return err
	}
	return tx.Commit()
}

// lockID returns the lock id of a version table, so that parts of the schema do not wait for each other.
func lockID(table string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("rollcall migrate " + table)) // never fails
	return int64(h.Sum64())
}

// sessionLock is goose's lock.SessionLocker. It polls instead of waiting in the server. A waiting statement holds a
// snapshot, and a CREATE INDEX CONCURRENTLY of the lock's holder would wait for the end of that snapshot.
type sessionLock struct {
	id      int64
	limit   time.Duration
	waiting func(error) // may be nil
	ended   func() bool // reports that the migration was canceled
}

// SessionLock takes the lock.
func (l sessionLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.limit, fmt.Errorf("%w for longer than %v", ErrLocked, l.limit))
	defer cancel()
	for {
		var mine bool
		err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", l.id).Scan(&mine)
		if err != nil {
			err = cmp.Or(context.Cause(ctx), err)
			return fmt.Errorf("take the lock: %w", err)
		}
		if mine {
			return nil
		}
		if l.waiting != nil {
			l.waiting(ErrLocked)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("take the lock: %w", context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}

// SessionUnlock releases the lock. If that fails, the end of the session releases it. A migration that was canceled leaves
// it to that end, because database/sql may be closing the connection of its transaction, and panics on a statement then.
func (l sessionLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if l.ended() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unlockLimit)
	defer cancel()
	_, _ = conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", l.id)
	return nil
}
