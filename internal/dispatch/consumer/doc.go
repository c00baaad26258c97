// Package consumer submits queued transactions to relayers. The command calls it; it calls the queue, the store, and the live
// relayers of package fleet.
//
// For each entry it chooses a relayer, stores the choice and takes the row's lease, posts the transaction with the row's
// id as the idempotency key, and stores the relayer's answer before it acknowledges the entry.
//
// # Outcomes
//
//	accepted  the relayer's id is stored, unless the transaction was given to another relayer meanwhile; the entry ends
//	rejected  the request itself is bad: the transaction fails, and the entry ends. If the relayer has no scope, up to two others
//	          are asked before, because its own account or policy may be the reason
//	not done  the relayer does not have it: the choice is cleared, and the next relayer is tried
//	unknown   the relayer may have it: the choice stays, and the entry comes again
//
// After an unknown outcome, or a consumer that died, the next attempt finds the choice in the row. If the relayer has a
// scope, the same key is posted to it or, if it is away, to another relayer of that scope: there it is the same transaction.
// Without a scope the consumer looks for the transaction by receiver, value, data and time. One match is adopted. If there
// is none for longer than a request can take, or more than one, the transaction is parked as unknown for an operator. If the relayer has
// answered the request with a 500, and its complete list does not have the transaction, it is certainly not done, and is queued again.
//
// A transaction is never posted to a relayer of another scope while the first may have it. One that the reconciler has withdrawn
// from a scope is posted to no relayer of that scope for five minutes: if there is no other one, its entry comes again.
//
// # What is not guaranteed
//
// With a relayer without idempotency keys, another program that posts the same call with the same API key within the same time
// can be taken for ours.
package consumer
