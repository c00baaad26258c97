// Package store holds the relay path's transactions in Postgres. The API, the consumers and the reconciler call it; it calls the
// database alone.
//
// A row is the authority on its transaction; an entry of the queue only names it. Each change of a row, its history, and the
// webhook that reports it to the client are one statement, and so one database transaction. The methods of [dispatch.Transaction] decide
// about changes under the locks of the rows; statements that compare and swap a lease or a submission decide by themselves.
//
// # The chain
//
// All transactions of a database are for one chain. ClaimChain stores it once. Nothing but an operator's statement changes it.
//
// # Submission
//
// A consumer calls Begin before it sends a request to a relayer. Begin stores the chosen relayer and takes the row's lease.
// After a crash the next consumer therefore knows which relayer may have the transaction. Requeue clears the relayer, and only its
// leaseholder may call it, after an answer that proves that the relayer does not have the transaction. Otherwise only an operator
// clears it, by Resolve. Accepted needs no lease, because within an attempt the relayer's answer stays true.
//
// Each Begin of a queued transaction is another attempt. A process that waited for an answer, or for anything else, may go on when the
// transaction is at another relayer. So each change after a wait names the lease or the attempt that it belongs to, and changes nothing
// of another one. An acceptance of an earlier attempt is kept as a late one until its relayer has finished the transaction. Meanwhile
// the transaction is given to no further relayer, and does not fail. If its relayer reports that it was not executed, it becomes unknown
// instead; if its relayer rejects it, it goes on at the late one. If the late relayer has executed it, it is confirmed.
//
// A relayer without idempotency keys may have one unresolved call of the same receiver, value and data at a time. Otherwise
// a lookup could not tell them apart. Begin leaves a second one queued, and ReportBlocked gives it the reason once the first one is parked.
// Relayers with idempotency keys take it nevertheless. Begin also leaves a transaction queued that was withdrawn from the
// chosen relayer's scope within [AvoidedFor].
//
// # Reports
//
// Apply stores relayers' reports; [dispatch.Transaction.Apply] decides which of them count. A report of a transaction that no row has is
// kept, and applied once the row has the relayer's id. A report without the row's id changes no row if two rows have its relayer's id.
//
// The store does not guarantee that a report is kept for more than a day.
package store
