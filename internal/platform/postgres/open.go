package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config configures a pool. Of the durations, 0 is the default and a negative one disables the limit.
type Config struct {
	// URL in pgx's format: postgres://user:password@host:port/database?sslmode=verify-full. Its settings override those
	// below. A secret.
	URL string
	// ApplicationName is the name in pg_stat_activity and in the server's log. Default "rollcall".
	ApplicationName string
	// MaxConns is the maximum size of the pool. Default four for each CPU that Go uses, at least 8 and at most 64.
	MaxConns int32
	// Wait is how long Open waits for a server that is not up yet. Default 30 s; negative: one attempt.
	Wait time.Duration
	// Waiting is called with each failed attempt to connect that Open retries; [Reason] removes user and database from
	// it.
	Waiting func(error)
	// ConnectTimeout is the limit for one connection attempt. Default 5 s; it cannot be disabled.
	ConnectTimeout time.Duration
	// StatementTimeout is when the server cancels a statement. Default 15 s. If the server does not answer a statement
	// or a batch for a third longer than that, the connection is closed.
	StatementTimeout time.Duration
	// LockTimeout is when a statement stops waiting for a lock. Default 5 s.
	LockTimeout time.Duration
	// IdleInTxTimeout is when the server ends a connection that is idle in a transaction, to release the locks of a
	// frozen process. Default 10 s.
	IdleInTxTimeout time.Duration
}

// openWait is the default of Config.Wait.
const openWait = 30 * time.Second

// Open connects to the server, waiting for one that is not up yet, and returns a pool of connections. The caller closes
// it. A server that refuses the password, or lacks the database, is not waited for.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	c, err := cfg.pool()
	if err != nil {
		return nil, err
	}
	if err := await(ctx, c.ConnConfig, orDefault(cfg.Wait, openWait), cfg.Waiting); err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("postgres pool: %w", err)
	}
	return pool, nil
}

// CheckURL returns the error of Open and Migrate for an invalid URL. It does not connect.
func CheckURL(url string) error {
	_, err := Config{URL: url}.pool()
	return err
}

// ErrAsyncCommit means that a server confirms a COMMIT before it is on its disk.
var ErrAsyncCommit = errors.New("synchronous_commit is off: a crash of the server would lose transactions that were accepted; " +
	"set it to on, for the server, the database or the role")

// checkCommit returns ErrAsyncCommit if the connection's transactions would not wait for the disk. A transaction may
// still disable the wait if it can afford the loss.
func checkCommit(ctx context.Context, conn *pgx.Conn) error {
	var mode string
	// The simple protocol needs one round trip for each new connection.
	err := conn.QueryRow(ctx, "SELECT current_setting('synchronous_commit')", pgx.QueryExecModeSimpleProtocol).Scan(&mode)
	if err != nil {
		return fmt.Errorf("check synchronous_commit: %w", err)
	}
	if mode == "off" {
		return ErrAsyncCommit
	}
	return nil
}

// pool returns the configuration in pgx's form.
func (cfg Config) pool() (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, urlError(err)
	}
	given, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return nil, urlError(err)
	}
	switch _, ok := given.RuntimeParams["pool_max_conns"]; {
	case ok:
	case cfg.MaxConns > 0:
		c.MaxConns = cfg.MaxConns
	default:
		c.MaxConns = int32(min(max(4*runtime.GOMAXPROCS(0), 8), 64))
	}
	cfg.apply(c.ConnConfig)
	c.AfterConnect = checkCommit // the setting may change while the pool is open
	return c, nil
}

// apply sets the parameters that the URL leaves unset.
func (cfg Config) apply(c *pgx.ConnConfig) {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
		if cfg.ConnectTimeout > 0 {
			c.ConnectTimeout = cfg.ConnectTimeout
		}
	}
	set := func(name, value string) {
		if _, ok := c.RuntimeParams[name]; !ok {
			c.RuntimeParams[name] = value
		}
	}
	limit := func(name string, d, standard time.Duration) {
		// 0 disables these at the server, so a limit below its unit must not be rounded down to that.
		ms := max(orDefault(d, standard), 0)
		if ms > 0 {
			ms = max(ms, time.Millisecond)
		}
		set(name, strconv.FormatInt(ms.Milliseconds(), 10))
	}
	name := cfg.ApplicationName
	if name == "" {
		name = "rollcall"
	}
	set("application_name", name)
	limit("statement_timeout", cfg.StatementTimeout, 15*time.Second)
	limit("lock_timeout", cfg.LockTimeout, 5*time.Second)
	limit("idle_in_transaction_session_timeout", cfg.IdleInTxTimeout, 10*time.Second)
	// Rows are read by index. Postgres keeps a plan that it made while a table was small. That plan would scan the
	// whole table each time until the server has analyzed it, long after it has grown.
	set("enable_seqscan", "off")
	set("jit", "off") // JIT overestimates the cost of an unavoidable scan, and compiles it
	c.DialFunc = dialWithin(answerLimit(c.RuntimeParams["statement_timeout"]))
}

func orDefault(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}

// ErrURL means that a URL is not a PostgreSQL URL. It does not name the wrong part, because a text in the place of a
// port or host may be half a password.
var ErrURL = errors.New("database URL: expected postgres://user:password@host:port/database?sslmode=…, with special characters of the password percent-encoded")

// urlError removes the URL from pgx's error, except for an unreadable file that the URL names.
func urlError(err error) error {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("database URL: %w", file)
	}
	return ErrURL
}

// waitLogged is how often a wait for the database is logged.
const waitLogged = 10 * time.Second

// LogWaiting returns a function for Config.Waiting and Migrations.Waiting. It passes the [Class] of the error to report each time, and
// logs the error at once and then every 10 s. One goroutine may call it.
func LogWaiting(log *slog.Logger, report func(class string)) func(error) {
	var last time.Time
	return func(err error) {
		level := slog.LevelWarn
		if errors.Is(err, ErrLocked) { // several processes start for the first time
			level = slog.LevelInfo
		}
		report(cmp.Or(Class(err), "unreachable"))
		if time.Since(last) >= waitLogged {
			last = time.Now()
			log.Log(context.Background(), level, "waiting for the database", "err", err)
		}
	}
}

// Reason returns why a connection failed, without user or database.
func Reason(err error) string {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return answerReason(answer)
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return lookup.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return "the connection failed"
}

// answerReason is Reason for an answer of the server or a proxy. Many of their messages contain the user or the
// database.
func answerReason(answer *pgconn.PgError) string {
	switch answer.Code {
	case "57P01", "57P02", "57P03": // it starts or stops
		return answer.Message
	case "53300":
		return "it has no connection left"
	}
	return "it refuses connections, SQLSTATE " + answer.Code
}

// await returns when the server accepts a connection whose commits are durable. A negative limit allows one attempt.
// waiting, if not nil, is called with each error but the last.
func await(ctx context.Context, c *pgx.ConnConfig, limit time.Duration, waiting func(error)) error {
	var last error
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	_, err := backoff.Retry(ctx, func() (none struct{}, _ error) {
		var conn *pgx.Conn
		if conn, last = pgx.ConnectConfig(ctx, c); last == nil {
			last = checkCommit(ctx, conn)
			_ = conn.Close(ctx) // the result is already known
		}
		if last == nil {
			return none, nil
		}
		if limit < 0 || refused(last) || errors.Is(last, ErrAsyncCommit) {
			return none, backoff.Permanent(last)
		}
		if waiting != nil && ctx.Err() == nil {
			waiting(last)
		}
		return none, last
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(max(limit, 0)))
	if last != nil {
		return fmt.Errorf("connect to postgres: %w", last)
	}
	return err
}

// refused distinguishes a permanent refusal from the answer of a server that starts, stops or is full.
func refused(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !transient(answer.Code)
}
