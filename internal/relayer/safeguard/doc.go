// Package safeguard protects a relayer and its keys: rate limits, and a KeyMonitor that disables, enables and tops up keys.
//
// # Where each safeguard is
//
//	switch                         service    RELAYER_ENABLED=false: nothing new; accepted transactions are finished
//	receivers, gas price, gas      service    each request is checked before anything is stored
//	rate limits                    here       token buckets in this process's memory; separate ones of the same size for
//	                                          callers' requests to nodes and signers
//	daily budgets                  store      in the database transaction that accepts
//	keys that cannot pay           store      skipped under their locks, by the balance that the KeyMonitor stored
//	low balance, repeated errors   here       the KeyMonitor decides, the store records and announces
//	top-ups                        here       the KeyMonitor requests them, the store bounds them
//
// # Limits of the guarantees
//
// Rate limits count per process: n processes behind a load balancer admit n times as many requests, and a restart resets
// the counts. They protect the process. Budgets, which are exact across processes, protect the money.
//
// Balances are read every few seconds. In between a key may get more transactions than it can pay for. These are sent
// anyway, rejected by nodes, and sent again when there is ether. After several rejections the key is disabled.
//
// # Which process
//
// One process of a pool holds the tracker lease. The KeyMonitor of that process reads the balances, decides, and tops up.
// Two processes that act at once decide the same under the same locks, and a key gets no two top-ups. Each process counts
// rejected broadcasts and signer failures of its own sends.
//
// # Disabling and enabling
//
// The system disables and enables; an operator pauses and resumes. Neither undoes the other's change. A key is disabled
// below its minimum balance, and enabled a fifth above it, so that it does not flap. After repeated errors it stays
// disabled for a time. That time doubles after each check at which nodes still reject the key's pending transactions.
package safeguard
