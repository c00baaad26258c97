package sqs_test

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/sqs"
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
	queuetest.Main(open)
	goleak.VerifyTestMain(testpostgres.Main(testsqs.Main(m)))
}

func open(db *pgxpool.Pool, url string, cfg queue.Config) (queue.Queue, error) {
	return sqs.New(db, url, cfg)
}

// queueURL returns the URL of a new queue.
func queueURL(t testing.TB, endpoint string) string {
	t.Helper()
	_, address, _ := strings.Cut(testsqs.QueueURL(t, endpoint, "relay-"+uuid.NewString()), "://")
	return "sqs://" + address + "?create=true&endpoint=" + url.QueryEscape(endpoint)
}

func TestQueue_Conforms(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, queuetest.Suite{Open: open, New: func(t testing.TB, own bool) queuetest.Backend {
		b := queuetest.Backend{DatabaseURL: testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).URL()}
		if own {
			server := testsqs.Own(t)
			b.URL, b.Stop, b.Start = queueURL(t, server.Endpoint()), server.Stop, server.Start
		} else {
			b.URL = queueURL(t, testsqs.Endpoint(t))
		}
		return b
	}})
}
