package rabbitmq_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	"github.com/rollcall-dev/rollcall/internal/outbox/rabbitmq"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(testrabbitmq.Main(m))) }

// opener returns a function that returns transports: those of one test have one queue.
func opener() func(testing.TB) outbox.Transport {
	var mu sync.Mutex
	urls := map[string]string{}
	return func(t testing.TB) outbox.Transport {
		mu.Lock()
		defer mu.Unlock()
		if urls[t.Name()] == "" {
			urls[t.Name()] = testrabbitmq.URL(t) + "?queue=relay-" + uuid.NewString()
		}
		return open(t, urls[t.Name()])
	}
}

func open(t testing.TB, url string) *rabbitmq.Transport {
	t.Helper()
	tr, err := rabbitmq.New(url, 21) // the tests hold up to 21 messages
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func TestTransport_Conforms(t *testing.T) {
	t.Parallel()
	outboxtest.RunTransport(t, opener())
}

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	outboxtest.RunBroker(t, outboxtest.Setup{Table: outbox.Table{Name: "works"}, Transport: opener()})
}

// An operator's policy may set a delivery limit, and RabbitMQ 4 has one by default.
func TestOutbox_DeliveryLimitOfTheQueue_WorkedOff(t *testing.T) {
	t.Parallel()
	name := "relay-" + uuid.NewString()
	conn, err := amqp.Dial(testrabbitmq.URL(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	channel, err := conn.Channel()
	require.NoError(t, err)
	removed, err := channel.QueueDeclare("removed-"+name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	testrabbitmq.Control(t, "set_policy", name, "^"+name+"$", `{"delivery-limit":1,"dead-letter-exchange":"","dead-letter-routing-key":"`+removed.Name+`"}`)
	s := outboxtest.Setup{Table: outbox.Table{Name: "works"}, Transport: func(t testing.TB) outbox.Transport {
		return open(t, testrabbitmq.URL(t)+"?queue="+name)
	}}
	outboxtest.RunDeliveryLimit(t, s, func(n int) {
		require.Eventually(t, func() bool {
			for {
				d, waiting, err := channel.Get(name, false)
				require.NoError(t, err)
				if !waiting {
					break
				}
				require.NoError(t, d.Nack(false, true))
			}
			removed, err := channel.QueueDeclarePassive(removed.Name, true, false, false, false, nil)
			require.NoError(t, err)
			return removed.Messages >= n
		}, 2*time.Minute, 10*time.Millisecond)
	})
}

func TestReceive_QueueDeleted_NamesTheCauseAndGoesOn(t *testing.T) {
	t.Parallel()
	name := "relay-" + uuid.NewString()
	tr := open(t, testrabbitmq.URL(t)+"?queue="+name)
	conn, err := amqp.Dial(testrabbitmq.URL(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	channel, err := conn.Channel()
	require.NoError(t, err)
	for range 5 {
		require.NoError(t, tr.Send(t.Context(), []string{"a"}))
		messages, err := tr.Receive(t.Context(), 1) // it consumes
		require.NoError(t, err)
		require.NoError(t, tr.Acknowledge(t.Context(), messages))
		_, err = channel.QueueDelete(name, false, false, false)
		require.NoError(t, err)
		_, err = tr.Receive(t.Context(), 1)
		require.EqualError(t, err, "the queue in RabbitMQ was deleted")
		require.Eventually(t, func() bool { return tr.Send(t.Context(), []string{"a"}) == nil }, 2*time.Minute, 10*time.Millisecond)
		messages, err = tr.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, tr.Acknowledge(t.Context(), messages))
	}
}
