package rabbitmq_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/rabbitmq"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
)

func TestMain(m *testing.M) {
	queuetest.Main(open)
	goleak.VerifyTestMain(testpostgres.Main(testrabbitmq.Main(m)))
}

func open(db *pgxpool.Pool, url string, cfg queue.Config) (queue.Queue, error) {
	return rabbitmq.New(db, url, cfg)
}

func TestQueue_Conforms(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, queuetest.Suite{Open: open, New: func(t testing.TB, own bool) queuetest.Backend {
		b := queuetest.Backend{DatabaseURL: testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).URL()}
		var url string
		if own {
			server := testrabbitmq.Own(t)
			// Not killed: RabbitMQ forgets a quorum queue that was declared within the half second before.
			url, b.Stop, b.Start = server.URL(), server.Stop, server.Start
		} else {
			url = testrabbitmq.URL(t)
		}
		b.URL = url + "?queue=relay-" + uuid.NewString()
		return b
	}})
}
