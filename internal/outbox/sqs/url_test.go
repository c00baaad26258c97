package sqs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckURL_Invalid_NamesTheProblemWithoutTheURL(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for text, want := range map[string]string{
		"sqs:" + secret: "expected sqs://",
		"sqs://user:" + secret + "@sqs.eu-west-1.amazonaws.com/1/q": "credentials come from the environment",
		"sqs://sqs.eu-west-1.amazonaws.com/1/" + secret + ".fifo":   "a FIFO queue is not supported",
		"sqs://sqs.eu-west-1.amazonaws.com/" + secret:               "expected the path",
		"sqs://" + secret + "/1/q":                                  "add region=…",
		"sqs://sqs.eu-west-1.amazonaws.com/1/q?create=" + secret:    "create: expected true or false",
		"sqs://sqs.eu-west-1.amazonaws.com/1/q?endpoint=" + secret:  "endpoint: expected http://host:port",
		"sqs://sqs.eu-west-1.amazonaws.com/1/q?other=" + secret:     `unknown parameter "other"`,
	} {
		err := CheckURL(text)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), secret)
	}
}

// A URL of an older version, which had a second queue, stays valid.
func TestCheckURL_DeadLetterQueue_IsIgnored(t *testing.T) {
	t.Parallel()
	l, err := parse("sqs://sqs.eu-west-1.amazonaws.com/123456789012/relay?dlq=relay-dead&endpoint=http://127.0.0.1:4566&create=true")
	require.NoError(t, err)
	require.Equal(t, location{
		region: "eu-west-1", endpoint: "http://127.0.0.1:4566", queue: "http://sqs.eu-west-1.amazonaws.com/123456789012/relay", create: true,
	}, l)
}
