package sqs_test

import (
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

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
