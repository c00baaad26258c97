// Package postgres connects to PostgreSQL, migrates its schema, and reports the outcome of transactions.
//
// The stores of the relayer and of the relay path call it, and so do webhook, the queue, events, admin, cmd/rollcall
// and internal/cli. It calls pgx and goose, and no other package of the project.
//
// # Three outcomes
//
// A transaction is done, not done, or unknown. If the connection ends between the COMMIT and its answer, only the
// database has the outcome. InTx returns nil, an error, or an *UnknownError for these. Nothing here retries a
// transaction by itself. Retryable reports whether the caller may: nothing of it was done and its next run may succeed.
// After an UnknownError, the caller must look up the outcome by a key that the transaction wrote.
//
// # Every wait is limited
//
// On Linux the disappearance of a host is detected after ten seconds. A server that does not answer (it froze, or a
// device in between drops all packets) is given up after the statement timeout and a third. The connection is then
// closed, with the same error as for a broken one.
//
// # PgBouncer
//
// Open works through a PgBouncer that pools transactions if that is 1.21 or newer, with max_prepared_statements set (or
// default_query_exec_mode=exec in the URL). Its ignore_startup_parameters must list statement_timeout, lock_timeout,
// idle_in_transaction_session_timeout, enable_seqscan and jit. The operator then sets these (the latter two off) on the
// role (ALTER ROLE … SET). Migrate does not work through it: its lock belongs to a session. Give it the URL of
// PostgreSQL itself, or of a PgBouncer that pools sessions.
//
// # Secrets
//
// A URL holds a password. No error of this package contains it.
package postgres
