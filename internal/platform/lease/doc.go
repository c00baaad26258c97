// Package lease elects one process among several by a row of a database.
//
// The relayer's tracker and the escrow monitor's watcher use it. It calls the database alone.
//
// # The row
//
// A domain adds three columns to a table of its own: the holder's name, the time at which the lease ends, and the epoch. [Table]
// names them and the key. Every time is the database's: a process with a wrong clock neither keeps a lease for too long nor takes
// one early.
//
//	elected    the lease was free, or its holder is elected again: the epoch grows by one, also for the same process
//	renewed    the end moves; the epoch stays
//	released   the holder's name is removed, and the lease is free at once
//	expired    another process may be elected; until then the holder may still renew it
//
// So an epoch belongs to one election of one process, and a write that requires the row's epoch fails once another election took
// place.
//
// # A process
//
// [Lease] is a process's part. The caller claims it before each round of its work, and records the outcome of the round. A
// round that failed does not renew the lease. A process that had no success for a term should stand back: it releases the lease,
// and for three terms it takes it only if no other process did.
//
// # Limits
//
// A lease saves work and is no lock. A process that was paused may believe that it holds the lease after another was elected.
// Writes of the holder must compare the epoch, or do no harm when two processes do them.
package lease
