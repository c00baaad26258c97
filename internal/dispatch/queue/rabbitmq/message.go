package rabbitmq

import (
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// The headers of a message. Times are in Unix milliseconds.
const (
	headerEnqueued  = "enqueued_at"
	headerAttempts  = "attempts"   // deliveries of earlier copies of the message
	headerFailures  = "failures"   // those that count
	headerNotBefore = "not_before" // of a delayed message
	headerReason    = "reason"     // of the latest failure
	headerDead      = "dead_at"    // of a dead letter that an older version sent
	// headerCount is RabbitMQ's own: earlier deliveries of this copy.
	headerCount = "x-delivery-count"
)

// outgoing is a message to be sent.
type outgoing struct {
	queue                 string
	body                  []byte
	enqueuedAt, notBefore time.Time
	attempts, failures    int
	reason                string
}

func (m outgoing) publishing(id string) amqp.Publishing {
	headers := amqp.Table{headerEnqueued: m.enqueuedAt.UnixMilli()}
	if m.attempts > 0 {
		headers[headerAttempts] = int64(m.attempts)
	}
	if m.failures > 0 {
		headers[headerFailures] = int64(m.failures)
	}
	if m.reason != "" {
		headers[headerReason] = m.reason
	}
	if !m.notBefore.IsZero() {
		headers[headerNotBefore] = m.notBefore.UnixMilli()
	}
	return amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: id, ContentType: "text/plain", Headers: headers, Body: m.body}
}

// received is a message that RabbitMQ has delivered.
type received struct {
	queue.Message
	valid     bool // the body is a transaction's id
	failures  int  // with this delivery
	earlier   int  // deliveries of earlier copies
	reason    string
	notBefore time.Time // zero if it was not delayed
	deadAt    time.Time
	delivery  amqp.Delivery
	session   *session
}

// read reads a message. Its headers may be missing or malformed if other programs send to the queue.
func read(d amqp.Delivery) *received {
	number := func(name string) int64 {
		switch n := d.Headers[name].(type) {
		case int64:
			return max(n, 0)
		case int32:
			return int64(max(n, 0))
		}
		return 0
	}
	instant := func(name string) (t time.Time) {
		if ms := number(name); ms > 0 {
			t = time.UnixMilli(ms)
		}
		return t
	}
	const many = 1_000_000 // keeps sums far from an overflow
	lost := int(min(number(headerCount), many))
	r := &received{
		delivery: d, earlier: int(min(number(headerAttempts), many)), failures: lost + 1 + int(min(number(headerFailures), many)),
		notBefore: instant(headerNotBefore), deadAt: instant(headerDead),
	}
	r.reason, _ = d.Headers[headerReason].(string)
	r.Attempts = lost + 1 + r.earlier
	r.EnqueuedAt = instant(headerEnqueued)
	if id, err := uuid.Parse(string(d.Body)); err == nil && id != uuid.Nil {
		r.ID, r.valid = id, true
	}
	return r
}

// copied returns the message as one to be sent again, with its counts.
func (r *received) copied(to string) outgoing {
	return outgoing{queue: to, body: r.delivery.Body, enqueuedAt: r.EnqueuedAt, attempts: r.Attempts, failures: r.failures, reason: r.reason}
}

// letter returns the message as one of <queue>.dead. It has no id if the body is none.
func (r *received) letter() queue.DeadLetter {
	return queue.DeadLetter{ID: r.ID, Attempts: r.earlier, Reason: r.reason, EnqueuedAt: r.EnqueuedAt, DeadAt: r.deadAt}
}

// minDelay is the time of the first delay queue. Each further one has twice the time, up to maxLevel doublings.
const (
	minDelay = 500 * time.Millisecond
	maxLevel = 10
)

// delayStep returns the time of the delay queue for a message that waits for d: the longest one that does not exceed d,
// or a longer one that exceeds it by an eighth at most. The message comes back and may wait again.
func delayStep(d time.Duration) time.Duration {
	step := minDelay
	for range maxLevel {
		if 2*step > d+d/8 {
			break
		}
		step *= 2
	}
	return step
}
