package rabbitmq_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/rabbitmq"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
)

// RabbitMQ 4 has a delivery limit by default. A policy shows the same in older versions.
func TestDeadLetters_DeliveryLimit_ListingLosesNone(t *testing.T) {
	t.Parallel()
	server := testrabbitmq.Own(t)
	server.Policy("^limited", `{"delivery-limit": 3}`)
	db := testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).Pool(t)
	q, err := rabbitmq.New(db, server.URL()+"?queue=limited", queue.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	run(t, q.Run)
	run(t, func(ctx context.Context) error {
		return q.Receive(ctx, 4, func(context.Context, queue.Message) queue.Verdict { return queue.Dead("cannot be sent") })
	})
	require.NoError(t, queuetest.Enqueue(t.Context(), db, uuid.New(), uuid.New(), uuid.New()))
	require.Eventually(t, func() bool {
		letters, err := q.List(t.Context(), 10)
		return err == nil && len(letters) == 3
	}, 2*time.Minute, 20*time.Millisecond)
	for range 25 {
		letters, err := q.List(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, letters, 3)
	}
}

// The queue <queue>.dead has dead letters of an older version, messages that a policy moved there because of a limit, and those of other
// programs. The first stay dead letters, the second return, and the last stay where they are.
func TestReceive_MessagesOfTheDeadQueue_AreCollected(t *testing.T) {
	t.Parallel()
	address, name := testrabbitmq.URL(t), "relay-"+uuid.NewString()
	conn, err := amqp.Dial(address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	channel, err := conn.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDeclare(name+".dead", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	died := time.Now().Add(-time.Hour)
	send := func(body string, headers amqp.Table) {
		t.Helper()
		sent, err := channel.PublishWithDeferredConfirm("", name+".dead", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: headers, Body: []byte(body)})
		require.NoError(t, err)
		require.True(t, sent.Wait())
	}
	letter, moved, stranger := uuid.New(), uuid.New(), uuid.New()
	send(letter.String(), amqp.Table{"attempts": int64(20), "reason": "cannot be sent", "dead_at": died.UnixMilli(), "enqueued_at": died.UnixMilli()})
	send("no id", nil)
	send(stranger.String(), amqp.Table{"dead_at": died.UnixMilli()})
	send(moved.String(), amqp.Table{"x-first-death-reason": "delivery_limit"})

	db := testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).Pool(t)
	require.NoError(t, queuetest.Transactions(t.Context(), db, letter, moved))
	var log lockedBuffer
	q, err := rabbitmq.New(db, address+"?queue="+name, queue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	delivered := make(chan uuid.UUID, 10)
	run(t, q.Run)
	run(t, func(ctx context.Context) error {
		return q.Receive(ctx, 4, func(_ context.Context, m queue.Message) queue.Verdict {
			delivered <- m.ID
			return queue.Done()
		})
	})
	select {
	case id := <-delivered:
		require.Equal(t, moved, id)
	case <-time.After(3 * time.Minute):
		require.FailNow(t, "the moved message does not return")
	}
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "the dead-letter queue has messages of other programs")
	}, 2*time.Minute, 20*time.Millisecond)
	var left []string
	require.Eventually(t, func() bool {
		d, ok, err := channel.Get(name+".dead", false)
		require.NoError(t, err)
		if ok {
			left = append(left, string(d.Body))
		}
		return len(left) == 2
	}, 2*time.Minute, 20*time.Millisecond)
	require.ElementsMatch(t, []string{"no id", stranger.String()}, left)
	_, more, err := channel.Get(name+".dead", false)
	require.NoError(t, err)
	require.False(t, more)
	letters, err := q.List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Equal(t, letter, letters[0].ID)
	require.Equal(t, "cannot be sent", letters[0].Reason)
	require.Equal(t, 20, letters[0].Attempts)
	require.WithinDuration(t, died, letters[0].EnqueuedAt, time.Second)
	require.WithinDuration(t, died, letters[0].DeadAt, time.Second)
	n, err := q.Replay(t.Context(), letter)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, letter, <-delivered)
}

// A consumer that may not read <queue>.dead works, but nothing is collected. The operator learns that once.
func TestReceive_DeadQueueRefused_IsLogged(t *testing.T) {
	t.Parallel()
	address, name := testrabbitmq.URL(t), "relay-"+uuid.NewString()
	conn, err := amqp.Dial(address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	channel, err := conn.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDeclare(name+".dead", false, false, true, false, nil) // exclusive: the broker refuses other connections
	require.NoError(t, err)
	db := testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).Pool(t)
	id := uuid.New()
	require.NoError(t, queuetest.Transactions(t.Context(), db, id))
	var log lockedBuffer
	q, err := rabbitmq.New(db, address+"?queue="+name, queue.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	require.NoError(t, queuetest.Enqueue(t.Context(), db, id))
	handled := make(chan uuid.UUID, 10)
	run(t, q.Run)
	run(t, func(ctx context.Context) error {
		return q.Receive(ctx, 4, func(_ context.Context, m queue.Message) queue.Verdict {
			handled <- m.ID
			return queue.Done()
		})
	})
	require.Equal(t, id, <-handled)
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), `level=WARN msg="queue unavailable" component=collector err="RabbitMQ: 405 RESOURCE_LOCKED`)
	}, 2*time.Minute, 20*time.Millisecond, "%s", &log)
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

// run runs a part of the queue until the test ends.
func run(t *testing.T, part func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}
