package rabbitmq_test

import (
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testrabbitmq.Main(m)) }

func TestURL_SecondCall_ReturnsTheSameServer(t *testing.T) {
	t.Parallel()
	url := testrabbitmq.URL(t)
	require.Equal(t, url, testrabbitmq.URL(t))
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestOwn_StoppedAndStarted_KeepsConfirmedMessages(t *testing.T) {
	t.Parallel()
	s := testrabbitmq.Own(t)
	conn, err := amqp.Dial(s.URL())
	require.NoError(t, err)
	channel, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	_, err = channel.QueueDeclare("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	confirmed, err := channel.PublishWithDeferredConfirm("", "kept", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})
	require.NoError(t, err)
	require.True(t, confirmed.Wait())
	require.NoError(t, conn.Close())
	s.Stop()
	_, err = amqp.Dial(s.URL())
	require.Error(t, err)
	s.Start()
	deadline := time.Now().Add(2 * time.Minute)
	for { // a busy machine elects the queue's leader late, and ends channels and connections until then
		body, err := get(s.URL(), "kept")
		if err == nil {
			require.Equal(t, "x", body)
			return
		}
		require.True(t, time.Now().Before(deadline), "%v", err)
		testproc.Pause(t.Context())
	}
}

// get returns the first message of a queue.
func get(url, queue string) (string, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return "", err
	}
	m, ok, err := channel.Get(queue, true)
	if err == nil && !ok {
		err = errors.New("the queue is empty")
	}
	return string(m.Body), err
}
