package sqs

import (
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// The attributes of a message. Times are in Unix milliseconds.
const (
	attrEnqueued = "enqueued_at"
	attrAttempts = "attempts" // deliveries of earlier copies of the message
	attrFailures = "failures" // those that count
	// The attributes of a dead letter that an older version sent.
	attrReason = "reason"
	attrDead   = "dead_at"
)

// outgoing is a message to be sent.
type outgoing struct {
	body               string
	enqueuedAt         time.Time
	attempts, failures int
	delay              time.Duration
}

func (m outgoing) attributes() map[string]types.MessageAttributeValue {
	all := map[string]types.MessageAttributeValue{attrEnqueued: number(m.enqueuedAt.UnixMilli())}
	if m.attempts > 0 {
		all[attrAttempts] = number(int64(m.attempts))
	}
	if m.failures > 0 {
		all[attrFailures] = number(int64(m.failures))
	}
	return all
}

func number(n int64) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("Number"), StringValue: aws.String(strconv.FormatInt(n, 10))}
}

// received is a message that SQS has delivered.
type received struct {
	queue.Message
	valid    bool // the body is a transaction's id
	failures int  // with this delivery
	earlier  int  // deliveries of earlier copies
	body     string
	id       string // SQS's
	handle   string
	reason   string
	deadAt   time.Time
	// until is when the message becomes visible, by this process's clock. The receiver guards it.
	until time.Time
}

// read reads a message. Its attributes may be missing or malformed if other programs send to the queue.
func read(m types.Message, until time.Time) *received {
	attribute := func(name string) int64 {
		n, _ := strconv.ParseInt(aws.ToString(m.MessageAttributes[name].StringValue), 10, 64)
		return max(n, 0)
	}
	system := func(name types.MessageSystemAttributeName) int64 {
		n, _ := strconv.ParseInt(m.Attributes[string(name)], 10, 64)
		return max(n, 0)
	}
	const many = 1_000_000 // keeps sums far from an overflow
	deliveries := int(min(max(system(types.MessageSystemAttributeNameApproximateReceiveCount), 1), many))
	r := &received{
		body: aws.ToString(m.Body), id: aws.ToString(m.MessageId), handle: aws.ToString(m.ReceiptHandle), until: until,
		reason: aws.ToString(m.MessageAttributes[attrReason].StringValue), failures: deliveries + int(min(attribute(attrFailures), many)),
	}
	r.earlier = int(min(attribute(attrAttempts), many))
	r.Attempts = deliveries + r.earlier
	enqueued := attribute(attrEnqueued)
	if enqueued == 0 {
		enqueued = system(types.MessageSystemAttributeNameSentTimestamp)
	}
	r.EnqueuedAt = time.UnixMilli(enqueued)
	if dead := attribute(attrDead); dead > 0 {
		r.deadAt = time.UnixMilli(dead)
	}
	if id, err := uuid.Parse(r.body); err == nil && id != uuid.Nil {
		r.ID, r.valid = id, true
	}
	return r
}

// copied returns the message as one to be sent again, with its counts.
func (r *received) copied() outgoing {
	return outgoing{body: r.body, enqueuedAt: r.EnqueuedAt, attempts: r.Attempts, failures: r.failures}
}

// letter returns the message as one of the dead-letter queue. It has no id if the body is none.
func (r *received) letter() queue.DeadLetter {
	return queue.DeadLetter{ID: r.ID, Attempts: r.earlier, Reason: r.reason, EnqueuedAt: r.EnqueuedAt, DeadAt: r.deadAt}
}
