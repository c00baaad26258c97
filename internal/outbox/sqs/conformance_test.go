package sqs_test

import (
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
	"github.com/rollcall-dev/rollcall/internal/outbox/sqs"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if os.Getenv(name) == "" {
			if err := os.Setenv(name, "test"); err != nil {
				panic(err)
			}
		}
	}
	goleak.VerifyTestMain(testpostgres.Main(testsqs.Main(m)))
}

// opener returns a function that returns transports: those of one test have one queue.
func opener() func(testing.TB) outbox.Transport {
	var mu sync.Mutex
	urls := map[string]string{}
	return func(t testing.TB) outbox.Transport {
		mu.Lock()
		defer mu.Unlock()
		address, ok := urls[t.Name()]
		if !ok {
			address = queueURL(t, testsqs.Endpoint(t), "relay-"+uuid.NewString())
			urls[t.Name()] = address
		}
		return open(t, address)
	}
}

func open(t testing.TB, address string) *sqs.Transport {
	t.Helper()
	tr, err := sqs.New(address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func queueURL(t testing.TB, endpoint, name string) string {
	t.Helper()
	_, address, _ := strings.Cut(testsqs.QueueURL(t, endpoint, name), "://")
	return "sqs://" + address + "?create=true&endpoint=" + url.QueryEscape(endpoint)
}

func TestTransport_Conforms(t *testing.T) {
	t.Parallel()
	outboxtest.RunTransport(t, opener())
}

func TestOutbox_Conforms(t *testing.T) {
	t.Parallel()
	outboxtest.RunBroker(t, outboxtest.Setup{Table: outbox.Table{Name: "works"}, Transport: opener()})
}

// An operator's queue may have a redrive policy, which moves a message to another queue after some deliveries.
func TestOutbox_RedrivePolicyOfTheQueue_WorkedOff(t *testing.T) {
	t.Parallel()
	endpoint := testsqs.Endpoint(t)
	api := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: sqs.Credentials("us-east-1")})
	name := "relay-" + uuid.NewString()
	moved, err := api.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: aws.String(name + "-moved")})
	require.NoError(t, err)
	attributes := func(names ...types.QueueAttributeName) map[string]string {
		out, err := api.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: moved.QueueUrl, AttributeNames: names})
		require.NoError(t, err)
		return out.Attributes
	}
	arn := string(types.QueueAttributeNameQueueArn)
	queue, err := api.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{
		"VisibilityTimeout": "0", "RedrivePolicy": `{"deadLetterTargetArn":"` + attributes(types.QueueAttributeNameQueueArn)[arn] + `","maxReceiveCount":1}`,
	}})
	require.NoError(t, err)
	address := queueURL(t, endpoint, name)
	s := outboxtest.Setup{Table: outbox.Table{Name: "works"}, Transport: func(t testing.TB) outbox.Transport { return open(t, address) }}
	outboxtest.RunDeliveryLimit(t, s, func(n int) {
		require.Eventually(t, func() bool {
			_, err := api.ReceiveMessage(t.Context(), &awssqs.ReceiveMessageInput{QueueUrl: queue.QueueUrl, MaxNumberOfMessages: 10})
			require.NoError(t, err)
			waiting := types.QueueAttributeNameApproximateNumberOfMessages
			count, err := strconv.Atoi(attributes(waiting)[string(waiting)])
			require.NoError(t, err)
			return count >= n
		}, 2*time.Minute, 10*time.Millisecond)
	})
}
