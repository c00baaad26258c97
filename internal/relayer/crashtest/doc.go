// Package crashtest tests the relayer's guarantees about nonces with real parts: relayer processes, a Postgres, a geth,
// and proxies between the relayers and the other two. It holds no code of the product.
//
// # The claim
//
// Processes, nodes, network and database may fail. In the end every accepted transaction is executed exactly once. The
// only exceptions are transactions that are final and were not executed: canceled by their client, or
// expired. Nothing else is executed. A transaction is accepted if a POST was answered 200, or if it is stored under the
// idempotency key of a POST whose answer was lost. A contract counts the executions. A restored dump is an exception to
// "once", as README's table of failures says: the store lacks what happened after the dump. There no status may contradict
// the chain, and no transaction may be taken for another. No nonce is used twice and none is
// left out. No key is stuck. The store agrees with the chain about every key's next nonce and pending count.
//
// The chain contradicts no reported status. Every answer to POST, GET and DELETE, and every webhook, is recorded with
// its status, hash and revision, and compared with the end. A status does not change back from mined without a
// reorganization, and never from a final one.
//
// # Faults
//
// Processes are killed and frozen. Postgres is killed and stopped. Connections break before, during and after a node's
// work. Endpoints are down, lag, count too many transactions, have no pending state, or refuse single methods, and one
// of them offers no receipts by block. Providers limit the calls of a second, refuse batches, and forget what they accepted.
// The process that follows the chain loses all its nodes. The chain's fees exceed
// the relayers' cap, and transfers need more gas than 21,000.
//
// # Forms
//
// The tests run a small form, of a few hundred transactions, in which every kind of fault strikes at least once. Some
// cases have scenes of their own: reorganizations of 3 and 70 blocks, a restored dump, a chain that was reset, another
// sender that uses the keys, full blocks without receipts by block, withdrawals above the price cap, and each kind of
// provider. `make soak` runs the full form: 16 keys, 4 processes, 20,000 transactions, again with a geth whose pool drops
// accepted transactions, and with such providers. It also rewinds the chain, and runs reorganizations of up to 200 blocks
// and restored dumps, while relayers and the operator's command are killed.
//
// Random choices follow from a seed, which is printed; -crashtest.seed repeats it. Processes and clocks do not repeat.
// So the same seed means the same faults at the same times, not the same run. -crashtest.logs keeps the logs of the
// processes.
package crashtest
