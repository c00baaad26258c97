// Package tracker tracks the chain for a pool of keys, and maintains pending transactions.
//
// cmd/rollcall runs it; admin and internal/cli call it for an operator's changes. It calls evm to read the chain, store
// for the rows and sender for signatures and broadcasts.
//
// One process of a pool does so at a time: the holder of a lease in the store. Another takes over when it dies or freezes.
// The lease only saves work. Two holders at once do no harm. Every change compares with the stored state, signed bytes are
// stored before they are sent, and only one process can store an attempt number. A process that does not hold all keys
// releases the lease when a key that it lacks makes no progress.
//
// On each head it does the following, with everything read from one endpoint at one block:
//
//	reorganized   transactions in blocks that are no longer part of the chain become pending again
//	mined         transactions with a receipt in a block that leads to the head
//	conflict      another sender's transaction used the nonce and is final
//	confirmed     mined transactions whose block is deep enough
//
// Each second it does the following, concurrently with the above and without delaying it:
//
//	unsigned      sign for nonces that were allocated by a process that did not sign
//	unsent        send bytes that no node is recorded to have accepted
//	missing       send bytes again that a node had and dropped silently
//	gaps          fill nonces without a row with no-ops
//	no-ops        sign the no-ops that cancellations, expiries and failures still need
//	requested     bump transactions for which an operator requested it
//	stuck         bump the lowest pending nonce of each key when it has waited too long and blocks were made without it
//	queued        allocate keys to queued transactions
//
// Steps that need signers run concurrently per key: a signer that hangs delays only its own key.
//
// While no transaction is open, and the last complete round found the keys as they are recorded, most rounds read only the
// database, so that a relayer that has nothing to do makes few calls to nodes. See Tracker.isIdle.
//
// The tracker renews its lease only after a round that succeeded. It releases the lease, and lets others go first, if no
// round succeeds for a term, or if for a term no node receives its transactions or it knows no fees.
//
// Before these steps a round compares the recorded anchor block with its own view; see ChainIdentity.
//
// A node's error ends the current step, and decides nothing. A block that a lagging endpoint does not have yet is no
// reorganization: only another block of the same number is.
package tracker
