// Package safeguard keeps a relayer from doing harm, and its keys from running dry: rate limits, and a Keeper that takes
// keys out and in again, and tops them up.
//
// # Where each safeguard is
//
//	switch                         pool       RELAYER_ENABLED=false: nothing new; what was accepted is finished
//	receivers, gas price, gas      pool       each request is held against them before anything is stored
//	rate limits                    here       token buckets in this process's memory; others of the same size for what
//	                                          callers ask nodes and signers
//	budgets of a day               store      in the database transaction that accepts
//	keys that cannot pay           store      passed over under their locks, by the balance that the Keeper wrote down
//	low balance, repeated errors   here       the Keeper decides, the store writes down and announces
//	top-ups                        here       the Keeper asks, the store bounds them
//
// # What is not guaranteed
//
// Rate limits count per process: n processes behind a load balancer let n times as much pass, and a restart forgets. They
// protect the process; budgets, which are exact across processes, protect the money.
//
// Balances are read every few seconds. In between a key may be given more than it can pay; what is given is then sent
// all the same, refused by nodes, sent again when there is ether, and the key taken out after some refusals.
//
// # Who does it
//
// One process of a pool follows the chain. The Keeper of that process reads the balances, decides, and tops up. Two that
// believe it at once decide the same under the same locks, and a key gets no two top-ups. Refused broadcasts, and signers
// that fail, are counted by each process for what it has sent itself.
//
// # On and off
//
// The system disables and enables; an operator pauses and resumes. Neither undoes what the other did. A key goes off
// below its lowest balance and comes back a fifth above it, so that it does not flap around it. After repeated errors it
// stays off for a time, twice as long after each look that finds the node still refusing what the key has pending.
package safeguard
