// Package store is the relayer's store, in Postgres, and the one place where nonces are given out.
//
// # Who gets which nonce
//
// A key's row is its lock. One database transaction locks the rows of all keys that may take something, in the order
// of their addresses, spreads what waits over the keys with the fewest pending, writes each transaction down with its
// nonce, moves next_nonce on, and commits. Nothing is signed and no node is asked meanwhile: the lock lasts for two round
// trips, for as many transactions as wait (package pool collects them). There is no nonce counter beside the row, so
// there is none to lose, to double or to run ahead: a transaction that did not commit took no nonce.
//
// Then whoever claimed signs, without holding anything, and stores the attempt: (tx_id, attempt) is unique, so of two
// processes that sign for the same transaction one stores, and only that one broadcasts. Each step leaves this behind when
// its process dies, or freezes, at any instruction:
//
//	before the claim committed    nothing: no nonce was taken
//	after it, before an attempt   a nonce without bytes: any process signs for it (Unsigned)
//	after the attempt             stored bytes, possibly sent: any process broadcasts them (Unsent)
//	after the broadcast           the same: a node that has them says so, and that is success
//
// # What waits
//
// A transaction that no key has room for waits for its target, the pool or one key, without a nonce. Table relayer_queues has
// the number of those for each target. Triggers of relayer_txs keep it: every statement that adds or removes such a row counts
// it in the same database transaction. So a claim costs the same whatever waits.
//
// # One nonce for life
//
// A row keeps its nonce. Bytes that were stored count as sent, whatever the nodes said, so everything that happens
// to a transaction later happens at the same nonce: a higher fee, other contents, or a no-op that takes the
// place of what is canceled, expired or impossible. A final status is given only to what stands in a block that is deep
// enough. The one exception is a nonce that somebody else has used, with our key and without us: once that
// transaction is found, by its hash, in a block that is deep enough, the row may get another one (Displaced).
//
// # What is unknown
//
// When the connection breaks while a commit is on its way, nobody knows. Accept then takes the same locks again, which
// waits for whatever the server may still be doing, and looks.
//
// # Order of locks
//
// Idempotency keys (sorted), then relayer_keys (by address), then relayer_txs (by address and nonce, then what waits, by its id),
// then relayer_budgets (by day, scope and subject), then relayer_queues (by target). New rows, which nobody else can hold, may
// come later. Mined transactions are
// stored the other way round, relayer_txs and then keys: these would be held for as long as hundreds of rows take, and
// everybody who posts waits for them. Where two processes believe that they follow the chain, or an operator starts over, this
// may deadlock; Postgres then ends one of the two, which does it again. So it is where contents are replaced while what was told of
// them is being settled: deliveries come after everything else, and in no order among themselves.
package store
