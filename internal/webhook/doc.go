// Package webhook delivers what the store writes into relayer_deliveries: one row for each change of a transaction's
// status and each configured target, written in the same database transaction as the change. So nothing is told that
// did not happen, and nothing that happened stays untold.
//
// # What a target receives
//
// A POST with OpenZeppelin Relayer's body: id, event, payload and timestamp, where the payload of "transaction_update"
// is the transaction as the API shows it, as it was at that change, with payload_type and our revision; and that
// of "relayer_state_update" is a [RelayerDisabled] or a [RelayerEnabled]. It is signed as package signature says, each
// attempt again.
//
// The body's timestamp is the attempt's, as that of webhook-timestamp. In OpenZeppelin's dialect it is the only time
// that the signature covers, so receivers hold it against their clock to tell a replay; a delivery that succeeds after
// hours must pass there. When things happened stands in the payload.
//
// # Guarantees
//
// At least once: a delivery is repeated, with the same id, when its process dies between the target's answer and the
// note of it, or when the answer is lost. Any 2xx is success. Everything else is tried again, with exponential backoff,
// jitter and the target's own Retry-After within bounds. There is no answer that gives up at once, 410 Gone neither: a
// target is the operator's own choice, and what answers 404, 410 or 401 during a deployment is a proxy.
//
// In order: of one transaction and target only the lowest revision that is due is sent, so a receiver sees revisions
// rise. The exceptions: a process that froze in the middle of a request for longer than its claim lasts may have that
// request arrive late; and what an operator replays comes late by nature. A receiver that keeps the highest revision
// it has seen is right in each case.
//
// Dead letters: a delivery that failed for a day is set aside, for [Outbox.List] and [Outbox.Replay]. Later revisions of the
// same transaction go on then: each carries the whole transaction, so the receiver lacks a step, not the state. A
// delivery that was never tried, because its target was down, stays due until the target is back.
//
// # Claims
//
// A claim sets claimed_until to a time in the future, until which no other process claims the row; no transaction, lock
// or connection is held while HTTP is on its way. It ends by being settled, or by time. attempts grows with each claim
// and, with the claimant's id, is what a late settlement of an expired claim is recognized by.
//
// One loop a process talks to the database, in one round trip a turn: it settles what was delivered since the last turn
// and claims what there is room for, in one transaction. Under load a turn handles hundreds of rows. A turn that claims waits
// for the disk, because the change that a webhook tells of must be on it before the webhook is sent, and the store does not
// always wait for that. A turn that only settles does not wait (synchronous_commit is off in it): what Postgres loses when it
// crashes is repeated.
//
// The cost of a turn does not depend on the number of rows, nor on the statistics of the table:
//
//   - A row stores what can change of a transaction; the claim reads the rest from the transaction's row.
//   - A claim changes no column of an index, so it writes one short record (a HOT update).
//   - The planner has one index for each query, whatever it believes about the table's size.
//   - A revision that waits for a lower one is deferred behind it, out of the way of later claims.
//   - Only one claim a second begins at the oldest due row, and passes by index entries of rows that were delivered.
//
// Delivered rows are kept for Config.Retention, so that an operator can replay them.
//
// # Targets do not wait for each other
//
// Each has its own share of the concurrency, and its own claims. A target that failed for three different
// transactions without a success in between is down: it gets one delivery at a time, with pauses up to 30 s, until one
// succeeds; then what waits out its backoff is tried at once, and the concurrency grows again with every success.
//
// # Where requests may go
//
// Not to private networks unless configured, and to link-local addresses, cloud metadata services and multicast groups
// never. The address that is checked is the one that is dialed, after the name was resolved, so that a name whose address
// changes is no way around. Redirects are not followed, the environment's proxies are not used.
package webhook
