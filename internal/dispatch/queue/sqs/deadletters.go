package sqs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
)

const (
	// collectEvery is how often the messages of the dead-letter queue are collected.
	collectEvery = time.Minute
	// collectWait is how long a request for them waits. With less than a second, SQS asks only some of its servers.
	collectWait = time.Second
	// collectHide is how long a message of the dead-letter queue stays hidden if it could not be stored.
	collectHide = time.Minute
	// mostForeign is how many messages of others end a collection.
	mostForeign = 1000
)

// collect moves the messages of the dead-letter queue to the table, now and each minute until ctx ends. It ends early if the queue has
// messages of others: to receive them again and again would hide them from their owner.
func (q *Queue) collect(ctx context.Context) {
	ticker := time.NewTicker(collectEvery)
	defer ticker.Stop()
	for checked := false; ; {
		if !checked {
			checked = q.checkRedrive(ctx) == nil
		}
		switch err := q.collectOnce(ctx); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, table.ErrForeign):
			q.collecting.Succeeded()
			q.cfg.Logger.Warn("dead letters of the broker are collected at starts only", "component", "consumer", "err", err)
			return
		case err != nil:
			q.collecting.Failed(err)
		default:
			q.collecting.Succeeded()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// collectOnce moves the messages that are there, and returns table.ErrForeign if it left some. It receives nothing while the database
// does not store messages, because each delivery counts towards a limit of SQS. The end of ctx does not break off a request at once,
// because SQS would hide the messages of its answer.
func (q *Queue) collectOnce(ctx context.Context) (err error) {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(shutdownTimeout, cancel) })()
	var foreign []entry
	defer func() {
		each(foreign, func(part []entry) { q.client.hide(requests, q.client.dead, part) }) // an error leaves them hidden for collectHide
		if len(foreign) > 0 && err == nil {
			err = table.ErrForeign
		}
	}()
	var failed error // the first of a message, which appears again after collectHide
	for ctx.Err() == nil && len(foreign) < mostForeign {
		if err := q.Ready(requests); err != nil {
			return err
		}
		messages, err := q.client.receive(requests, q.client.dead, batch, collectWait, collectHide)
		if missing(err) || err == nil && len(messages) == 0 {
			break
		}
		if err != nil {
			return err
		}
		var stored []entry
		for _, m := range messages {
			switch err := q.Collect(requests, m.letter()); {
			case err == nil:
				stored = append(stored, entry{handle: m.handle})
			case errors.Is(err, table.ErrForeign):
				foreign = append(foreign, entry{handle: m.handle})
			default:
				failed = cmp.Or(failed, err)
			}
		}
		if len(stored) == 0 {
			continue
		}
		for _, err := range q.client.remove(requests, q.client.dead, stored) {
			if err != nil {
				return err
			}
		}
	}
	return failed
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
