package sqs_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/sqs"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
)

// create creates a queue, and returns its URL and ARN.
func create(t *testing.T, api *awssqs.Client, name string, attributes map[string]string) (address, arn string) {
	t.Helper()
	made, err := api.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	require.NoError(t, err)
	const queueArn = types.QueueAttributeNameQueueArn
	got, err := api.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: made.QueueUrl, AttributeNames: []types.QueueAttributeName{queueArn}})
	require.NoError(t, err)
	return *made.QueueUrl, got.Attributes[string(queueArn)]
}

// The dead-letter queue has dead letters of an older version, messages that the redrive policy moved, and those of other programs. The first
// stay dead letters, the second return, and the last stay where they are. The operator learns of them, and that the policy is too strict.
func TestReceive_MessagesOfTheDeadQueue_AreCollected(t *testing.T) {
	t.Parallel()
	endpoint := testsqs.Endpoint(t)
	api := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
	address := queueURL(t, endpoint)
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	name := path.Base(parsed.Path)
	dead, arn := create(t, api, name+"-dead", nil)
	create(t, api, name, map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"` + arn + `","maxReceiveCount":3}`})
	send := func(body string, attributes map[string]types.MessageAttributeValue) {
		t.Helper()
		_, err := api.SendMessage(t.Context(), &awssqs.SendMessageInput{QueueUrl: &dead, MessageBody: &body, MessageAttributes: attributes})
		require.NoError(t, err)
	}
	number := func(n int64) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: aws.String("Number"), StringValue: aws.String(strconv.FormatInt(n, 10))}
	}
	letter, moved, stranger, strangersLetter := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	died := time.Now().Add(-time.Hour)
	send(letter.String(), map[string]types.MessageAttributeValue{
		"attempts": number(20), "dead_at": number(died.UnixMilli()), "enqueued_at": number(died.UnixMilli()),
		"reason": {DataType: aws.String("String"), StringValue: aws.String("cannot be sent")},
	})
	send("no id", nil)
	send(stranger.String(), nil)
	send(strangersLetter.String(), map[string]types.MessageAttributeValue{"dead_at": number(died.UnixMilli())})
	send(moved.String(), nil)

	var log lockedBuffer
	db := testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).Pool(t)
	require.NoError(t, queuetest.Transactions(t.Context(), db, letter, moved))
	q, err := sqs.New(db, address, queue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	delivered := make(chan uuid.UUID, 10)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 2)
	go func() { ended <- q.Run(ctx) }()
	go func() {
		ended <- q.Receive(ctx, 4, func(_ context.Context, m queue.Message) queue.Verdict {
			delivered <- m.ID
			return queue.Done()
		})
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		require.NoError(t, q.Close())
	})
	select {
	case id := <-delivered:
		require.Equal(t, moved, id)
	case <-time.After(3 * time.Minute):
		require.FailNow(t, "the moved message does not return")
	}
	var letters []queue.DeadLetter
	require.Eventually(t, func() bool {
		letters, err = q.List(t.Context(), 10)
		return err == nil && len(letters) > 0
	}, 2*time.Minute, 20*time.Millisecond)
	require.Len(t, letters, 1)
	require.Equal(t, letter, letters[0].ID)
	require.Equal(t, "cannot be sent", letters[0].Reason)
	require.Equal(t, 20, letters[0].Attempts)
	require.WithinDuration(t, died, letters[0].DeadAt, time.Second)
	n, err := q.Replay(t.Context(), letter)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, letter, <-delivered)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "max_receive_count=3 needed=40") }, 2*time.Minute, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "the dead-letter queue has messages of other programs")
	}, 2*time.Minute, 20*time.Millisecond)
	left := map[string]bool{}
	require.Eventually(t, func() bool { // they are visible again before collectHide has passed, which their owner would notice
		got, err := api.ReceiveMessage(t.Context(), &awssqs.ReceiveMessageInput{QueueUrl: &dead, MaxNumberOfMessages: 10})
		require.NoError(t, err)
		for _, m := range got.Messages {
			left[*m.Body] = true
		}
		return len(left) >= 3
	}, 2*time.Minute, 20*time.Millisecond)
	require.Equal(t, map[string]bool{"no id": true, stranger.String(): true, strangersLetter.String(): true}, left)
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
