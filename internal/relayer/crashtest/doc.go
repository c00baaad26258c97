// Package crashtest proves what the relayer promises about nonces, on real parts: relayer processes, a Postgres, a geth, and
// proxies between the two last and the first. It holds no code of the product.
//
// # The claim
//
// Whatever happens to processes, nodes, network and database, in the end every transaction that was accepted is executed exactly
// once, or is truthfully final and was not executed: canceled by its client, or expired. Nothing else is executed. Accepted is what
// a POST was answered 200 for, and what is stored under the idempotency key of a POST whose answer was lost. Executions are counted
// by a contract. No nonce is used twice and none is left out, no key is stuck, and the store agrees with the chain about every key's
// next nonce and pending count.
//
// No status was reported that the chain contradicts: every answer to POST, GET and DELETE, and every webhook, is recorded with its
// status, hash and revision, and compared with the end. Statuses do not go back from mined without a reorganization, nor from final.
//
// # Faults
//
// Processes are killed and frozen, Postgres is killed and stopped, connections break before, in and after a node's work. Endpoints
// are down, lag, count too many transactions, have no pending state, refuse single methods, and one of them offers no receipts by
// block. The process that follows the chain loses all its nodes. The chain wants more than relayers may offer, and transfers need
// more gas than 21,000.
//
// # Forms
//
// The tests hold a small form, of a few hundred transactions, in which every kind of fault strikes at least once; and what
// needs a scene of its own: reorganizations of 3 and 70 blocks, a restored dump, a chain that was reset, somebody else who uses
// the keys, full blocks without receipts by block, withdrawals above the price cap. `make soak` runs the full form: 16 keys, 4
// processes, 20,000 transactions, and again with a geth whose pool drops what it accepted; and reorganizations of up to 200
// blocks and restored dumps, while relayers and the operator's command are killed.
//
// What is random follows from a seed, which is printed; -crashtest.seed repeats it. Processes and clocks do not repeat, so the
// same seed means the same faults at the same times, not the same run. -crashtest.logs keeps the logs of the processes.
package crashtest
