package store

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// fixture is a store in a database of its own.
type fixture struct {
	*Store
	t  *testing.T
	db *pgxpool.Pool
}

func setup(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	db := testpostgres.New(t, testpostgres.Migrated(Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
	return &fixture{
		t: t, db: db,
		Store: New(db, Config{Enqueue: queue.EnqueueSQL, Targets: []string{"shop"}}),
	}
}

// transaction returns a new request of a client.
func transaction(client string) *dispatch.Transaction {
	return &dispatch.Transaction{
		ID: uuid.Must(uuid.NewV7()), Client: client, Kind: dispatch.Direct,
		Call: dispatch.Call{To: common.Address{1}, Value: big.NewInt(5), Data: []byte{1, 2}, GasLimit: 100_000, Speed: dispatch.Average},
	}
}

// accept stores one transaction, which must be accepted.
func (f *fixture) accept(tx *dispatch.Transaction) *dispatch.Transaction {
	f.t.Helper()
	results, err := f.Accept(f.t.Context(), []*dispatch.Transaction{tx})
	require.NoError(f.t, err)
	require.NoError(f.t, results[0].Err)
	return results[0].Transaction
}

// read returns the row of a transaction.
func (f *fixture) read(id uuid.UUID) *dispatch.Transaction {
	f.t.Helper()
	tx, err := f.ByID(f.t.Context(), id)
	require.NoError(f.t, err)
	tx.AcceptedAt, tx.ChangedAt, tx.QuietSince = time.Time{}, time.Time{}, time.Time{} // two readings differ in them
	return tx
}

// count returns the result of a query.
func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), query, args...).Scan(&n))
	return n
}

// only returns the one id of a query.
func (f *fixture) only(query string) (id uuid.UUID) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), query).Scan(&id))
	return id
}

// route is a relayer with idempotency keys; foreign is one without.
var (
	route   = dispatch.Route{Relayer: "oz-relayer-0", URL: "http://127.0.0.1:3000", RelayerID: "pool", Scope: "scope"}
	foreign = dispatch.Route{Relayer: "foreign", URL: "http://127.0.0.1:3001", RelayerID: "main"}
)

// begin takes the lease of a transaction.
func (f *fixture) begin(id uuid.UUID, to dispatch.Route, lease time.Duration) (Begun, uuid.UUID) {
	f.t.Helper()
	holder := uuid.New()
	begun, err := f.Begin(f.t.Context(), []Start{{ID: id, Holder: holder, Route: to, Lease: lease}})
	require.NoError(f.t, err)
	return begun[0], holder
}

// submitted stores a transaction that a relayer has accepted.
func (f *fixture) submitted(client, relayerTx string) *dispatch.Transaction {
	f.t.Helper()
	tx := f.accept(transaction(client))
	begun, _ := f.begin(tx.ID, route, time.Minute)
	require.Equal(f.t, Fresh, begun.State)
	f.accepted(tx.ID, route, relayerTx)
	return f.read(tx.ID)
}

func (f *fixture) accepted(id uuid.UUID, by dispatch.Route, relayerTx string) {
	f.t.Helper()
	by.RelayerTx = relayerTx
	require.NoError(f.t, f.Accepted(f.t.Context(), []Acceptance{{ID: id, Attempt: f.read(id).Attempt, Route: by}}))
}

// apply stores one report.
func (f *fixture) apply(u dispatch.Update) Applied {
	f.t.Helper()
	applied, err := f.Apply(f.t.Context(), []dispatch.Update{u})
	require.NoError(f.t, err)
	return applied[0]
}
