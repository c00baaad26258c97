package queueurl_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queueurl"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/rabbitmq"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/sqs"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpen_ValidURL_ReturnsItsQueue(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]queue.Queue{
		"":         &table.Queue{},
		"postgres": &table.Queue{},
		"sqs://sqs.eu-west-1.amazonaws.com/123456789012/relay":    &sqs.Queue{},
		"amqp://guest:guest@127.0.0.1:5672/":                      &rabbitmq.Queue{},
		"amqps://user:p%40ss@broker.example/vhost?queue=relaying": &rabbitmq.Queue{},
	} {
		require.NoError(t, queueurl.Check(url), url)
		q, err := queueurl.Open(nil, url, queue.Config{})
		require.NoError(t, err, url)
		require.IsType(t, want, q, url)
		require.NoError(t, q.Close())
	}
}

func TestOpen_InvalidURL_ReturnsAnErrorWithoutTheURL(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, url := range []string{
		"postgres://user:" + secret + "@host/db", secret, "sqs:" + secret, "sqs://user:" + secret + "@sqs.eu-west-1.amazonaws.com/1/q",
		"amqp:" + secret, "amqp://user:" + secret + "%@host/", "amqp://user:" + secret + "@host:port/", "amqp://u:" + secret + "@host/?queue=",
	} {
		err := queueurl.Check(url)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), secret)
		q, err := queueurl.Open(nil, url, queue.Config{})
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), secret)
		require.Nil(t, q)
	}
	q, err := queueurl.Open(nil, "", queue.Config{Visibility: 1, MaxAttempts: -1, DrainTimeout: -1})
	require.ErrorContains(t, err, "visibility timeout 1ns")
	require.ErrorContains(t, err, "maximum of attempts -1")
	require.ErrorContains(t, err, "drain timeout -1ns")
	require.Nil(t, q)
}
