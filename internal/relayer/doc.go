// Package relayer holds the words of the relayer: transactions, keys, statuses and errors. Its
// sub-packages work with them and meet in package service:
//
//	store      Postgres: keys, transactions, signed attempts, webhook deliveries; who gets which nonce
//	service    the relayer as its API sees it: checks and accepts transactions
//	tracker    follows the chain: mined, confirmed, reorganized, stuck, dropped
//	api        OpenZeppelin Relayer's HTTP API
//	sender     signs and broadcasts
//	signer     keys and signatures
//	safeguard  limits and budgets
//
// # Statuses
//
// A transaction's status is stored in our words. OpenZeppelin's clients see theirs, and the relay path has its own:
//
//	stored                     OpenZeppelin   relay path   meaning
//	allocated, never signed    pending        submitting   accepted; it waits for a key, or has a nonce and is about to be signed
//	allocated, signed          sent           submitting   signed and stored; from here on it counts as possibly sent
//	broadcasted                submitted      submitted    a node took it
//	unknown                    submitted      submitted    a node may have taken it: no answer came; it is sent again
//	mined                      mined          mined        in a block, which a reorganization can still take away
//	confirmed                  confirmed      confirmed    in a block that is deep enough, and it succeeded
//	reverted                   failed         failed       in a block that is deep enough, and its execution failed
//	failed                     failed         failed       a no-op took its nonce, since no node would ever have taken it
//	replaced                   failed         failed       somebody else's transaction took its nonce, and it was not to be sent again
//	dropped                    failed         failed       the chain that it was sent on is gone
//	canceled                   canceled       canceled     taken back before it was signed, or a no-op took its nonce
//	expired                    expired        expired      past its valid_until before it was signed, or a no-op took its nonce
//
// Confirmed, reverted, failed, replaced, dropped, canceled and expired are final: they change only where an operator takes a
// transaction back whose block a deep reorganization took away (rollcall keys resync --reorganized). While a cancellation or an expiry is on
// its way the status stays what it is, and [Transaction.Intent] says what is wanted.
package relayer
