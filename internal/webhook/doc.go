// Package webhook delivers the rows of a table: one row for each change of a subject, such as a transaction, and each
// configured target. The rows are entries of package outbox, which claims, retries and orders them. The owner of the table
// inserts them in the same database transaction as the change. So every change is delivered, and only committed changes are.
//
// # Owners
//
// A [Source] describes the owner's table, and how a row becomes an event. This package knows no column of the owner's
// other tables, and the owner writes the rows with its own SQL. Package internal/relayer/events has the Source of a
// relayer: its payloads come from the rows of transactions. Package internal/dispatch/store has that of the relay path's
// clients: its rows hold the changes.
//
// A process of the owner runs a [Deliverer]. Package deadletter shows operators the deliveries.
//
// # What a target receives
//
// A POST with OpenZeppelin Relayer's body: id, event, payload and timestamp. The owner defines the event and its payload.
// Each attempt is signed separately, as package signature describes.
//
// The body's timestamp is that of the attempt, like webhook-timestamp. In OpenZeppelin's dialect it is the only time
// that the signature covers, so receivers compare it with their clock to detect a replay. A delivery that succeeds
// after hours must pass that check. The payload holds the times of the events.
//
// # Guarantees
//
// At least once: a delivery is repeated, with the same id, when its process dies after the target's answer and before
// the answer is stored, or when the answer is lost. Any 2xx is success. Every other answer is retried, with exponential
// backoff, jitter and the target's own Retry-After within bounds. No answer ends the retries at once, not even 410
// Gone: the operator chose the target, and a proxy may answer 404, 410 or 401 during a deployment.
//
// In order: of one subject and target only the lowest due revision is sent, so a receiver sees revisions rise.
// There are two exceptions. A process that froze during a request for longer than its claim lasts may send that request
// late. A delivery that an operator replays comes after those that are due, by design. A receiver that keeps the highest
// revision it has seen is correct in each case.
//
// Dead letters: a delivery that fails for a day becomes a dead letter, which an operator can replay. Later
// revisions of the same subject are then delivered. If each carries the subject's whole state, the receiver misses a step,
// not the state. The day begins with the first failure. A delivery that was never tried, because its target was down, stays
// due until the target is back.
//
// Delivered rows are kept for Config.Retention, so that an operator can replay them.
//
// # Targets do not wait for each other
//
// One worker of package outbox delivers to all targets, each a lane. A target has its own share of the concurrency, and the
// worker claims for it only as many deliveries as may be sent at once. So a slow target holds its share alone. Targets are
// receivers in the tens, not in the thousands.
//
// A target that failed for three different subjects without a success in between is down. It gets one delivery at a time,
// with pauses up to 30 s, until one succeeds. Then deliveries in backoff are tried at once, and the concurrency grows again
// with every success.
//
// # Without the database
//
// A Deliverer that cannot reach the database logs each cause once, and goes on when the database answers. It has no health and no gauge
// of its own. Its process uses the same database, and reports by its own health that it cannot. A process that cannot deliver alone, for
// example because a right is missing, must stay in use: it accepts transactions, and other processes deliver their webhooks. If none does,
// rollcall_webhook_oldest_due_seconds grows, because counting does not depend on delivering.
//
// # Where requests may go
//
// Private networks are allowed only if configured. Link-local addresses, cloud metadata services and multicast groups
// are never allowed. The check uses the resolved address that is dialed, so a name whose address changes cannot bypass
// it. Redirects are not followed, and the environment's proxies are not used.
package webhook
