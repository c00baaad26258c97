// Package sender signs transactions that have a nonce, stores the signed bytes, and broadcasts the stored ones.
//
// The service, the tracker and keymonitor call it. It calls signer, store, and evm for the broadcasts.
//
// Work flows through three stages. Each collects jobs while the stage before or after it is busy:
//
//	sign       concurrently per key, several at once; no lock is held, and a signer that hangs delays only its own key
//	store      one statement for all attempts signed meanwhile; an attempt whose number is already stored stops here
//	broadcast  one call for all attempts stored meanwhile, in the order of nonces; all attempts of a key use one shard
//
// A job that fails in a stage is logged and dropped here: its transaction is in the store, and the tracker handles it
// again. So this package retries nothing, and none of its state has to survive it.
package sender
