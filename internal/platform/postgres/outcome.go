package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnknown matches every *UnknownError.
var ErrUnknown = errors.New("commit outcome unknown")

// UnknownError means that the answer to a COMMIT was lost. The transaction may have been committed or rolled back. A
// frozen server may still commit it.
type UnknownError struct{ Err error }

func (e *UnknownError) Error() string   { return fmt.Sprintf("%v: %v", ErrUnknown, e.Err) }
func (e *UnknownError) Unwrap() []error { return []error{ErrUnknown, e.Err} }

// Beginner starts transactions: a pool, a connection, or a transaction, which starts savepoints.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// rollbackLimit limits the rollback of a failed transaction.
const rollbackLimit = 5 * time.Second

// InTx runs do in a transaction and commits it. It returns nil if the transaction was committed, and an *UnknownError
// if the answer to the COMMIT was lost. With any other error, such as that of do, nothing was done. do must neither
// commit nor roll back.
//
// If ctx ends during the COMMIT, the outcome is unknown. A caller that needs the outcome although its client
// disconnected passes context.WithoutCancel(ctx), with a deadline.
func InTx(ctx context.Context, db Beginner, do func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	committing := false
	defer func() {
		if committing {
			return
		}
		// This also runs if do panics. A failure here closes the connection, which rolls back, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	if err := do(tx); err != nil {
		return err
	}
	if tx.Conn().IsClosed() { // do lost it, and returned no error
		return fmt.Errorf("commit transaction: %w", pgconn.ErrConnClosed)
	}
	committing = true
	if err := tx.Commit(ctx); Uncertain(err) {
		return &UnknownError{Err: err}
	} else if err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	return nil
}

// Uncertain reports whether err, of a COMMIT or of a statement that is its own transaction, leaves its outcome open. In
// doubt it is true. An example is a statement that failed while it waited for a connection of a pool.
func Uncertain(err error) bool {
	if err == nil || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrNoRows) {
		return false
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		severity := answer.SeverityUnlocalized
		if severity == "" {
			severity = answer.Severity
		}
		switch {
		case connecting(err): // refused before the statement
			return false
		case answer.Code == "40003", answer.Code[:min(2, len(answer.Code))] == "08":
			// statement_completion_unknown; a proxy reports the 08 codes for a server that it lost.
			return true
		}
		// An ERROR aborts the transaction. With other severities the connection may end after the commit was written,
		// by a shutdown or the crash of another backend.
		return severity != "ERROR"
	}
	// pgx returns "conn closed", and marks it safe to retry, also if the connection ended while it read the answer.
	return errors.Is(err, pgconn.ErrConnClosed) || !connecting(err) && !pgconn.SafeToRetry(err)
}

// connecting reports whether err is from opening a connection.
func connecting(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// Retryable reports whether a transaction run by InTx ended with err without effect, and may succeed if repeated. It
// conflicted with another one, or lost its connection or server before the COMMIT. It is false for an *UnknownError,
// and for the end of the caller's context. For a statement outside of InTx, check Uncertain first.
func Retryable(err error) bool {
	if err == nil || errors.Is(err, ErrUnknown) {
		return false
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return transient(answer.Code)
	}
	if connecting(err) {
		return true // the timeout of one attempt looks like the end of a context
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if pgconn.SafeToRetry(err) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return true // an error of a socket
	}
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// transient lists the SQLSTATEs after which the same transaction may succeed.
func transient(code string) bool {
	switch code {
	case "40001", // serialization_failure
		"40P01",                                              // deadlock_detected
		"55P03",                                              // lock_not_available: lock_timeout
		"25P03",                                              // idle_in_transaction_session_timeout
		"53300",                                              // too_many_connections
		"57P01",                                              // admin_shutdown
		"57P02",                                              // crash_shutdown
		"57P03",                                              // cannot_connect_now: starting, stopping or recovering
		"57P05",                                              // idle_session_timeout
		"25006",                                              // read_only_sql_transaction: a standby, until DNS or a proxy finds the new primary
		"08000", "08001", "08003", "08004", "08006", "08P01": // a proxy lost its server
		return true
	}
	return false
}

// Retry calls do, which runs one InTx, again while its error is Retryable and ctx lasts, with pauses from 10 ms to 1 s.
// It calls do at least once, and returns the last error of do.
func Retry(ctx context.Context, do func(ctx context.Context) error) (err error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 10*time.Millisecond, time.Second
	_, _ = backoff.Retry(ctx, func() (none struct{}, _ error) { // it returns err, or the end of ctx
		if err = do(ctx); err != nil && !Retryable(err) {
			return none, backoff.Permanent(err)
		}
		return none, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return err
}
