package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"runtime"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config of a pool. Of the durations, 0 is the default and a negative one turns the limit off.
type Config struct {
	// URL as pgx reads it: postgres://user:password@host:port/database?sslmode=verify-full. Settings in it win over
	// those below. A secret.
	URL string
	// ApplicationName in pg_stat_activity and in the server's log. Default "rollcall".
	ApplicationName string
	// MaxConns of the pool. Default four for each CPU that Go uses, at least 8 and at most 64.
	MaxConns int32
	// Wait is how long Open waits for a server that is not there yet. Default 30 s; negative: one try.
	Wait time.Duration
	// Waiting is called with each failed attempt to connect that Open tries again; [Reason] makes it fit for strangers.
	Waiting func(error)
	// ConnectTimeout of one connection. Default 5 s; it can't be turned off.
	ConnectTimeout time.Duration
	// StatementTimeout after which the server cancels a statement. Default 15 s. A server that says nothing for a third
	// longer than that, while a statement or a batch of them is under way, has its connection given up.
	StatementTimeout time.Duration
	// LockTimeout after which a statement stops waiting for a lock. Default 5 s.
	LockTimeout time.Duration
	// IdleInTxTimeout after which the server ends a connection that sits idle in a transaction, so that the locks of
	// a process that froze come free. Default 10 s.
	IdleInTxTimeout time.Duration
}

// openWait is the default of Config.Wait.
const openWait = 30 * time.Second

// Open connects to the server, waiting for one that is not there yet, and returns a pool of connections, which is the
// caller's to close. A server that refuses, for its password or because there is no such database, is not waited for.
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

// CheckURL returns the error that Open and Migrate would have with a URL that they cannot read. It connects to nobody.
func CheckURL(url string) error {
	_, err := Config{URL: url}.pool()
	return err
}

// ErrAsyncCommit refuses a server that confirms a COMMIT before it is on its disk.
var ErrAsyncCommit = errors.New("synchronous_commit is off: a crash of the server would lose transactions that were accepted; " +
	"set it to on, for the server, the database or the role")

// checkCommit returns ErrAsyncCommit where the connection's transactions would not wait for the disk. A transaction may
// still choose not to wait, where nothing is lost by it.
func checkCommit(ctx context.Context, conn *pgx.Conn) error {
	var mode string
	// In the simple protocol, because it is one round trip for each new connection.
	err := conn.QueryRow(ctx, "SELECT current_setting('synchronous_commit')", pgx.QueryExecModeSimpleProtocol).Scan(&mode)
	if err != nil {
		return fmt.Errorf("check synchronous_commit: %w", err)
	}
	if mode == "off" {
		return ErrAsyncCommit
	}
	return nil
}

// pool is the configuration in pgx's words.
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

// apply sets what the URL left open.
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
		// 0 turns these off at the server. Shorter than its unit must not come to mean that.
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
	// Rows are read by index. A plan that was made while a table was small, and is kept, would read all of it each time
	// until the server has analysed it, long after it has grown.
	set("enable_seqscan", "off")
	set("jit", "off") // which takes a scan that cannot be helped for a very dear one, and compiles it
	c.DialFunc = dialWithin(answerLimit(c.RuntimeParams["statement_timeout"]))
}

func orDefault(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}

// ErrURL says that a URL is not one of PostgreSQL's. Which part of it is wrong stays untold: what a parser takes for a
// port or a host may be half a password.
var ErrURL = errors.New("database URL: expected postgres://user:password@host:port/database?sslmode=…, with special characters of the password percent-encoded")

// urlError keeps the URL out of what pgx says about it, but for a file that the URL names and nobody can read.
func urlError(err error) error {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("database URL: %w", file)
	}
	return ErrURL
}

// Reason is why a connection failed, in words that hold neither user nor database.
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

// answerReason is Reason for an answer of the server, or of a proxy before it. Many messages name the user or the database.
func answerReason(answer *pgconn.PgError) string {
	switch answer.Code {
	case "57P01", "57P02", "57P03": // it starts or stops
		return answer.Message
	case "53300":
		return "it has no connection left"
	}
	return "it refuses connections, SQLSTATE " + answer.Code
}

// await returns when the server takes a connection that keeps what it commits. A negative limit allows for one try.
// waiting, if there is one, is called with each error that is not the last.
func await(ctx context.Context, c *pgx.ConnConfig, limit time.Duration, waiting func(error)) error {
	var last error
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	_, err := backoff.Retry(ctx, func() (none struct{}, _ error) {
		var conn *pgx.Conn
		if conn, last = pgx.ConnectConfig(ctx, c); last == nil {
			last = checkCommit(ctx, conn)
			_ = conn.Close(ctx) // its answer is known
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

// refused tells an answer that waiting won't change from one of a server that starts, stops or is full.
func refused(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !transient(answer.Code)
}
