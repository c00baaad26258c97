package table_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	queuetest.Main(open)
	goleak.VerifyTestMain(testpostgres.Main(m))
}

func open(db *pgxpool.Pool, _ string, cfg queue.Config) (queue.Queue, error) {
	return table.New(db, cfg)
}

func TestQueue_Conforms(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, queuetest.Suite{Open: open, New: func(t testing.TB, own bool) queuetest.Backend {
		if !own {
			return queuetest.Backend{DatabaseURL: testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).URL()}
		}
		server := testpostgres.Own(t)
		require.NoError(t, postgres.Migrate(t.Context(), server.URL(), queue.Migrations()))
		return queuetest.Backend{DatabaseURL: server.URL(), Stop: server.Kill, Start: server.Restart}
	}})
}
