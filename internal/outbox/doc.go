// Package outbox works on durable entries: all that must happen after a commit. A domain instantiates it under its own table name,
// and inserts an entry in the transaction that causes it. So every committed cause has its entry, and only committed ones have.
//
// Package webhook delivers on it the webhooks of relayers and of clients, and the relay path's queue is a table of it. The package
// imports platform and no domain.
//
// # Parts
//
// A [Table] describes the table, and prints the migration that creates it. An [Outbox] inserts entries and has the operators'
// functions. A [Worker] claims entries and calls the domain's [Handler]. A [Notifier] wakes the workers of other processes. With a
// broker, a [Dispatcher] sends ids through a [Transport], and workers receive them. Package deadletter is the operators' view. Package
// outboxtest is the conformance kit: a domain runs it on its own table, and a transport runs its part for transports.
//
// # States
//
// An entry is waiting, done or dead. A waiting one is in one of these conditions, by the database's clock:
//
//	due       due_at has passed, and no claim lasts
//	delayed   due_at is later: it was inserted with a delay, or its result asked for one
//	blocked   due_at is infinity: a lower entry of its subject is unfinished
//	sent      a broker has its id; due_at is when the id is sent again
//	working   claimed_until is later
//
// A claim sets claimed_until, until which no other process claims the entry, and a number from a sequence. No transaction, lock or
// connection is held while the handler runs; the worker extends the claim. A claim ends when its result is stored, or at that time.
// The number identifies the claim for ever. So a result stored twice, or the late one of a paused process whose entry another has
// claimed, changes nothing.
//
// # Turns
//
// In each worker one loop uses the database, in one round trip a turn. In one transaction it stores results, extends claims, and
// claims as many entries as there is room for. Under load a turn handles many entries, and an idle worker costs one short query a
// second. If the answer to a turn is lost, its results are stored again, and its claims end by themselves. A turn waits for the
// disk only if it claims and Table.ClaimsWaitForDisk is set.
//
// The cost of a turn depends neither on the number of entries nor on the statistics of the table:
//
//   - A claim changes no column of an index, so it writes one short record (a HOT update).
//   - The planner has one index for each query, whatever it estimates about the table's size.
//   - Delayed, blocked, sent and dead entries are behind all due ones of their lane in the index, or not in it.
//   - Most claims begin at the latest entry claimed before. Only one a second, or fewer if it takes long, begins at the oldest one,
//     and reads past index entries of deleted rows that were not vacuumed yet.
//
// # Order
//
// Of one subject one entry at a time is worked on, in the order of insertion. A claim that finds an entry behind an unfinished one
// blocks it, so that later claims do not read it, and the result of the lower one unblocks the next. A process that froze may end a
// handler after its lease, so a receiver may get an effect late; the fence against that is the receiver's. A dead entry blocks its
// subject if Table.DeadBlocks is set.
//
// # Fairness
//
// A worker divides its room among the lanes that have entries, and each claim begins at the lane after the last one served. Lanes
// need no configuration: each turn discovers new ones. Config.Limits bounds the entries of a lane that a process works on
// concurrently. A turn costs one short search for each lane that had entries within ten seconds, so lanes may be thousands, not
// millions.
//
// Within a lane, entries are claimed in the order of their due times, and a subject has one entry among them. A claim that meets a
// subject with a backlog blocks up to 256 more of its due entries at once, so a backlog of 3,000 takes room from about a dozen claims, however
// few entries each of them has room for. The result of an entry makes the next one of its subject due now, behind the entries that are
// due already: subjects with backlogs take turns.
//
// # Brokers
//
// The table is the truth with every backend. A dispatcher marks due entries as sent and sends their ids; a worker claims the ids it
// receives in the same way, and acknowledges all of them after the claim. Entries that are finished, claimed, delayed or unknown
// are ignored. At most 1,000 entries are sent and not begun: a broker delivers in its own order, so the rest waits in the table,
// where lanes are fair. An id that no worker begins is sent again after a minute, and then after pauses that double up to ten minutes,
// so that a broker without a worker gets few copies. A broker that loses or repeats everything changes nothing but time.
//
// # Guarantees
//
// At least once: an entry is worked on until a result is stored that ends it. It is repeated if its process dies, or if a result is
// lost. Poison: Retry counts as a failure, and so does a claim that ends without a result. Two workers never work on one entry at
// once, as long as their processes run: a handler's context ends with its lease.
//
// # What is not guaranteed
//
// Exactly once, and order without a subject. Partitions and prefixes restrict claims from the table, not the messages of a broker.
package outbox
