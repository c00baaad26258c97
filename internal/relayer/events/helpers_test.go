package events_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/relayer/events"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

const (
	secret   = "a-signing-key-of-32-characters-or-more"
	patience = 2 * time.Minute
)

var pool = events.Pool{ChainID: 1337, ID: "pool-1"}

func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
}

// openStore returns the store of a relayer with the webhook target "here".
func openStore(db *pgxpool.Pool) *store.Store {
	return store.New(db, store.Config{ChainID: pool.ChainID, Pool: pool.ID, Targets: []string{"here"}})
}

func newTx(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	return id
}

// receiver returns a target that accepts everything, and the bodies that it gets.
func receiver(t testing.TB) (webhook.Target, <-chan []byte) {
	t.Helper()
	bodies := make(chan []byte, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read a webhook: %v", err)
		}
		bodies <- body
	}))
	t.Cleanup(server.Close)
	return webhook.Target{Name: "here", URL: server.URL, SigningKeys: []string{secret}}, bodies
}

// start runs a Deliverer until stop is called, and returns it.
func start(t testing.TB, db *pgxpool.Pool, cfg webhook.Config) (d *webhook.Deliverer, stop func()) {
	t.Helper()
	cfg.AllowPrivate = true
	d, err := webhook.New(db, pool.Source(), cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return d, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// deliver delivers the webhooks that are due, n of them, and returns their bodies in their order.
func deliver(t testing.TB, db *pgxpool.Pool, n int) (bodies [][]byte) {
	t.Helper()
	target, got := receiver(t)
	_, stop := start(t, db, webhook.Config{Targets: []webhook.Target{target}})
	defer stop()
	for len(bodies) < n {
		bodies = append(bodies, next(t, got))
	}
	return bodies
}

func next(t testing.TB, bodies <-chan []byte) []byte {
	t.Helper()
	select {
	case body := <-bodies:
		return body
	case <-time.After(patience):
		t.Fatalf("no webhook within %v", patience)
		return nil
	}
}
