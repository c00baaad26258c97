package sqs

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
)

const (
	// collectEvery is how often the messages of the dead-letter queue are collected.
	collectEvery = time.Minute
	// collectWait is how long a request for them waits. With less than a second, SQS asks only some of its servers.
	collectWait = time.Second
	// collectHide is how long a message of the dead-letter queue stays hidden if it could not be stored.
	collectHide = time.Minute
)

// collect moves the messages of the dead-letter queue to the table, now and each minute until ctx ends.
func (q *Queue) collect(ctx context.Context) {
	ticker := time.NewTicker(collectEvery)
	defer ticker.Stop()
	for checked := false; ; {
		if !checked {
			checked = q.checkRedrive(ctx) == nil
		}
		if err := q.collectOnce(ctx); err != nil && ctx.Err() == nil {
			q.cfg.Logger.Debug("dead letters of the broker not collected", "err", reason(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// collectOnce moves the messages that are there. It receives nothing while the database does not answer, because each delivery counts
// towards a limit of SQS. The end of ctx does not break off a request, because SQS would hide the messages of its answer.
func (q *Queue) collectOnce(ctx context.Context) error {
	requests := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		if err := q.Ready(requests); err != nil {
			return err
		}
		messages, err := q.client.receive(requests, q.client.dead, batch, collectWait, collectHide)
		if missing(err) || err == nil && len(messages) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if err := q.keep(requests, messages); err != nil {
			return err
		}
		var entries []entry
		for _, m := range messages {
			entries = append(entries, entry{handle: m.handle})
		}
		for _, err := range q.client.remove(requests, q.client.dead, entries) {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// keep stores messages of the dead-letter queue. A dead letter has a time, and any other message was moved by the queue's redrive policy.
func (q *Queue) keep(ctx context.Context, messages []*received) error {
	for _, m := range messages {
		var err error
		switch {
		case !m.valid:
			q.cfg.LogDeadLetter(m.Message, malformed)
		case m.deadAt.IsZero():
			err = q.Return(ctx, m.ID)
		default:
			err = q.Bury(ctx, queue.DeadLetter{ID: m.ID, Attempts: m.earlier, Reason: m.reason, EnqueuedAt: m.EnqueuedAt})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkRedrive warns if the queue's redrive policy moves messages before they have failed as often as they may.
func (q *Queue) checkRedrive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	out, err := q.client.api.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: &q.client.queue, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameRedrivePolicy},
	})
	if err != nil {
		return err
	}
	most, limited := maxReceives(out.Attributes[string(types.QueueAttributeNameRedrivePolicy)])
	if need := 2 * q.cfg.MaxAttempts; limited && most < need {
		q.cfg.Logger.Warn("redrive policy moves messages before they become dead letters: raise its maxReceiveCount", "component", "consumer", "max_receive_count", most, "needed", need)
	}
	return nil
}

// maxReceives returns the maxReceiveCount of a redrive policy. SQS returns it as a number, or as the text that was set.
func maxReceives(policy string) (n int, limited bool) {
	var p struct {
		MaxReceiveCount json.RawMessage `json:"maxReceiveCount"`
	}
	if json.Unmarshal([]byte(policy), &p) != nil {
		return 0, false
	}
	text := string(p.MaxReceiveCount)
	if unquoted, err := strconv.Unquote(text); err == nil {
		text = unquoted
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}
