// Package table uses the table relay_queue, in two ways. [Queue] is the queue that consumers claim from directly. A
// [Dispatcher] moves the entries to a broker, which makes the table an outbox, and has the dead letters. Both claim and settle entries with the same
// statements.
//
// Package queueurl opens its Queue; the packages rabbitmq and sqs run its Dispatcher. It calls worker for the handlers
// and platform/postgres.
//
// # Claims
//
// A claim sets claimed_until to a time in the future, until which no other process claims the entry. No transaction, lock
// or connection is held while the message is handled. A claim ends when its result is stored, or at that time. attempts
// grows with each claim. Together with the claimant's id it identifies a late result of an expired claim, which changes
// nothing.
//
// In each receiver one loop uses the database, in one round trip a turn. In one transaction it deletes the entries that
// are done, stores the other results, extends the claims of long handlers, and claims as many entries as there is room
// for. So under load a turn handles many messages, and an idle queue costs one short query a second.
//
// A turn does not wait for the disk (synchronous_commit is off in it). If Postgres loses a turn in a crash, its messages
// are delivered again. The entry itself and the transaction are on the disk before any claim sees them, because the API
// waits for its commit.
//
// The cost of a turn does not depend on the number of entries, nor on the statistics of the table:
//
//   - A claim changes no column of an index, so it writes one short record (a HOT update).
//   - The planner has one index for each query, whatever it estimates about the table's size.
//   - Delayed entries and dead letters are behind all due ones in the index, so a claim does not read them.
//   - Most claims begin at the latest entry claimed before. Only one a second, or fewer if it takes long, begins at the
//     oldest entry, and reads past index entries of deleted rows that were not vacuumed yet.
//
// # Wake-ups
//
// The API's process sends a NOTIFY after its commits, at most every 5 ms. The receivers listen on a connection of their
// own. Without either, through a PgBouncer that pools transactions or after the API's process died, the poll finds the
// entry within a second.
package table
