package reconciler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }

const key = "the-key-of-the-consumer-0123456789"

// world has a store, a stand-in for a relayer, and a running reconciler.
type world struct {
	*store.Store
	t       *testing.T
	db      *pgxpool.Pool
	relayer *upstreamtest.Relayer
	client  *upstream.Client
	route   dispatch.Route
	metrics *prometheus.Registry
}

func setup(t *testing.T, edit ...func(*Config)) *world {
	t.Helper()
	t.Parallel()
	db := testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
	w := &world{t: t, db: db, metrics: prometheus.NewRegistry(), Store: store.New(db, store.Config{Enqueue: queue.EnqueueSQL, Silent: 50 * time.Millisecond, Stranded: 50 * time.Millisecond})}
	w.relayer = upstreamtest.Start(t, upstreamtest.Options{Key: key, Scope: "0123456789abcdef"})
	var err error
	w.client, err = upstream.New(upstream.Config{URL: w.relayer.URL(), Key: key})
	require.NoError(t, err)
	info, err := w.client.Discover(t.Context())
	require.NoError(t, err)
	w.route = dispatch.Route{Relayer: "oz-relayer-0", URL: w.relayer.URL(), RelayerID: info.RelayerID, Scope: info.Scope}
	var log bytes.Buffer // read after the reconciler has ended
	cfg := Config{
		Store: w.Store, Interval: 20 * time.Millisecond, Logger: slog.New(tracing.LogIDs(slog.NewTextHandler(&log, nil))),
		Witnesses: func(to dispatch.Route) []Witness { return []Witness{{w.client, w.route.URL}} },
		Elsewhere: func(string) bool { return true }, Registerer: w.metrics,
	}
	for _, e := range edit {
		e(&cfg)
	}
	r := New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, w.client.Close())
		for line := range strings.Lines(log.String()) {
			require.Equal(t, strings.Contains(line, " tx="), strings.HasSuffix(line, " "+traceIDs+"\n"), "lines about a transaction, and no others, have its trace: %s", line)
		}
	})
	return w
}

// The trace of all transactions, and its ids in the log.
const (
	traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceIDs    = "trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331"
)

// accept stores a transaction.
func (w *world) accept() *dispatch.Transaction {
	w.t.Helper()
	tx := &dispatch.Transaction{
		ID: uuid.Must(uuid.NewV7()), Client: "shop", Kind: dispatch.Direct, Traceparent: traceparent,
		Call: dispatch.Call{To: common.Address{1}, Value: new(big.Int), GasLimit: 100_000, Speed: dispatch.Average},
	}
	results, err := w.Accept(w.t.Context(), []*dispatch.Transaction{tx})
	require.NoError(w.t, err)
	require.NoError(w.t, results[0].Err)
	return tx
}

// submitted stores a transaction that the relayer has accepted.
func (w *world) submitted() (id uuid.UUID, relayerTx string) {
	w.t.Helper()
	tx := w.accept()
	start := []store.Start{{ID: tx.ID, Holder: uuid.New(), Route: w.route, Lease: time.Minute}}
	require.Eventually(w.t, func() bool { // it is held while the reconciler looks at it
		begun, err := w.Begin(w.t.Context(), start)
		return err == nil && begun[0].State == store.Fresh
	}, 2*time.Minute, 10*time.Millisecond)
	result := w.client.Submit(w.t.Context(), upstream.Submission{
		RelayerID: w.route.RelayerID, IdempotencyKey: tx.ID.String(), Scope: w.route.Scope, To: &tx.To, Value: tx.Value, GasLimit: tx.GasLimit, Speed: string(tx.Speed),
	})
	require.Equal(w.t, upstream.Accepted, result.Outcome)
	route := w.route
	route.RelayerTx = result.Transaction.ID
	require.NoError(w.t, w.Accepted(w.t.Context(), []store.Acceptance{{ID: tx.ID, Attempt: 1, Route: route}}))
	return tx.ID, route.RelayerTx
}

// counter returns the value of a metric.
func (w *world) counter(name string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	require.NoError(w.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.FailNow(w.t, "no metric "+name)
	return 0
}

// reaches waits until a transaction has a status.
func (w *world) reaches(id uuid.UUID, status dispatch.Status) *dispatch.Transaction {
	w.t.Helper()
	var tx *dispatch.Transaction
	require.Eventually(w.t, func() bool {
		var err error
		tx, err = w.ByID(w.t.Context(), id)
		return err == nil && tx.Status == status
	}, 2*time.Minute, 10*time.Millisecond, "%s", status)
	return tx
}

// confirmedByChecks waits until checks have found a transaction's end. The pause between them doubles, so each is made due.
func (w *world) confirmedByChecks(id uuid.UUID) {
	w.t.Helper()
	w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Confirmed })
}

// Without any webhook a transaction reaches its end, with its hash.
func TestReconciler_NoWebhooks_ReachesTheEnd(t *testing.T) {
	w := setup(t)
	id, relayerTx := w.submitted()
	for _, status := range []dispatch.Status{dispatch.Mined, dispatch.Confirmed} {
		w.relayer.Advance(t, relayerTx, string(status))
		require.NotNil(t, w.reaches(id, status).Hash)
	}
}

// A relayer that is away changes nothing. When it answers again, the outcome is found.
func TestReconciler_RelayerFails_ChangesNothing(t *testing.T) {
	w := setup(t)
	id, relayerTx := w.submitted()
	for _, fault := range []upstreamtest.Fault{upstreamtest.Error(500), upstreamtest.Drop, upstreamtest.Respond(200, "<html>")} {
		asked := w.relayer.Calls(upstreamtest.Get)
		w.relayer.Fail(upstreamtest.Get, fault)
		// The pause between checks doubles, so the next check is made due.
		require.Eventually(t, func() bool {
			_, err := w.db.Exec(t.Context(), `UPDATE relay_transactions SET check_at = now() - interval '1 day'`)
			return err == nil && w.relayer.Calls(upstreamtest.Get) >= asked+2
		}, 2*time.Minute, 20*time.Millisecond)
		require.Equal(t, dispatch.Submitted, w.reaches(id, dispatch.Submitted).Status)
	}
	w.relayer.Fail(upstreamtest.Get, nil)
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
}

// The relayer of a transaction is gone for good, or has another URL. The others of its scope share its database.
func TestReconciler_RelayerIsGone_AnotherOfItsScopeIsAsked(t *testing.T) {
	var w *world
	w = setup(t, func(c *Config) {
		c.Witnesses = func(to dispatch.Route) []Witness { return []Witness{{away(t), to.URL}, {w.client, w.client.URL()}} }
	})
	w.route.URL = "http://127.0.0.1:1"
	id, relayerTx := w.submitted()
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
}

// away returns a relayer that refuses connections.
func away(t *testing.T) Relayer {
	t.Helper()
	client, err := upstream.New(upstream.Config{URL: "http://127.0.0.1:1", Key: key})
	require.NoError(t, err)
	return client
}

// No relayer that can have the transaction answers for long: an operator can end it, unless one answers after all.
func TestReconciler_NoRelayerAnswersForLong_IsUnknownUntilOneDoes(t *testing.T) {
	for name, witnesses := range map[string]func(*world) []Witness{
		"nothing is known": func(*world) []Witness { return nil },
		"refuses":          func(w *world) []Witness { return []Witness{{away(w.t), w.route.URL}} },
	} {
		t.Run(name, func(t *testing.T) {
			var back atomic.Bool
			var w *world
			w = setup(t, func(c *Config) {
				c.Away = time.Millisecond
				c.Witnesses = func(dispatch.Route) []Witness {
					if back.Load() {
						return []Witness{{revisioned{w.client}, w.route.URL}}
					}
					return witnesses(w)
				}
			})
			id, relayerTx := w.submitted()
			w.relayer.Advance(t, relayerTx, "mined")
			known, err := revisioned{w.client}.Get(t.Context(), upstream.Ref{ID: w.route.RelayerID, Scope: w.route.Scope}, relayerTx)
			require.NoError(t, err)
			_, err = w.Apply(t.Context(), []dispatch.Update{{RelayerTx: relayerTx, Status: dispatch.Mined, Hash: &known.Hash, Revision: known.Revision, At: time.Now()}})
			require.NoError(t, err)
			tx := w.reaches(id, dispatch.Unknown)
			require.Contains(t, tx.Reason, relayerTx)
			back.Store(true)
			w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Mined }) // the relayer has nothing new
			w.relayer.Advance(t, relayerTx, "confirmed")
			w.confirmedByChecks(id)
		})
	}
}

// A process that reaches no relayer leaves transactions to others: its own failures must not make them unknown.
func TestReconciler_NothingAnswersThisProcess_LeavesTransactionsToOthers(t *testing.T) {
	rounds := &counting{}
	w := setup(t, func(c *Config) {
		c.Answering = func() bool { return false }
		rounds.Store, c.Store = c.Store, rounds
	})
	w.submitted()
	for late, taken := range map[string]bool{"10s": false, "1m": true} { // no other process has taken it for a minute
		asked := w.relayer.Calls(upstreamtest.Get)
		_, err := w.db.Exec(t.Context(), `UPDATE relay_transactions SET check_at = now() - $1::interval`, late)
		require.NoError(t, err)
		begun := rounds.begun.Load()
		require.Eventually(t, func() bool { return rounds.begun.Load() > begun+3 }, 2*time.Minute, 5*time.Millisecond)
		require.Equal(t, taken, w.relayer.Calls(upstreamtest.Get) > asked, late)
	}
}

// counting counts the rounds of a reconciler.
type counting struct {
	Store
	begun atomic.Int64
}

func (c *counting) MatchReports(ctx context.Context) (int, error) {
	c.begun.Add(1)
	return c.Store.MatchReports(ctx)
}

// Checks that a relayer answers count for nothing, also if nothing is new: a later failure is the first one.
func TestReconciler_NothingNew_IsNoMissedCheck(t *testing.T) {
	var w *world
	w = setup(t, func(c *Config) {
		c.Witnesses = func(dispatch.Route) []Witness { return []Witness{{revisioned{w.client}, w.route.URL}} }
	})
	id, relayerTx := w.submitted()
	w.relayer.Advance(t, relayerTx, "mined")
	w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Mined })
	asked := w.relayer.Calls(upstreamtest.Get)
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Get) > asked+2*checksUntilAway })
	asked = w.relayer.Calls(upstreamtest.Get)
	w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(503))
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Get) >= asked+2 })
	var missed int
	require.NoError(t, w.db.QueryRow(t.Context(), `SELECT checks FROM relay_transactions`).Scan(&missed))
	require.LessOrEqual(t, missed, w.relayer.Calls(upstreamtest.Get)-asked+1, "one may have begun and not asked yet")
	require.Equal(t, dispatch.Mined, w.reads(id).Status)
}

// A relayer was restored from a backup: its revisions are below those that it reported before. Its answer that a transaction is final
// counts.
func TestReconciler_RelayerRestored_ReachesTheEnd(t *testing.T) {
	var w *world
	w = setup(t, func(c *Config) {
		c.Witnesses = func(dispatch.Route) []Witness { return []Witness{{revisioned{w.client}, w.route.URL}} }
	})
	id, relayerTx := w.submitted()
	_, err := w.Apply(t.Context(), []dispatch.Update{{RelayerTx: relayerTx, Status: dispatch.Mined, Revision: 40, Hash: &common.Hash{9}, At: time.Now()}})
	require.NoError(t, err)
	w.relayer.Advance(t, relayerTx, "mined")
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
}

// revisioned is a relayer that gives each status a revision, as ours does.
type revisioned struct{ Relayer }

func (r revisioned) Get(ctx context.Context, ref upstream.Ref, id string) (upstream.Transaction, error) {
	got, err := r.Relayer.Get(ctx, ref, id)
	got.Revision = 1 + slices.Index([]dispatch.Status{dispatch.Submitted, dispatch.Mined, dispatch.Confirmed}, got.Status)
	return got, err
}

// A transaction of which nothing new was heard for long is counted, for the alert.
func TestReconciler_NoWebhookForLong_IsCounted(t *testing.T) {
	w := setup(t, func(c *Config) { c.Overdue = time.Hour })
	w.submitted()
	count := func() float64 { return w.counter("rollcall_relay_webhook_timeouts_total") }
	asked := w.relayer.Calls(upstreamtest.Get)
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Get) > asked })
	require.Zero(t, count())
	_, err := w.db.Exec(t.Context(), `UPDATE relay_transactions SET updated_at = now() - interval '2 hours', requested_at = '-infinity'`)
	require.NoError(t, err)
	w.dueUntil(func() bool { return count() > 0 })
}

// dueUntil makes each next check due until a condition holds.
func (w *world) dueUntil(holds func() bool) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		_, err := w.db.Exec(w.t.Context(), `UPDATE relay_transactions SET check_at = now() - interval '1 day'`)
		return err == nil && holds()
	}, 2*time.Minute, 20*time.Millisecond)
}

func (w *world) reads(id uuid.UUID) *dispatch.Transaction {
	w.t.Helper()
	tx, err := w.ByID(w.t.Context(), id)
	require.NoError(w.t, err)
	return tx
}

// A relayer under another URL that has no such transaction may be another one with the same name.
func TestFind_AnotherURLDoesNotHaveIt_ProvesNothingWithoutAScope(t *testing.T) {
	t.Parallel()
	r := New(Config{Logger: slog.New(slog.DiscardHandler), Witnesses: func(dispatch.Route) []Witness { return []Witness{{forgetful{}, "http://new"}} }})
	for _, c := range []struct {
		url, scope string
		proved     bool
	}{{"http://old", "", false}, {"http://old", "0123456789abcdef", true}, {"http://new", "", true}} {
		d := &store.Due{Transaction: &dispatch.Transaction{Route: dispatch.Route{URL: c.url, Scope: c.scope, RelayerTx: "1"}}}
		_, _, err := r.find(t.Context(), d, upstream.Ref{}, &sync.Map{})
		require.Error(t, err)
		require.Equal(t, c.proved, err == upstream.ErrNotFound, "%+v: %v", c, err) //nolint:errorlint // wrapped, it is no proof
	}
}

// forgetful is a relayer without transactions.
type forgetful struct{ Relayer }

func (forgetful) Get(context.Context, upstream.Ref, string) (upstream.Transaction, error) {
	return upstream.Transaction{}, upstream.ErrNotFound
}

// A transaction whose message was lost is queued again.
func TestReconciler_MessageLost_IsQueuedAgain(t *testing.T) {
	w := setup(t)
	tx := w.accept()
	_, err := w.db.Exec(t.Context(), `DELETE FROM relay_queue`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var n int
		err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM relay_queue WHERE id = $1`, tx.ID).Scan(&n)
		return err == nil && n == 1
	}, 2*time.Minute, 10*time.Millisecond)
}

// A report that came before its transaction is matched, without a call of the relayer.
func TestReconciler_KeptReport_IsMatched(t *testing.T) {
	w := setup(t)
	id, relayerTx := w.submitted()
	w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(500))
	_, err := w.db.Exec(t.Context(), `INSERT INTO relay_reports (relayer_tx, status, reason, revision, at) VALUES ($1, 'mined', '', 9, now())`, relayerTx)
	require.NoError(t, err)
	w.reaches(id, dispatch.Mined)
}

// A relayer that denies a transaction may be wrong: an operator decides, unless the relayer has it after all.
func TestReconciler_RelayerDeniesTheTransaction_IsUnknownUntilItIsFound(t *testing.T) {
	w := setup(t)
	id, relayerTx := w.submitted()
	w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(404))
	tx := w.reaches(id, dispatch.Unknown)
	require.Contains(t, tx.Reason, relayerTx)
	w.relayer.Fail(upstreamtest.Get, nil)
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
}

// A transaction that a relayer accepts and never sends is taken back, and can be given to another relayer.
func TestReconciler_RelayerSwallowsTheTransaction_IsQueuedAgain(t *testing.T) {
	w := setup(t, func(c *Config) { c.Withdraw = 100 * time.Millisecond })
	w.relayer.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
	id, relayerTx := w.submitted()
	tx := w.reaches(id, dispatch.Queued)
	require.Equal(t, id.String()+".1", tx.RelayerKey(), "the former key names the canceled one")
	require.Empty(t, tx.RelayerTx)
	require.Equal(t, "withdrawn from oz-relayer-0", tx.Reason)
	var messages int
	require.NoError(t, w.db.QueryRow(t.Context(), `SELECT count(*) FROM relay_queue WHERE id = $1`, id).Scan(&messages))
	require.Equal(t, 1, messages)

	// The relayer's webhook of it comes late.
	applied, err := w.Apply(t.Context(), []dispatch.Update{{RelayerTx: relayerTx, Status: dispatch.Canceled, At: time.Now()}})
	require.NoError(t, err)
	require.False(t, applied[0].Changed)
	require.Equal(t, dispatch.Queued, w.reaches(id, dispatch.Queued).Status)
}

// A transaction became unknown while no relayer answered. Its relayer is back and still has it unsent: it is submitted again, and then
// taken back.
func TestReconciler_UnknownIsUnsentAtItsRelayer_IsSubmittedAgainAndWithdrawn(t *testing.T) {
	var back atomic.Bool
	var w *world
	w = setup(t, func(c *Config) {
		c.Away, c.Withdraw = time.Millisecond, time.Millisecond
		c.Witnesses = func(dispatch.Route) []Witness {
			if back.Load() {
				return []Witness{{w.client, w.route.URL}}
			}
			return nil
		}
	})
	w.relayer.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
	id, _ := w.submitted()
	w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Unknown })
	require.Zero(t, w.relayer.Calls(upstreamtest.Cancel))
	back.Store(true)
	w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Queued })
	require.Equal(t, "withdrawn from oz-relayer-0", w.reads(id).Reason)
	changes, err := w.History(t.Context(), id)
	require.NoError(t, err)
	require.Greater(t, len(changes), 3)
	for i, status := range []dispatch.Status{dispatch.Unknown, dispatch.Submitted, dispatch.Queued} {
		require.Equal(t, status, changes[len(changes)-3+i].Status)
	}
}

// Where only relayers of its own scope are live, a transaction stays there: its pool may be full or paused.
func TestReconciler_NoOtherScope_LeavesItAtItsRelayer(t *testing.T) {
	var elsewhere atomic.Bool
	w := setup(t, func(c *Config) {
		c.Elsewhere = func(scope string) bool { require.Equal(t, "0123456789abcdef", scope); return elsewhere.Load() }
	})
	w.relayer.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
	id, _ := w.submitted()
	_, err := w.db.Exec(t.Context(), `UPDATE relay_transactions SET submitted_at = submitted_at - interval '1 hour'`)
	require.NoError(t, err)
	asked := w.relayer.Calls(upstreamtest.Get)
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Get) > asked+2 })
	require.Zero(t, w.relayer.Calls(upstreamtest.Cancel))
	require.Positive(t, w.counter("rollcall_relay_unsent_total"))
	require.Equal(t, dispatch.Submitted, w.reads(id).Status)
	elsewhere.Store(true)
	w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Queued })
}

// An operator has canceled a transaction at its relayer, which has not signed the no-op yet. The transaction must not be given to another
// one.
func TestReconciler_OperatorCancelsUnsent_IsNotWithdrawn(t *testing.T) {
	w := setup(t, func(c *Config) { c.Withdraw = time.Millisecond })
	w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(500)) // until the operator has canceled it
	id, relayerTx := w.submitted()
	canceled := w.relayer.Transactions()[0]
	w.relayer.Remove(relayerTx)
	canceled.Canceled = true
	w.relayer.Add(canceled)
	w.relayer.Fail(upstreamtest.Get, nil)
	asked := w.relayer.Calls(upstreamtest.Get)
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Get) > asked+2 })
	require.Zero(t, w.relayer.Calls(upstreamtest.Cancel))
	w.relayer.Advance(t, relayerTx, "canceled")
	w.dueUntil(func() bool { return w.reads(id).Status == dispatch.Canceled })
}

// A relayer without idempotency keys may send a transaction that it reports as canceled: no other one gets it.
func TestReconciler_ForeignRelayerSwallowsTheTransaction_IsParked(t *testing.T) {
	w := setup(t, func(c *Config) { c.Withdraw = 100 * time.Millisecond })
	w.relayer.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
	w.route.Scope = ""
	id, relayerTx := w.submitted()
	tx := w.reaches(id, dispatch.Unknown)
	require.Equal(t, relayerTx, tx.RelayerTx)
	require.Contains(t, tx.Reason, "does not send it")
	require.Zero(t, w.relayer.Calls(upstreamtest.Cancel))
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
}

// A relayer that reports a no-op in the transaction's place may not have executed it.
func TestReconciler_RelayerSentANoOp_IsUnknown(t *testing.T) {
	w := setup(t)
	id, relayerTx := w.submitted()
	w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(500)) // until it has the no-op
	w.relayer.Advance(t, relayerTx, "confirmed")
	noop := w.relayer.Transactions()[0]
	noop.To, noop.Value, noop.Data, noop.Hash = common.Address{0xee}.Hex(), new(big.Int), "0x", common.Hash{9}.Hex()
	w.relayer.Remove(relayerTx)
	w.relayer.Add(noop)
	w.relayer.Fail(upstreamtest.Get, nil)
	require.Contains(t, w.reaches(id, dispatch.Unknown).Reason, "another call")
}

// A failover of a relayer's database gives it another scope. An execution is believed nevertheless. A refusal is not: the failover may
// have lost the commit of the execution.
func TestReconciler_RelayerHasAnotherScope_BelievesExecutionsAlone(t *testing.T) {
	for status, want := range map[string]dispatch.Status{"confirmed": dispatch.Confirmed, "failed": dispatch.Unknown} {
		t.Run(status, func(t *testing.T) {
			w := setup(t, func(c *Config) { c.Away = 100 * time.Millisecond })
			w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(500)) // until it has another scope
			id, relayerTx := w.submitted()
			w.relayer.Advance(t, relayerTx, status)
			w.relayer.Rescope("fedcba9876543210")
			w.relayer.Fail(upstreamtest.Get, nil)
			w.reaches(id, want)
		})
	}
}

// Reports that cannot be matched do not keep relayers from being asked.
func TestReconciler_ReportsNotMatched_AsksRelayers(t *testing.T) {
	w := setup(t, func(c *Config) { c.Store = unmatched{c.Store} })
	id, relayerTx := w.submitted()
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.reaches(id, dispatch.Confirmed)
}

// unmatched is a store that cannot match reports.
type unmatched struct{ Store }

func (unmatched) MatchReports(context.Context) (int, error) {
	return 0, errors.New("no space left on device")
}

// A relayer that does not answer, or fails slowly, costs one timeout a round, not one for each of its transactions. A relayer that fails at once
// is asked about each of them.
func TestReconcile_RelayerFails_IsAskedNothingMoreUnlessAtOnce(t *testing.T) {
	t.Parallel()
	const transactions = 10 * atOnce
	for name, c := range map[string]struct {
		after  time.Duration
		err    error
		silent bool
	}{
		"never answers":         {10 * time.Second, &upstream.Error{Reason: "timeout"}, true},
		"refuses connections":   {0, &upstream.Error{Reason: "connection refused"}, true},
		"header without a body": {10 * time.Second, &upstream.Error{Code: 200, Reason: "incomplete"}, true},
		"slow 503":              {slowFailure + time.Millisecond, &upstream.Error{Code: 503}, true},
		"503 in time":           {slowFailure, &upstream.Error{Code: 503}, false},
		"slow, other scope":     {10 * time.Second, upstream.ErrOtherScope, true},
		"other scope":           {20 * time.Millisecond, upstream.ErrOtherScope, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				relayer := &failing{after: c.after, err: c.err}
				r := New(Config{Logger: slog.New(slog.DiscardHandler), Witnesses: func(dispatch.Route) []Witness { return []Witness{{relayer, "http://it"}} }})
				due := make([]store.Due, transactions)
				for i := range due {
					due[i] = store.Due{Transaction: &dispatch.Transaction{ID: uuid.New(), Status: dispatch.Submitted, Route: dispatch.Route{URL: "http://it", RelayerTx: "1"}}}
				}
				silent := &sync.Map{}
				begun := time.Now()
				for range 2 {
					require.NoError(t, r.reconcile(t.Context(), due, silent))
					r.asking.group.Wait()
					require.NoError(t, r.asking.takeErrors())
				}
				calls := relayer.calls.Load()
				if !c.silent {
					require.GreaterOrEqual(t, calls, int64(2*transactions)) // one in another scope is asked twice
					return
				}
				require.Positive(t, calls)
				require.LessOrEqual(t, calls, int64(atOnce))
				require.LessOrEqual(t, time.Since(begun), c.after)
			})
		})
	}
}

// A relayer that answers slowly, and correctly, must delay no transaction of another one, however many of its own are due.
func TestReconciler_RelayerAnswersSlowly_DelaysNoOther(t *testing.T) {
	slow := &stopped{began: make(chan struct{}, 10*page), release: make(chan struct{})}
	w := setup(t, func(c *Config) {
		witnesses := c.Witnesses
		c.Witnesses = func(to dispatch.Route) []Witness {
			if to.URL == "http://slow" {
				return []Witness{{slow, "http://slow"}}
			}
			return witnesses(to)
		}
	})
	// More than two pages of them are due before those of the other relayer.
	_, err := w.db.Exec(t.Context(), `INSERT INTO relay_transactions (id, client, request_hash, kind, to_address, value_wei, data, gas_limit, speed, digest,
			webhook, status, relayer, relayer_url, relayer_id, relayer_tx, outstanding, submitted_at, check_at, traceparent)
		SELECT lpad(to_hex(n), 32, '0')::uuid, 'shop', '', 'direct', decode(repeat('00', 20), 'hex'), 0, '', 21000, 'average', '', false,
			'submitted', 'slow', 'http://slow', 'evm:1', 'slow-' || n, true, now(), '-infinity', $2 FROM generate_series(1, $1::int) n`, 2*page+1, traceparent)
	require.NoError(t, err)
	<-slow.began
	for range 20 {
		id, relayerTx := w.submitted()
		w.relayer.Advance(t, relayerTx, "confirmed")
		w.confirmedByChecks(id)
	}
	require.LessOrEqual(t, len(slow.began), atOnce)
	close(slow.release)
	require.Eventually(t, func() bool { return slow.calls.Load() > 2*page }, 2*time.Minute, 10*time.Millisecond, "all of them are asked about at last")
}

// stopped is a relayer that answers once it is released.
type stopped struct {
	Relayer
	calls   atomic.Int64
	began   chan struct{}
	release chan struct{}
}

func (s *stopped) Get(ctx context.Context, _ upstream.Ref, id string) (upstream.Transaction, error) {
	s.calls.Add(1)
	select {
	case s.began <- struct{}{}:
	default:
	}
	select {
	case <-s.release:
		return upstream.Transaction{ID: id, Status: dispatch.Submitted}, nil
	case <-ctx.Done():
		return upstream.Transaction{}, ctx.Err()
	}
}

// failing is a relayer whose calls end after a time with an error.
type failing struct {
	Relayer
	after time.Duration
	err   error
	calls atomic.Int64
}

func (f *failing) Get(ctx context.Context, _ upstream.Ref, _ string) (upstream.Transaction, error) {
	f.calls.Add(1)
	select {
	case <-ctx.Done():
	case <-time.After(f.after):
	}
	return upstream.Transaction{}, fmt.Errorf("read: %w", f.err)
}

// A relayer that sends a transaction after all while it is withdrawn keeps it.
func TestReconciler_SentWhileWithdrawn_StaysAtItsRelayer(t *testing.T) {
	w := setup(t, func(c *Config) { c.Withdraw = 100 * time.Millisecond })
	id, relayerTx := w.submitted()
	w.relayer.Fail(upstreamtest.Cancel, func(c *upstreamtest.Call) {
		w.relayer.Advance(t, relayerTx, "submitted")
		c.Do(c.ResponseWriter)
	})
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Cancel) > 0 })
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
}

// A relayer that refuses to cancel a transaction keeps it: a later cancellation is an operator's.
func TestReconciler_CancellationRefused_LeavesItAtItsRelayer(t *testing.T) {
	w := setup(t, func(c *Config) { c.Withdraw = 100 * time.Millisecond })
	id, relayerTx := w.submitted()
	w.relayer.Fail(upstreamtest.Cancel, upstreamtest.Error(400))
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Cancel) > 0 })
	w.relayer.Advance(t, relayerTx, "submitted")
	w.dueUntil(func() bool { return !w.withdrawing(id) })
	require.Equal(t, dispatch.Submitted, w.reads(id).Status)
}

// A relayer did not receive the request to cancel, and sends the transaction: a later cancellation is an operator's.
func TestReconciler_CancellationLost_LeavesItAtItsRelayer(t *testing.T) {
	w := setup(t, func(c *Config) { c.Withdraw = 100 * time.Millisecond })
	id, relayerTx := w.submitted()
	w.relayer.Fail(upstreamtest.Cancel, upstreamtest.Drop)
	w.dueUntil(func() bool { return w.relayer.Calls(upstreamtest.Cancel) > 0 })
	w.relayer.Advance(t, relayerTx, "submitted")
	w.dueUntil(func() bool { return w.reads(id).Hash != nil && !w.withdrawing(id) })
	require.Equal(t, dispatch.Submitted, w.reads(id).Status)
}

func (w *world) withdrawing(id uuid.UUID) (is bool) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT withdrawing FROM relay_transactions WHERE id = $1`, id).Scan(&is))
	return is
}
