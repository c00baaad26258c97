// Package store keeps the relayer's state in Postgres. Only this package allocates nonces.
//
// The service, sender, tracker, keymonitor and admin call it, and so do cmd/rollcall and internal/cli. It calls
// platform/postgres.
//
// # Nonce allocation
//
// A key's row is its lock. One database transaction locks the rows of all usable keys, in the order of their addresses. It
// spreads the queued transactions over the keys with the fewest pending, stores each with its nonce, advances next_nonce,
// and commits. The process signs nothing and calls no node meanwhile. The locks last for two round trips, however many
// transactions are queued (package service batches them). There is no nonce counter outside the row, so none can be lost,
// duplicated or run ahead. A transaction that did not commit took no nonce.
//
// Then the process that allocated the nonce signs without holding a lock, and stores the attempt. The pair (tx_id, attempt)
// is unique: of two processes that sign for the same transaction, one stores its attempt, and only that one broadcasts. If
// the process dies or freezes at any instruction, each step leaves this state:
//
//	before the allocation committed   nothing: no nonce was taken
//	after it, before an attempt       a nonce without bytes: any process signs for it (Unsigned)
//	after the attempt                 stored bytes, possibly sent: any process broadcasts them (Unsent)
//	after the broadcast               the same: a node that has them already reports so, which counts as success
//
// # Queue
//
// A transaction for which no key has room is queued for its target (the pool or one key) without a nonce. Table
// relayer_queues holds the number of queued transactions per target. Triggers of relayer_txs maintain it: every statement
// that adds or removes a queued row counts it in the same database transaction. So an allocation costs the same however
// long the queue is.
//
// # One nonce per transaction
//
// A row keeps its nonce. Stored bytes count as sent, whatever nodes returned. So every later change uses the same nonce: a
// higher fee, other contents, or a no-op that replaces a canceled, expired or impossible transaction. A row gets a final
// status only from a block that is deep enough. There is one exception: another sender used the nonce with our key. Once
// that transaction is found by its hash in a block that is deep enough, the row may get another nonce
// (RecordNonceConflicts).
//
// # Unknown outcomes
//
// If the connection breaks during a commit, the outcome is unknown. Accept then takes the same locks again, which waits for
// the server to finish the first transaction, and reads the rows.
//
// # Lock order
//
// The order begins with idempotency keys (sorted) and relayer_keys (by address). Next is relayer_txs, by address and nonce,
// then queued rows by id. Last are relayer_budgets (by day, scope and subject) and relayer_queues (by target). New rows may
// come later, because no other transaction can hold them.
//
// RecordMined reverses the order: relayer_txs, then keys. Otherwise it would hold the keys while it updates hundreds of
// rows, and every caller that posts waits for them. It may deadlock where two processes both act as the tracker of the
// chain, or where an operator resets the chain. Postgres then aborts one of the two, which retries. The same can happen
// where contents are replaced while deliveries about them are settled: deliveries are locked last, and in no order among
// themselves.
package store
