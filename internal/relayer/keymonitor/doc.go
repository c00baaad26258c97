// Package keymonitor disables, enables and tops up the keys of a relayer. cmd/rollcall runs a Monitor beside the tracker; it
// reads balances from the nodes, decides, and calls the store, which records and announces each change.
//
// # Which process
//
// One process of a pool holds the tracker lease. The Monitor of that process reads the balances, decides, and tops up.
// Two processes that act at once decide the same under the same locks, and a key gets no two top-ups. Each process counts
// rejected broadcasts and signer failures of its own sends.
//
// # Disabling and enabling
//
// The system disables and enables; an operator pauses and resumes. Neither undoes the other's change. A key is disabled
// below its minimum balance, and enabled a fifth above it, so that it does not flap. After repeated errors it stays
// disabled for a time. That time doubles after each check at which nodes still reject the key's pending transactions.
//
// # Limits of the guarantees
//
// Balances are read every few seconds, and at least every 40 s while no transaction is pending. In between a key may get
// more transactions than it can pay for. These are sent anyway, rejected by nodes, and sent again when there is ether. After
// several rejections the key is disabled. The sender recognizes a rejection in unknown words as lack of funds by the key's
// balance at that moment.
package keymonitor
