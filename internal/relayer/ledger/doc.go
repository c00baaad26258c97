// Package ledger is the relayer's store, in Postgres.
package ledger
