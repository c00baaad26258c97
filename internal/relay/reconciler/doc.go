// Package reconciler finds out what webhooks and messages did not bring. The command runs it in each consumer; it calls the store
// and the relayers' API. Several reconcilers share the work: the store gives each of them other transactions.
//
// A transaction that a relayer has accepted, and that nothing was heard of for a minute, is asked for at its relayer. The
// answer is applied like a webhook. A transaction that no relayer has accepted for five minutes is queued again, in case its
// message was lost; a second message does no harm. Reports that came before their transaction are matched.
//
// A transaction that its relayer has accepted and not sent after five minutes is withdrawn: the relayer is asked to cancel it,
// and once it reports that it has, without a hash, the transaction returns to the queue with another idempotency key. That takes
// a relayer with idempotency keys: at another one the transaction becomes unknown.
//
// A relayer that does not answer is asked once a round, and changes nothing: the next check comes later, and an alert counts what stays silent. A transaction that
// its relayer does not have in two checks becomes unknown, for an operator. It goes on if the relayer has it after all.
//
// # What is not guaranteed
//
// A relayer that reports a transaction as canceled, without a hash, and sends it nevertheless makes it execute twice.
package reconciler
