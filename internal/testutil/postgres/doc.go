// Package postgres provides real PostgreSQL databases for tests.
//
// New returns a new database of a server that all tests of a process share. It is a database, not a schema, because
// PostgreSQL keeps advisory locks and more per database. With Migrated it is copied from a template that was migrated
// once. The shared server starts with the first New, does not flush to the disk, and ends with Main, or with the
// process. Without Main its folder stays until a later run removes it.
//
// Own returns a separate, durable server for one test, which can be stopped, killed, frozen and restarted.
//
// A test without PostgreSQL fails; it never skips.
//
// Tests of store, webhook and of the relayer call it. It calls pgserver.
package postgres
