// Package reconciler finds out what webhooks did not bring. The command runs it in each consumer; it calls the store
// and the relayers' API. Several reconcilers share the work: the store gives each of them other transactions.
//
// A transaction that a relayer has accepted, and that nothing was heard of for a minute, is asked for at its relayer. The
// answer is applied like a webhook. A transaction that no relayer has accepted for five minutes is queued again, in case its
// entry was lost; a second one does no harm. Reports that came before their transaction are matched.
//
// A transaction that its relayer has accepted and not sent after five minutes is withdrawn: the relayer is asked to cancel it,
// and once it reports that it has, the transaction returns to the queue with another idempotency key. That takes a usable relayer
// outside the scope; without one the transaction stays where it is. At a relayer without idempotency keys it becomes unknown.
//
// If that relayer does not answer, or is gone, others are asked that can have the transaction: the service's relayer under its
// new URL, and relayers of the same idempotency scope, which share a database. A relayer that does not answer, or fails after
// seconds, is asked once a round. Each relayer has its own limit of calls, and no other relayer's transactions wait for its answers. For half a minute, a process that no relayer answers leaves transactions to the others. If no
// relayer answers, the next check comes later, an alert counts what stays silent, and after half an hour the transaction becomes
// unknown. So does one that its relayer does not have in two checks. The checks go on, and so does the transaction if a relayer
// has it after all; otherwise an operator ends it.
//
// A relayer that has accepted a transaction late, when it was at another relayer or final, is asked until it has finished it. If it has
// executed it, the transaction is confirmed unless it is final.
//
// Final transactions that are older than Config.History are deleted, unless a webhook of theirs is due or a dead letter.
//
// # What is not guaranteed
//
// A relayer with idempotency keys that reports a transaction as canceled, and executes it nevertheless, makes it execute twice.
package reconciler
