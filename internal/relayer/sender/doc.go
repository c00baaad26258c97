// Package sender turns transactions that have a nonce into signed bytes, stores them, and broadcasts what was stored.
//
// Work flows through three stages, each of which collects what waits while the one before, or after, is busy:
//
//	sign       each key beside the others, several at once; nothing is held meanwhile, and a signer that hangs holds up its key only
//	store      one statement for all that were signed meanwhile; who lost the race for an attempt's number stops here
//	broadcast  one call for all that were stored meanwhile, in the order of nonces, one lane a key
//
// What a stage cannot do is logged and dropped here: the store has it, and whoever follows the chain takes it up again. So
// nothing is retried in this package, and nothing has to survive it.
package sender
