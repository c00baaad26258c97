package admin_test

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
	"github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

// fixture is the Admin of a database of its own.
type fixture struct {
	*admin.Admin
	t  *testing.T
	db *pgxpool.Pool
}

func setup(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
	a, err := admin.Open(t.Context(), db)
	require.NoError(t, err)
	return &fixture{Admin: a, t: t, db: db}
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.db.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

// accept stores a transaction, which has an entry in the queue then.
func (f *fixture) accept() uuid.UUID {
	f.t.Helper()
	results, err := f.Store.Accept(f.t.Context(), []*dispatch.Transaction{{
		ID: uuid.Must(uuid.NewV7()), Client: "shop", Kind: dispatch.Direct,
		Call: dispatch.Call{To: common.Address{1}, Value: big.NewInt(7), GasLimit: 100_000, Speed: dispatch.Average},
	}})
	require.NoError(f.t, err)
	require.NoError(f.t, results[0].Err)
	return results[0].Transaction.ID
}

// parked stores a transaction that is unknown.
func (f *fixture) parked() uuid.UUID {
	f.t.Helper()
	id, holder := f.accept(), uuid.New()
	_, err := f.Store.Begin(f.t.Context(), []store.Start{{
		ID: id, Holder: holder, Lease: time.Minute, Route: dispatch.Route{Relayer: "oz-relayer-0", URL: "http://oz", RelayerID: "r"},
	}})
	require.NoError(f.t, err)
	done, err := f.Store.Park(f.t.Context(), id, holder, "the relayer does not show it")
	require.NoError(f.t, err)
	require.True(f.t, done)
	return id
}

// record returns a transaction, which must exist.
func (f *fixture) record(id uuid.UUID) admin.Record {
	f.t.Helper()
	r, err := f.Record(f.t.Context(), id)
	require.NoError(f.t, err)
	return r
}

func (f *fixture) giveUp(id uuid.UUID) {
	f.t.Helper()
	f.exec(`UPDATE relay_queue SET state = 'dead', settled_at = now(), reason = 'poison' WHERE id = $1`, id.String())
}

func TestOpen_OtherSchema_Fails(t *testing.T) {
	t.Parallel()
	empty := testpostgres.New(t).Pool(t)
	_, err := admin.Open(t.Context(), empty)
	var older *postgres.OlderError
	require.ErrorAs(t, err, &older)

	// Without the queue's tables it is no whole relay path.
	half := testpostgres.New(t, testpostgres.Migrated(store.Migrations())).Pool(t)
	_, err = admin.Open(t.Context(), half)
	require.ErrorAs(t, err, &older)

	newer := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
	_, err = newer.Exec(t.Context(), `INSERT INTO relay_migrations (version_id, is_applied) VALUES (1000, true)`)
	require.NoError(t, err)
	_, err = admin.Open(t.Context(), newer)
	require.ErrorAs(t, err, new(*postgres.NewerError))
}

func TestRecord_Transaction_HasItsHistory(t *testing.T) {
	f := setup(t)
	id := f.parked()
	f.exec(`INSERT INTO relay_late_acceptances (tx, pool, relayer_tx, relayer, relayer_url, relayer_id, scope, settled)
		VALUES ($1, 'oz-relayer-1', 'late', 'oz-relayer-1', 'http://other', 'r', '', false)`, id)
	r := f.record(id)
	require.Equal(t, dispatch.Unknown, r.Status)
	require.Len(t, r.Changes, 3)
	require.Equal(t, dispatch.Queued, r.Changes[0].Status)
	require.Equal(t, dispatch.Unknown, r.Changes[2].Status)
	require.Len(t, r.Late, 1)
	require.Equal(t, "late", r.Late[0].RelayerTx)
	_, err := f.Record(t.Context(), uuid.New())
	require.ErrorIs(t, err, dispatch.ErrNotFound)
}

func TestResolve_RowAsSeen_FollowsTheDecision(t *testing.T) {
	f := setup(t)
	id := f.parked()
	require.NoError(t, f.Resolve(t.Context(), f.record(id).Transaction, dispatch.Resolution{Failed: true}, "ann"))
	r := f.record(id)
	require.Equal(t, dispatch.Failed, r.Status)
	require.Contains(t, r.Reason, "ann decided")
}

// An operator decides about the row that was shown. If it has changed, or a consumer has its lease, nothing is decided.
func TestResolve_RowChanged_ChangesNothing(t *testing.T) {
	f := setup(t)
	id := f.parked()
	seen := f.record(id).Transaction
	require.NoError(t, f.Resolve(t.Context(), seen, dispatch.Resolution{RelayerTx: "r-1"}, "ann"))
	require.ErrorIs(t, f.Resolve(t.Context(), seen, dispatch.Resolution{Failed: true}, "bob"), admin.ErrChanged)
	require.Equal(t, dispatch.Submitted, f.record(id).Status)

	leased := f.accept()
	_, err := f.Store.Begin(t.Context(), []store.Start{{ID: leased, Holder: uuid.New(), Lease: time.Minute, Route: dispatch.Route{Relayer: "oz-relayer-1", Scope: "s"}}})
	require.NoError(t, err)
	require.ErrorIs(t, f.Resolve(t.Context(), f.record(leased).Transaction, dispatch.Resolution{Failed: true}, "bob"), admin.ErrChanged)
	require.Equal(t, dispatch.Submitting, f.record(leased).Status)
}

func TestResolve_Retry_ReplaysTheDeadEntry(t *testing.T) {
	f := setup(t)
	id := f.parked()
	f.giveUp(id)
	require.NoError(t, f.Resolve(t.Context(), f.record(id).Transaction, dispatch.Resolution{Retry: true}, "ann"))
	require.Equal(t, dispatch.Queued, f.record(id).Status)
	entry, err := f.Queue.Show(t.Context(), id.String())
	require.NoError(t, err)
	require.Equal(t, outbox.Waiting, entry.State)
}

// The row is queued, and its entry may be a dead letter: the operator must look, so the outcome is unknown.
func TestResolve_EntryNotReplayed_IsUnknown(t *testing.T) {
	f := setup(t)
	id := f.parked()
	f.giveUp(id)
	f.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON relay_queue FOR EACH ROW WHEN (OLD.state = 'dead') EXECUTE FUNCTION refuse()`)
	err := f.Resolve(t.Context(), f.record(id).Transaction, dispatch.Resolution{Retry: true}, "ann")
	require.ErrorIs(t, err, postgres.ErrUnknown)
	require.ErrorContains(t, err, "rollcall dead-letters replay "+id.String())
	require.Equal(t, dispatch.Queued, f.record(id).Status)
}
