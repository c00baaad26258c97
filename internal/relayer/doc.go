// Package relayer defines the relayer's types: transactions, keys, statuses and errors. Its sub-packages use them, and
// package service connects them:
//
//	store      Postgres: keys, transactions, signed attempts, webhook deliveries; allocates nonces
//	service    implements the API's service: checks and accepts transactions
//	tracker    tracks the chain: mined, confirmed, reorganized, stuck, dropped
//	api        OpenZeppelin Relayer's HTTP API
//	sender     signs and broadcasts
//	signer     keys and signatures
//	limits     rates of requests
//	keymonitor balances, disabled keys, top-ups
//	events     webhooks with OpenZeppelin Relayer's bodies, of transactions and keys
//
// # Statuses
//
// Transactions are stored with this relayer's statuses. OpenZeppelin's clients receive theirs, and the relay path has its
// own:
//
//	stored                     OpenZeppelin   relay path   meaning
//	allocated, never signed    pending        submitting   accepted; it is queued for a key, or has a nonce and is about to be signed
//	allocated, signed          sent           submitting   signed and stored; from here on it counts as possibly sent
//	broadcasted                submitted      submitted    a node accepted it
//	unknown                    submitted      submitted    a node may have accepted it: there was no response; it is sent again
//	mined                      mined          mined        in a block, which a reorganization can still remove
//	confirmed                  confirmed      confirmed    in a block that is deep enough, and it succeeded
//	reverted                   failed         failed       in a block that is deep enough, and its execution failed
//	failed                     failed         failed       a no-op took its nonce, because no node would ever have accepted it
//	replaced                   failed         failed       another sender's transaction took its nonce, and it was not to be resent
//	dropped                    failed         failed       the chain that it was sent on was reset
//	canceled                   canceled       canceled     canceled before it was signed, or a no-op took its nonce
//	expired                    expired        expired      past its valid_until before it was signed, or a no-op took its nonce
//
// Confirmed, reverted, failed, replaced, dropped, canceled and expired are final. They change only if an operator takes
// back a transaction whose block a deep reorganization removed (rollcall keys resync --reorganized). While a cancellation
// or an expiry is pending, the status does not change, and [Transaction.Intent] holds the requested outcome.
package relayer
