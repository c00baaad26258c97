// Package postgres connects to PostgreSQL, brings its schema up to date, and tells what became of a transaction.
//
// # Three outcomes
//
// A transaction is done, not done, or unknown: when the connection ends between the COMMIT and its answer, only the
// database knows. InTx returns nil, an error, or an *UnknownError for these. Nothing here tries a transaction again by
// itself. Retryable tells when the caller may: nothing of it was done and its next run may go better. After an
// UnknownError look up, by a key that the transaction wrote, what became of it.
//
// # Nobody waits for ever
//
// A host that vanished without a word is noticed after ten seconds, where the system is Linux, and a server that is there
// and says nothing (it froze, or what stands in between swallows everything) after the statements' limit and a third. The
// connection is given up then, with an error as after any that broke.
//
// # PgBouncer
//
// Open works through a PgBouncer that pools transactions if that is 1.21 or newer, with max_prepared_statements set (or
// default_query_exec_mode=exec in the URL), and with ignore_startup_parameters naming statement_timeout, lock_timeout,
// idle_in_transaction_session_timeout, enable_seqscan and jit; these (the latter two off) are then to be set on the role
// (ALTER ROLE … SET). Migrate does not: its lock belongs to a session, so give it the URL of PostgreSQL itself, or of a
// PgBouncer that pools sessions.
//
// # Secrets
//
// A URL holds a password. No error of this package shows it.
package postgres
