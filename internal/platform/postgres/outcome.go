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

// ErrUnknown is what every *UnknownError is.
var ErrUnknown = errors.New("commit outcome unknown")

// UnknownError is the loss of the answer to a COMMIT: the transaction may have been committed, may be rolled back, or
// may yet be committed by a server that only froze.
type UnknownError struct{ Err error }

func (e *UnknownError) Error() string   { return fmt.Sprintf("%v: %v", ErrUnknown, e.Err) }
func (e *UnknownError) Unwrap() []error { return []error{ErrUnknown, e.Err} }

// Beginner starts transactions: a pool, a connection, or a transaction, whose parts then are savepoints.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// rollbackLimit bounds the farewell to a connection whose transaction failed.
const rollbackLimit = 5 * time.Second

// InTx runs do in a transaction and commits it. It returns nil when that was committed, an *UnknownError when the
// answer to the COMMIT was lost, and any other error, such as that of do, when nothing of it was done. do must neither
// commit nor roll back.
//
// When ctx ends during the COMMIT, the outcome is unknown. A caller that must know although its client hung up
// passes context.WithoutCancel(ctx), with a deadline.
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
		// Also where do panics. A failure here closes the connection, which rolls back, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	if err := do(tx); err != nil {
		return err
	}
	if tx.Conn().IsClosed() { // do lost it, and said nothing
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

// Uncertain reports whether err, of a COMMIT or of a statement that is a transaction of its own, leaves open whether it
// was done. When in doubt it is true: a statement that failed while it waited for a connection of a pool is one such.
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
		case connecting(err): // the refusal came before the statement
			return false
		case answer.Code == "40003", answer.Code[:min(2, len(answer.Code))] == "08":
			// statement_completion_unknown; and the 08s are a proxy's words for a server that it lost.
			return true
		}
		// An ERROR aborts the transaction. The connection may end after the commit has been written: a
		// shutdown, or the crash of another backend.
		return severity != "ERROR"
	}
	// pgx says "conn closed", and that it were safe to retry, also when the connection ended while it read the answer.
	return errors.Is(err, pgconn.ErrConnClosed) || !connecting(err) && !pgconn.SafeToRetry(err)
}

// connecting reports whether err is of making a connection.
func connecting(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// Retryable reports whether err, of a transaction run by InTx, says that nothing was done and that the same may succeed
// now: it got in the way of another one, or its connection or server went away before the COMMIT. It is false for an
// *UnknownError, and for the end of the caller's context. Of a statement outside of InTx, ask Uncertain first.
func Retryable(err error) bool {
	if err == nil || errors.Is(err, ErrUnknown) {
		return false
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return transient(answer.Code)
	}
	if connecting(err) {
		return true // an attempt's own limit ends like a context does
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if pgconn.SafeToRetry(err) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return true // of a socket
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

// UniqueViolation reports whether err is a breach of uniqueness, and of which constraint or index.
func UniqueViolation(err error) (constraint string, ok bool) { return violation(err, "23505") }

// ForeignKeyViolation reports whether err is a breach of a foreign key, and of which.
func ForeignKeyViolation(err error) (constraint string, ok bool) { return violation(err, "23503") }

// CheckViolation reports whether err is a breach of a CHECK constraint, and of which.
func CheckViolation(err error) (constraint string, ok bool) { return violation(err, "23514") }

func violation(err error, code string) (constraint string, ok bool) {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || answer.Code != code {
		return "", false
	}
	return answer.ConstraintName, true
}

// Retry calls do, which runs one InTx, again for as long as its error is Retryable and ctx lasts, with pauses from
// 10 ms to 1 s. It calls do at least once, and returns the last error of do.
func Retry(ctx context.Context, do func(ctx context.Context) error) (err error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 10*time.Millisecond, time.Second
	_, _ = backoff.Retry(ctx, func() (none struct{}, _ error) { // what it returns is err, or the end of ctx
		if err = do(ctx); err != nil && !Retryable(err) {
			return none, backoff.Permanent(err)
		}
		return none, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return err
}
