package sqs

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
	outboxsqs "github.com/rollcall-dev/rollcall/internal/outbox/sqs"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// batch is the most messages of one request.
	batch = 10
	// concurrent limits the requests of one kind that run concurrently.
	concurrent = 8
	// requestTimeout limits a request, without the time of a long poll.
	requestTimeout = 10 * time.Second
	// retention is how long a queue that this package creates keeps messages: the longest time that SQS allows.
	retention = 14 * 24 * time.Hour
	// redriveAfter is the maxReceiveCount of a queue that this package creates: the highest that SQS allows.
	redriveAfter = 1000
)

// client sends requests to SQS for the two queues of a location.
type client struct {
	location
	api  *awssqs.Client
	http *http.Client
}

func newClient(l location, credentials aws.CredentialsProvider) *client {
	c := &client{location: l, http: &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			TLSHandshakeTimeout:   5 * time.Second,
			ForceAttemptHTTP2:     true,
			MaxIdleConnsPerHost:   4 * concurrent,
			IdleConnTimeout:       time.Minute,
			ResponseHeaderTimeout: longPoll + requestTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	options := awssqs.Options{
		Region: l.region, Credentials: credentials, HTTPClient: httpClient{c.http},
		// The callers retry with longer pauses, and report the outage.
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = 2, 200*time.Millisecond }),
	}
	if l.endpoint != "" {
		options.BaseEndpoint = &l.endpoint
	}
	c.api = awssqs.New(options)
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// httpClient hides from net/http that the SDK's request body is an io.WriterTo. The SDK closes the body once SQS answers. WriteTo of a
// closed body fails (smithy-go 1.28), while Read returns io.EOF. On a busy machine net/http may ask for the end of the body only then. It
// would close the connection after such a failure, and the answer to a request that SQS has executed would be lost.
type httpClient struct{ *http.Client }

func (c httpClient) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.Client.Do(r)
}

// reason returns the text of an error of this package, without secrets.
func reason(err error) string {
	doing, service := "", "SQS"
	if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		doing = op.OperationName + ": "
		// The request for the credentials, of which the error is the reason.
		if inner, ok := errors.AsType[*smithy.OperationError](op.Err); ok && !errors.Is(err, outboxsqs.ErrNoCredentials) {
			doing, service = inner.OperationName+": ", inner.Service()
		}
	}
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		return doing + service + " answered " + answer.ErrorCode()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return doing + op.Error()
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return doing + lookup.Error()
	}
	if errors.Is(err, table.ErrDeadLetters) {
		return table.ErrDeadLetters.Error() + ": " + postgres.Reason(err)
	}
	if errors.Is(err, outboxsqs.ErrNoCredentials) {
		return doing + outboxsqs.ErrNoCredentials.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return doing + "no answer in time"
	}
	if partial, ok := errors.AsType[*partialError](err); ok {
		return partial.Error()
	}
	return doing + "the request failed"
}

// partialError means that SQS refused entries of a batch.
type partialError struct {
	operation, code string
	ours            bool // the entry itself is invalid, as SQS reports it: a repetition would fail, too
}

func (e *partialError) Error() string {
	return e.operation + ": SQS answered " + e.code + " for a message"
}

// partial returns the error of a refused entry.
func partial(operation string, refused types.BatchResultErrorEntry) error {
	return &partialError{operation: operation, code: aws.ToString(refused.Code), ours: refused.SenderFault}
}

// entry is an entry of a batch for a message that was received.
type entry struct {
	handle  string
	timeout time.Duration
}

// outcomes returns the result for each of n entries of a batch, from the refused ones and those that are confirmed. An entry
// in neither has the error of the request.
func outcomes[S any](n int, operation string, err error, done []S, id func(S) *string, refused []types.BatchResultErrorEntry) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
		if err == nil {
			errs[i] = &partialError{operation: operation, code: "no result"}
		}
	}
	set := func(text *string, err error) {
		if i, e := strconv.Atoi(aws.ToString(text)); e == nil && i >= 0 && i < n {
			errs[i] = err
		}
	}
	for _, s := range done {
		set(id(s), nil)
	}
	for _, r := range refused {
		set(r.Id, partial(operation, r))
	}
	return errs
}

func ids(i int) *string { return aws.String(strconv.Itoa(i)) }

// send sends up to batch messages to a queue, and returns the result for each.
func (c *client) send(ctx context.Context, queue string, messages []outgoing) []error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.SendMessageBatchInput{QueueUrl: &queue}
	for i, m := range messages {
		in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{
			Id: ids(i), MessageBody: &m.body, MessageAttributes: m.attributes(), DelaySeconds: int32(seconds(m.delay)),
		})
	}
	out, err := c.api.SendMessageBatch(ctx, in)
	if err != nil {
		out = &awssqs.SendMessageBatchOutput{}
	}
	return outcomes(len(messages), "SendMessageBatch", err, out.Successful, func(s types.SendMessageBatchResultEntry) *string { return s.Id }, out.Failed)
}

// remove deletes up to batch received messages.
func (c *client) remove(ctx context.Context, queue string, entries []entry) []error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &queue}
	for i, e := range entries {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: ids(i), ReceiptHandle: &e.handle})
	}
	out, err := c.api.DeleteMessageBatch(ctx, in)
	if err != nil {
		out = &awssqs.DeleteMessageBatchOutput{}
	}
	return outcomes(len(entries), "DeleteMessageBatch", err, out.Successful, func(s types.DeleteMessageBatchResultEntry) *string { return s.Id }, out.Failed)
}

// hide hides up to batch received messages for their timeouts from now.
func (c *client) hide(ctx context.Context, queue string, entries []entry) []error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &queue}
	for i, e := range entries {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: ids(i), ReceiptHandle: &e.handle, VisibilityTimeout: int32(seconds(e.timeout)),
		})
	}
	out, err := c.api.ChangeMessageVisibilityBatch(ctx, in)
	if err != nil {
		out = &awssqs.ChangeMessageVisibilityBatchOutput{}
	}
	return outcomes(len(entries), "ChangeMessageVisibilityBatch", err, out.Successful,
		func(s types.ChangeMessageVisibilityBatchResultEntry) *string { return s.Id }, out.Failed)
}

// receive waits up to wait for messages, and hides them for visibility.
func (c *client) receive(ctx context.Context, queue string, n int, wait, visibility time.Duration) ([]*received, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+requestTimeout)
	defer cancel()
	out, err := c.api.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: &queue, MaxNumberOfMessages: int32(min(n, batch)), WaitTimeSeconds: int32(seconds(wait)), VisibilityTimeout: int32(seconds(visibility)),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameSentTimestamp,
		},
		MessageAttributeNames: []string{"All"},
	})
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(visibility)
	messages := make([]*received, len(out.Messages))
	for i, m := range out.Messages {
		messages[i] = read(m, until)
	}
	return messages, nil
}

// depth returns the numbers of messages of a queue.
func (c *client) depth(ctx context.Context, queue string) (waiting, handled, delayed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	names := []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
	}
	out, err := c.api.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &queue, AttributeNames: names})
	if err != nil {
		return 0, 0, 0, err
	}
	var numbers [3]int
	for i, name := range names {
		numbers[i], _ = strconv.Atoi(out.Attributes[string(name)]) // absent: 0
	}
	return numbers[0], numbers[1], numbers[2], nil
}

// missing reports whether err means that a queue does not exist.
func missing(err error) bool {
	_, ok := errors.AsType[*types.QueueDoesNotExist](err)
	return ok
}

// ensure creates the queues if the location asks for it. Queues that exist keep their attributes.
func (c *client) ensure(ctx context.Context) error {
	if !c.create {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name, dead := c.names()
	age := strconv.Itoa(int(seconds(retention)))
	if err := c.createQueue(ctx, dead, map[string]string{"MessageRetentionPeriod": age}); err != nil {
		return err
	}
	out, err := c.api.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: &c.dead, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if err != nil {
		return err
	}
	arn := out.Attributes[string(types.QueueAttributeNameQueueArn)]
	return c.createQueue(ctx, name, map[string]string{
		"MessageRetentionPeriod": age,
		"RedrivePolicy":          `{"deadLetterTargetArn":` + strconv.Quote(arn) + `,"maxReceiveCount":` + strconv.Itoa(redriveAfter) + `}`,
	})
}

func (c *client) createQueue(ctx context.Context, name string, attributes map[string]string) error {
	_, err := c.api.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if _, exists := errors.AsType[*types.QueueNameExists](err); exists {
		return nil
	}
	return err
}

// each calls do for parts of up to batch items, for several parts concurrently, and returns when all have returned.
func each[T any](items []T, do func(part []T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, concurrent)
	for begin := 0; begin < len(items); begin += batch {
		part := items[begin:min(begin+batch, len(items))]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(part)
		})
	}
	wg.Wait()
}

// seconds rounds up to seconds.
func seconds(d time.Duration) int64 { return int64((max(d, 0) + time.Second - 1) / time.Second) }
