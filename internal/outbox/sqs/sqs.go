package sqs

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

const (
	// batch is the most messages of one request.
	batch = 10
	// concurrent limits the requests of one call that run concurrently.
	concurrent = 8
	// longPoll is how long a request waits for messages. A stop waits for its end.
	longPoll = 5 * time.Second
	// visibility is after how long a message is delivered again that was not acknowledged. It exceeds the time of a turn.
	visibility = 30 * time.Second
	// requestTimeout limits a request, without the time of a long poll.
	requestTimeout = 10 * time.Second
)

// Transport is a queue in SQS. It implements [outbox.Transport].
type Transport struct {
	location
	api  *awssqs.Client
	http *http.Client
}

// New returns the transport of a URL, or all problems of the URL. It does not connect.
func New(url string) (*Transport, error) {
	l, err := parse(url)
	if err != nil {
		return nil, err
	}
	return newTransport(l, Credentials(l.region)), nil
}

// Close closes idle connections.
func (t *Transport) Close() error {
	t.http.CloseIdleConnections()
	return nil
}

// Send implements [outbox.Transport].
func (t *Transport) Send(ctx context.Context, ids []string) error {
	err := each(ids, func(part []string) error { return t.send(ctx, part) })
	if missing(err) && t.create {
		if err = t.createQueue(ctx); err == nil {
			err = each(ids, func(part []string) error { return t.send(ctx, part) })
		}
	}
	return readable(err)
}

func (t *Transport) send(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.SendMessageBatchInput{QueueUrl: &t.queue}
	for i, id := range ids {
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: number(i), MessageBody: &id})
	}
	out, err := t.api.SendMessageBatch(ctx, in)
	if err != nil {
		return err
	}
	for _, refused := range out.Failed {
		return &refusedError{"SendMessageBatch", aws.ToString(refused.Code)}
	}
	if len(out.Successful) != len(ids) {
		return &refusedError{"SendMessageBatch", "no result"}
	}
	return nil
}

// Receive implements [outbox.Transport].
func (t *Transport) Receive(ctx context.Context, n int) ([]outbox.Message, error) {
	// If ctx ends, SQS may be answering. The messages of a request that is broken off would be hidden from other workers.
	working := context.WithoutCancel(ctx)
	messages, err := t.receive(working, min(n, batch), longPoll)
	if missing(err) && t.create {
		if err = t.createQueue(working); err == nil {
			messages, err = t.receive(working, min(n, batch), longPoll)
		}
	}
	if len(messages) == batch && n > batch {
		messages = append(messages, t.rest(working, n-batch)...)
	}
	if ctx.Err() != nil {
		// After an error SQS delivers them again when they become visible.
		_ = each(messages, func(part []outbox.Message) error { return t.show(working, part) })
		return nil, ctx.Err()
	}
	return messages, readable(err)
}

// rest receives up to n messages that wait. Errors are those of the next call, too.
func (t *Transport) rest(ctx context.Context, n int) (all []outbox.Message) {
	var mu sync.Mutex
	_ = each(make([]struct{}, min(n, concurrent*batch)), func(part []struct{}) error {
		messages, err := t.receive(ctx, len(part), 0)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, messages...)
		return err
	})
	return all
}

// receive waits up to a time for at most n messages.
func (t *Transport) receive(ctx context.Context, n int, wait time.Duration) ([]outbox.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+requestTimeout)
	defer cancel()
	out, err := t.api.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: &t.queue, MaxNumberOfMessages: int32(n), WaitTimeSeconds: int32(wait / time.Second), VisibilityTimeout: int32(visibility / time.Second),
	})
	if err != nil {
		return nil, err
	}
	messages := make([]outbox.Message, len(out.Messages))
	for i, m := range out.Messages {
		messages[i] = outbox.Message{ID: aws.ToString(m.Body), Receipt: aws.ToString(m.ReceiptHandle)}
	}
	return messages, nil
}

// show makes messages visible to other workers.
func (t *Transport) show(ctx context.Context, messages []outbox.Message) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &t.queue}
	for i, m := range messages {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{Id: number(i), ReceiptHandle: receipt(m)})
	}
	_, err := t.api.ChangeMessageVisibilityBatch(ctx, in)
	return err
}

// Acknowledge implements [outbox.Transport].
func (t *Transport) Acknowledge(ctx context.Context, messages []outbox.Message) error {
	return readable(each(messages, func(part []outbox.Message) error { return t.remove(ctx, part) }))
}

func (t *Transport) remove(ctx context.Context, messages []outbox.Message) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &t.queue}
	for i, m := range messages {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: number(i), ReceiptHandle: receipt(m)})
	}
	out, err := t.api.DeleteMessageBatch(ctx, in)
	if err != nil {
		return err
	}
	for _, refused := range out.Failed {
		if !refused.SenderFault { // otherwise the message was deleted, or delivered again
			return &refusedError{"DeleteMessageBatch", aws.ToString(refused.Code)}
		}
	}
	return nil
}

func number(i int) *string { return aws.String(strconv.Itoa(i)) }

func receipt(m outbox.Message) *string {
	handle := m.Receipt.(string)
	return &handle
}

// createQueue creates the queue. One that exists keeps its attributes.
func (t *Transport) createQueue(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := t.api.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: aws.String(path.Base(t.queue))})
	if _, exists := errors.AsType[*types.QueueNameExists](err); exists {
		return nil
	}
	return err
}

// missing reports whether err means that a queue does not exist.
func missing(err error) bool {
	_, ok := errors.AsType[*types.QueueDoesNotExist](err)
	return ok
}

// each calls do for parts of up to batch items, for several parts concurrently, and returns the first error when all have returned.
func each[T any](items []T, do func(part []T) error) error {
	var group errgroup.Group
	group.SetLimit(concurrent)
	for begin := 0; begin < len(items); begin += batch {
		part := items[begin:min(begin+batch, len(items))]
		group.Go(func() error { return do(part) })
	}
	return group.Wait()
}
