// Package tracker follows the chain for a pool of keys, and tends what is pending.
//
// One process of a pool does it at a time; which one is a row in the store with a term, so that another takes over when it
// dies or freezes. That is for economy only. Two that believe it at once do no harm: every change compares with what is
// stored, signed bytes are stored before they are sent, and one attempt number has one winner. One that does not hold all
// keys lets others follow when a key that it lacks gets nowhere.
//
// On each head, with everything read from one endpoint at one block:
//
//	put back      what stood in blocks that are no longer part of the chain
//	mined         what has a receipt in a block that leads to the head
//	displaced     what somebody else's transaction has the nonce of, once that is deep enough
//	confirmed     what stands deep enough
//
// And each second, whatever the chain does, beside that and without holding it up:
//
//	unsigned      nonces that were claimed by a process that did not get further
//	unsent        bytes that no node is known to have
//	missing       bytes that a node had and has dropped without a word
//	gaps          nonces that nobody has: a no-op fills them
//	intended      cancelations, expiries and failures that still need their no-op
//	asked         what an operator wants to have outbid
//	stuck         the lowest pending nonce of each key gets a higher fee when it has waited too long and blocks were made without it
//	waiting       what had no key gets one
//
// What signers are needed for there is done for each key beside the others: one that hangs keeps only its own key waiting.
//
// The process that follows renews its term only after a round that succeeded. Otherwise it releases it, and lets others go first.
//
// Before all that a round compares the block that the chain is recognised by with its own view; see Lineage.
//
// An error of a node ends what it happens in, and decides nothing. A block that a lagging endpoint does not have yet is no
// reorganization: only another block of the same number is.
package tracker
