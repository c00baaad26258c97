package rabbitmq_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

func TestOwn_KilledAndStarted_KeepsConfirmedMessages(t *testing.T) {
	t.Parallel()
	s := testrabbitmq.Own(t)
	use := func(do func(*amqp.Channel)) {
		t.Helper()
		conn, err := amqp.Dial(s.URL())
		require.NoError(t, err)
		channel, err := conn.Channel()
		require.NoError(t, err)
		do(channel)
		require.NoError(t, conn.Close())
	}
	use(func(c *amqp.Channel) {
		require.NoError(t, c.Confirm(false))
		_, err := c.QueueDeclare("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(t, err)
		confirmed, err := c.PublishWithDeferredConfirm("", "kept", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})
		require.NoError(t, err)
		require.True(t, confirmed.Wait())
	})
	for _, stop := range []func(){s.Kill, s.Stop} {
		stop()
		_, err := amqp.Dial(s.URL())
		require.Error(t, err)
		s.Start()
		require.Eventually(t, func() bool { // a busy machine elects the queue's leader late, and ends the channel
			conn, err := amqp.Dial(s.URL())
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			channel, err := conn.Channel()
			require.NoError(t, err)
			m, ok, err := channel.Get("kept", false)
			return err == nil && ok && string(m.Body) == "x"
		}, 2*time.Minute, 10*time.Millisecond)
	}
}
