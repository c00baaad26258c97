// Package torture proves what the relayer promises about nonces, on real parts: relayer processes, a Postgres, a geth, and
// proxies between the two last and the first. It holds no code of the product.
//
// # The claim
//
// Whatever happens to processes, nodes, network and database, in the end every transaction that was accepted is mined
// exactly once, and nothing else is: accepted is what a POST was answered 200 for, and what is stored under the idempotency
// key of a POST whose answer was lost. No nonce is used twice and none is left out, no key is stuck, and the store agrees
// with the chain about every key's next nonce and pending count.
//
// # Forms
//
// The tests hold a small form, of a few hundred transactions, in which every kind of fault strikes at least once; and what
// needs a scene of its own: reorganizations, a chain that was reset, somebody else who uses the keys. `make soak` runs the
// full form: 16 keys, 4 processes, 20,000 transactions, and once more with a geth whose pool drops what it accepted.
//
// What is random follows from a seed, which is printed; -torture.seed repeats it. Processes and clocks do not repeat, so the
// same seed means the same faults at the same times, not the same run. -torture.logs keeps the logs of the processes.
package torture
