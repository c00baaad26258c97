// Package reconciler finds out what webhooks and messages did not bring. The command runs it in each consumer; it calls the store
// and the relayers' API. Several reconcilers share the work: the store gives each of them other transactions.
//
// A transaction that a relayer has accepted, and that nothing was heard of for a minute, is asked for at its relayer. The
// answer is applied like a webhook. A transaction that no relayer has accepted for five minutes is queued again, in case its
// message was lost; a second message does no harm. Reports that came before their transaction are matched.
//
// A relayer that is away, or does not know the transaction, changes nothing: the next check comes later, and an alert counts
// what stays silent.
package reconciler
