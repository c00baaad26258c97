package consumer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/big"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// A queued transaction reaches a relayer once, with its contents, and its id is stored before the message ends.
func TestConsumer_Queued_IsSubmitted(t *testing.T) {
	t.Parallel()
	r := ours(t, nil)
	w := setup(t, r)
	ids := []uuid.UUID{w.post(1), w.post(1), w.post(2)}
	w.consume()
	w.consume()
	for _, id := range ids {
		tx := w.reaches(id, dispatch.Submitted)
		require.NotEmpty(t, tx.RelayerTx)
		require.Equal(t, r.URL(), tx.Relayer)
	}
	w.drained()
	got := r.Transactions()
	require.Len(t, got, 3)
	for _, tx := range got {
		require.Equal(t, "5", tx.Value.String())
		require.Equal(t, uint64(100_000), tx.GasLimit)
		require.NotEmpty(t, tx.IdempotencyKey)
	}
}

// The client's trace goes on at the relayer, by way of the consumer's own span.
func TestConsumer_Traceparent_IsTheParentAndReachesTheRelayer(t *testing.T) {
	t.Parallel()
	r := ours(t, nil)
	w := setup(t, r)
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	id := w.post(1)
	_, err := w.db.Exec(t.Context(), `UPDATE relay_transactions SET traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'`)
	require.NoError(t, err)
	w.consume(func(c *Config) { c.Tracer = provider.Tracer("test") })
	w.reaches(id, dispatch.Submitted)
	require.Len(t, spans.GetSpans(), 1)
	span := spans.GetSpans()[0]
	require.Equal(t, "submit", span.Name)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", span.SpanContext.TraceID().String())
	require.Equal(t, "b7ad6b7169203331", span.Parent.SpanID().String())
	require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-"+span.SpanContext.SpanID().String()+"-01", r.Transactions()[0].Traceparent)
}

// A fault of this program in one message must neither end the consumer nor count against the relayer.
func TestConsumer_HandlerPanics_FailsTheMessageAlone(t *testing.T) {
	t.Parallel()
	w := setup(t, ours(t, nil))
	var panicked atomic.Bool
	w.fleet.slow = func(context.Context) {
		if panicked.CompareAndSwap(false, true) {
			panic("a value that no code expects")
		}
	}
	ids := []uuid.UUID{w.post(1), w.post(1), w.post(2)}
	w.consume(func(c *Config) { c.Lease = 4 * time.Second }) // one transaction is resumed only after it
	for _, id := range ids {
		w.reaches(id, dispatch.Submitted)
	}
	require.True(t, panicked.Load())
	require.Eventually(t, func() bool { return w.fleet.inUse.Load() == 0 }, 2*time.Minute, time.Millisecond)
	w.drained()
}

// A relayer dies between accepting and answering: the same key goes to another relayer of its pool, and there is one
// transaction.
func TestConsumer_RelayerDiesBeforeItsAnswer_IsOneTransaction(t *testing.T) {
	for name, fault := range map[string]upstreamtest.Fault{
		"hangs": upstreamtest.AcceptAndHang, "drops": upstreamtest.AcceptAndDrop, "500": upstreamtest.AcceptAndFail(http.StatusInternalServerError),
		"page": upstreamtest.Respond(http.StatusOK, "<html>"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := upstreamtest.NewPool()
			dies, other := ours(t, pool), ours(t, pool)
			limit := 30 * time.Second
			if name == "hangs" {
				limit = time.Second
			}
			w := setupLimited(t, limit, dies, other)
			dies.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
				w.fleet.remove(dies)
				fault(c)
			})
			id := w.post(1)
			w.consume()
			tx := w.reaches(id, dispatch.Submitted)
			require.Equal(t, other.URL(), tx.Relayer)
			require.Len(t, other.Transactions(), 1)
			w.drained()
		})
	}
}

// A relayer of another scope gets nothing while the first may have the transaction.
func TestConsumer_UnknownOutcome_NoOtherScope(t *testing.T) {
	t.Parallel()
	first, stranger := ours(t, nil), upstreamtest.Start(t, upstreamtest.Options{Key: key, Scope: "fedcba9876543210"})
	w := setup(t, first, stranger)
	calls := make(chan struct{}, 100)
	first.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
		calls <- struct{}{}
		upstreamtest.AcceptAndDrop(c)
	})
	id := w.post(1)
	w.consume()
	for range 3 {
		select {
		case <-calls:
		case <-time.After(40 * time.Second):
			require.FailNow(t, "the first relayer is not asked again")
		}
	}
	require.Empty(t, stranger.Transactions())
	first.Fail(upstreamtest.Submit, nil)
	require.Equal(t, first.URL(), w.reaches(id, dispatch.Submitted).Relayer)
	require.Len(t, first.Transactions(), 1)
	require.Empty(t, stranger.Transactions())
}

// A relayer that certainly did not take the transaction is left at once for another, of any scope.
func TestConsumer_NotDone_NextRelayer(t *testing.T) {
	for name, fail := range map[string]func(*upstreamtest.Relayer){
		"refuses": func(r *upstreamtest.Relayer) { r.Refuse() },
		"401": func(r *upstreamtest.Relayer) {
			r.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusUnauthorized))
		},
		"429": func(r *upstreamtest.Relayer) {
			r.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusTooManyRequests))
		},
		"paused": func(r *upstreamtest.Relayer) { r.Pause(true) },
		"redirect": func(r *upstreamtest.Relayer) {
			r.Fail(upstreamtest.Submit, upstreamtest.Respond(http.StatusFound, "", "Location", "/elsewhere"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := foreign(t), foreign(t)
			w := setup(t, bad, good)
			fail(bad)
			tx := w.reaches(func() uuid.UUID { id := w.post(1); w.consume(); return id }(), dispatch.Submitted)
			require.Equal(t, good.URL(), tx.Relayer)
			require.Empty(t, bad.Transactions())
			history, err := w.History(t.Context(), tx.ID)
			require.NoError(t, err)
			require.Len(t, history, 5, "queued, submitting, queued, submitting, submitted")
		})
	}
}

// A message waits as long as the relayer asks for, with a bound, unless another one may be available earlier.
func TestHandle_TooManyRequests_WaitsAsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		after   string // seconds
		another bool   // it is away for a moment
		want    time.Duration
	}{
		"the only relayer, for seconds":        {after: "4", want: 4 * time.Second},
		"the only relayer, until midnight":     {after: "86400", want: longestPause},
		"another relayer is away for a moment": {after: "86400", another: true, want: shortestPause},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			busy, away := ours(t, nil), ours(t, nil)
			relayers := []*upstreamtest.Relayer{busy}
			if c.another {
				relayers = append(relayers, away)
			}
			w := setup(t, relayers...)
			w.fleet.remove(away)
			busy.Fail(upstreamtest.Submit, upstreamtest.Respond(http.StatusTooManyRequests, `{}`, "Retry-After", c.after))
			consumer := New(Config{Store: w.Store, Relayers: w.fleet, Logger: slog.New(slog.DiscardHandler)})
			result := consumer.handle(t.Context(), nil, w.post(1))
			require.Equal(t, outbox.KindLater, result.Kind)
			require.InDelta(t, c.want, result.Delay, float64(2*time.Second), "a starved machine makes the transaction older")
			require.LessOrEqual(t, result.Delay, longestPause)
			require.Equal(t, 1, busy.Calls(upstreamtest.Submit))
		})
	}
}

// A request that every relayer would refuse fails.
func TestConsumer_Rejected_Fails(t *testing.T) {
	t.Parallel()
	r := ours(t, nil)
	w := setup(t, r)
	r.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
	id := w.post(1)
	w.consume()
	require.NotEmpty(t, w.reaches(id, dispatch.Failed).Reason)
	w.drained()
	require.Equal(t, 1, r.Calls(upstreamtest.Submit))
}

// A relayer may reject a transaction for a reason of its own, such as an empty account or wrong settings: another one gets it, also one of
// its scope. It fails once they have all rejected it.
func TestConsumer_RejectedByOne_NextRelayer(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *upstreamtest.Relayer{
		"ours": func(t *testing.T) *upstreamtest.Relayer { return ours(t, nil) }, "foreign": foreign,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong, right := start(t), start(t)
			w := setup(t, wrong, right)
			wrong.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
			id := w.post(1)
			w.consume()
			require.Equal(t, right.URL(), w.reaches(id, dispatch.Submitted).Relayer)
			right.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
			require.NotEmpty(t, w.reaches(w.post(2), dispatch.Failed).Reason)
			w.drained()
			require.Equal(t, 2, wrong.Calls(upstreamtest.Submit))
			require.Equal(t, 2, right.Calls(upstreamtest.Submit))
		})
	}
}

// Beside a relayer without a scope, one that is only away has not rejected a transaction.
func TestConsumer_RejectedWhileAnotherIsAway_Waits(t *testing.T) {
	t.Parallel()
	drained, funded := foreign(t), foreign(t)
	w := setup(t, drained, funded)
	drained.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
	w.fleet.remove(funded)
	id := w.post(1)
	w.consume()
	require.Eventually(t, func() bool { return drained.Calls(upstreamtest.Submit) >= 2 }, 2*time.Minute, 10*time.Millisecond)
	require.False(t, w.reaches(id, dispatch.Queued).Status.Final())
	w.fleet.restore()
	require.Equal(t, funded.URL(), w.reaches(id, dispatch.Submitted).Relayer)
}

// A rejection after an unknown outcome is not believed while the earlier request may be on its way; its repetitions do not extend that.
func TestConsumer_RejectedAfterUnknown_FailsOnceSettled(t *testing.T) {
	for name, code := range map[string]int{"rejected": http.StatusBadRequest, "not done first": http.StatusTooManyRequests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ours(t, nil)
			w := setup(t, r)
			var calls atomic.Int32
			r.Fail(upstreamtest.Submit, func(c *upstreamtest.Call) {
				switch n := calls.Add(1); {
				case n == 1:
					upstreamtest.Drop(c)
				case n < 4:
					upstreamtest.Error(code)(c)
				default:
					upstreamtest.Error(http.StatusBadRequest)(c)
				}
			})
			id := w.post(1)
			w.consume()
			w.reaches(id, dispatch.Failed)
			w.drained()
			require.Empty(t, r.Transactions())
		})
	}
}

// One that stays away is not waited for without end.
func TestConsumer_RejectedWhileOthersStayAway_Fails(t *testing.T) {
	t.Parallel()
	drained, away := foreign(t), foreign(t)
	w := setup(t, drained, away)
	w.fleet.remove(away)
	drained.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
	w.consume(func(c *Config) { c.RejectedFor = 10 * time.Second })
	w.reaches(w.post(1), dispatch.Failed)
	require.GreaterOrEqual(t, drained.Calls(upstreamtest.Submit), 2)
}

// However old a transaction is, a relayer that is available is asked before it fails.
func TestConsumer_OldTransactionRejected_NextRelayer(t *testing.T) {
	t.Parallel()
	drained, funded := foreign(t), foreign(t)
	w := setup(t, drained, funded)
	drained.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusBadRequest))
	id := w.post(1)
	_, err := w.db.Exec(t.Context(), `UPDATE relay_transactions SET created_at = now() - interval '1 hour'`)
	require.NoError(t, err)
	w.consume()
	require.Equal(t, funded.URL(), w.reaches(id, dispatch.Submitted).Relayer)
}

// After a blocked call the relayers that did not take the transaction are not asked a second time in the same delivery.
func TestConsumer_BlockedCall_TriesEachRelayerOnce(t *testing.T) {
	t.Parallel()
	unkeyed, keyed := foreign(t), ours(t, nil)
	w := setup(t, unkeyed, keyed)
	unkeyed.Fail(upstreamtest.Submit, upstreamtest.Drop)
	w.consume()
	w.reaches(w.post(1), dispatch.Unknown)
	keyed.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusTooManyRequests))
	blocked := w.post(1)
	require.Eventually(t, func() bool { return keyed.Calls(upstreamtest.Submit) >= 2 }, 2*time.Minute, 10*time.Millisecond)
	tx, err := w.ByID(t.Context(), blocked)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(tx.CreatedAt), time.Second, "a delivery each")
	keyed.Fail(upstreamtest.Submit, nil)
	require.Equal(t, keyed.URL(), w.reaches(blocked, dispatch.Submitted).Relayer)
}

// A parked call blocks an equal one at relayers without idempotency keys only, and shows it. The reason goes with the cause.
func TestConsumer_EqualCallIsParked_BlocksOnlyWithoutKeys(t *testing.T) {
	t.Parallel()
	unkeyed, keyed := foreign(t), ours(t, nil)
	w := setup(t, unkeyed, keyed)
	w.fleet.remove(keyed)
	unkeyed.Fail(upstreamtest.Submit, upstreamtest.Drop)
	w.consume()
	parked := w.reaches(w.post(1), dispatch.Unknown)
	unkeyed.Fail(upstreamtest.Submit, nil)
	blocked, free := w.post(1), w.post(2)
	w.reaches(free, dispatch.Submitted)
	reason := func(want string) func() bool {
		return func() bool {
			tx, err := w.ByID(t.Context(), blocked)
			return err == nil && tx.Reason == want
		}
	}
	require.Eventually(t, reason(store.BlockedReason), 2*time.Minute, 10*time.Millisecond)

	w.fleet.restore()
	tx := w.reaches(blocked, dispatch.Submitted)
	require.Equal(t, []string{keyed.URL(), ""}, []string{tx.Relayer, tx.Reason})
	for range 3 { // all at once, and none is blocked
		w.reaches(w.post(1), dispatch.Submitted)
	}
	require.Equal(t, dispatch.Unknown, w.reaches(parked.ID, dispatch.Unknown).Status)
	history, err := w.History(t.Context(), blocked)
	require.NoError(t, err)
	require.Len(t, history, 4, "queued, blocked, submitting, submitted: %v", history)
}

// A transaction that was withdrawn from a relayer that sends nothing does not return there while another scope may take it.
func TestConsumer_Withdrawn_GoesToAnotherScope(t *testing.T) {
	t.Parallel()
	swallows := ours(t, nil)
	other := upstreamtest.Start(t, upstreamtest.Options{Key: key, Scope: "fedcba9876543210"})
	w := setup(t, swallows, other)
	swallows.Fail(upstreamtest.Submit, upstreamtest.AcceptAndForget)
	w.fleet.remove(other)
	w.consume()
	first := w.reaches(w.post(1), dispatch.Submitted)
	require.Equal(t, swallows.URL(), first.Relayer)
	ok, err := w.Withdraw(t.Context(), first.Submission())
	require.NoError(t, err)
	require.True(t, ok)
	_, err = w.Apply(t.Context(), []dispatch.Update{{RelayerTx: first.RelayerTx, Status: dispatch.Canceled, At: time.Now()}})
	require.NoError(t, err)

	require.Eventually(t, func() bool { return w.fleet.avoided.Load() >= 2 }, 2*time.Minute, 10*time.Millisecond, "two deliveries")
	require.Equal(t, dispatch.Queued, w.reaches(first.ID, dispatch.Queued).Status)
	w.fleet.restore() // the first choice is still the one that sends nothing
	require.Equal(t, other.URL(), w.reaches(first.ID, dispatch.Submitted).Relayer)
	require.Len(t, swallows.Transactions(), 1)
}

// A relayer without idempotency that accepted and did not answer: the transaction is found, or parked, never posted again.
func TestConsumer_NoIdempotency_NeverDoubled(t *testing.T) {
	t.Run("found", func(t *testing.T) {
		t.Parallel()
		r, other := foreign(t), foreign(t)
		w := setup(t, r, other)
		r.Fail(upstreamtest.Submit, upstreamtest.AcceptAndDrop)
		id := w.post(1)
		w.consume()
		tx := w.reaches(id, dispatch.Submitted)
		require.Len(t, r.Transactions(), 1)
		require.Equal(t, r.Transactions()[0].ID, tx.RelayerTx)
		require.Empty(t, other.Transactions())
	})
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		r, other := foreign(t), foreign(t)
		w := setup(t, r, other)
		r.Fail(upstreamtest.Submit, upstreamtest.Drop)
		id := w.post(1)
		w.consume()
		tx := w.reaches(id, dispatch.Unknown)
		require.NotEmpty(t, tx.Reason)
		w.drained()
		require.Equal(t, 1, r.Calls(upstreamtest.Submit))
		require.Empty(t, other.Transactions())
	})
	t.Run("two alike", func(t *testing.T) {
		t.Parallel()
		r := foreign(t)
		w := setup(t, r)
		r.Fail(upstreamtest.Submit, upstreamtest.AcceptAndDrop)
		first, second := w.post(1), w.post(1)
		w.consume()
		one, two := w.reaches(first, dispatch.Submitted), w.reaches(second, dispatch.Submitted)
		require.NotEqual(t, one.RelayerTx, two.RelayerTx)
		require.Len(t, r.Transactions(), 2)
	})
}

// A relayer without idempotency keys fails for a while. A transaction that it answered with a 500, and does not list, is queued again. It
// is parked if that proves nothing, and never doubled.
func TestConsumer_NoIdempotencyAndServerError_IsQueuedAgain(t *testing.T) {
	recovered := func(w *world) { w.relayers[0].Fail(upstreamtest.Submit, nil) }
	for name, c := range map[string]struct {
		fault upstreamtest.Fault
		edit  func(*world, *Config)
		now   func() time.Time
		want  dispatch.Status
		posts int
		has   int
	}{
		"not stored":            {fault: upstreamtest.Error(500), want: dispatch.Submitted, posts: 2, has: 1},
		"stored":                {fault: upstreamtest.AcceptAndFail(500), want: dispatch.Submitted, posts: 1, has: 1},
		"set to park":           {fault: upstreamtest.Error(500), edit: func(_ *world, c *Config) { c.ParkNotFound = true }, want: dispatch.Unknown, posts: 1},
		"a proxy's answer":      {fault: upstreamtest.Error(504), want: dispatch.Unknown, posts: 1},
		"no answer":             {fault: upstreamtest.Drop, want: dispatch.Unknown, posts: 1},
		"the answer not stored": {fault: upstreamtest.Error(500), edit: func(w *world, c *Config) { c.Store = &unreleased{Store: w.Store} }, want: dispatch.Unknown, posts: 1},
		"its list fails": {
			fault: upstreamtest.Error(500), want: dispatch.Unknown, posts: 1,
			edit: func(w *world, _ *Config) { w.relayers[0].Fail(upstreamtest.List, upstreamtest.Error(500)) },
		},
		"its clock is behind": {
			fault: upstreamtest.AcceptAndFail(500), want: dispatch.Submitted, posts: 1, has: 1,
			now: func() time.Time { return time.Now().Add(-5 * time.Minute) },
		},
		"looked for too late": {
			fault: upstreamtest.Error(500), want: dispatch.Unknown, posts: 1,
			edit: func(w *world, c *Config) { c.Store = &hasty{Store: w.Store, db: w.db} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, upstreamtest.Start(t, upstreamtest.Options{Key: key, Now: c.now}))
			r := w.relayers[0]
			r.Fail(upstreamtest.Submit, func(call *upstreamtest.Call) { c.fault(call); recovered(w) })
			id := w.post(1)
			w.consume(func(cfg *Config) {
				cfg.Lease = 4 * time.Second
				if c.edit != nil {
					c.edit(w, cfg)
				}
			})
			w.reaches(id, c.want)
			w.drained()
			require.Equal(t, c.posts, r.Calls(upstreamtest.Submit))
			require.Len(t, r.Transactions(), c.has)
		})
	}
}

// Log lines about a transaction carry the ids of its client's trace.
func TestConsumer_LogLines_CarryTheTrace(t *testing.T) {
	t.Parallel()
	w := setup(t, upstreamtest.Start(t, upstreamtest.Options{Key: key}))
	w.relayers[0].Fail(upstreamtest.Submit, upstreamtest.Error(500))
	tx := &dispatch.Transaction{
		ID: uuid.Must(uuid.NewV7()), Client: "shop", Kind: dispatch.Direct, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Call: dispatch.Call{To: common.Address{1}, Value: big.NewInt(5), GasLimit: 100_000, Speed: dispatch.Average},
	}
	results, err := w.Accept(t.Context(), []*dispatch.Transaction{tx})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	var log bytes.Buffer // read when the consumer has stopped
	stop := w.consume(func(cfg *Config) {
		cfg.Lease, cfg.ParkNotFound, cfg.Logger = 4*time.Second, true, slog.New(tracing.LogIDs(slog.NewTextHandler(&log, nil)))
	})
	w.reaches(tx.ID, dispatch.Unknown)
	stop()
	require.Regexp(t, `msg="transaction parked.* trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331\n`, log.String())
}

// A consumer dies between the request and the stored answer; another one goes on, and there is one transaction.
func TestConsumer_DiesBeforeTheAnswerIsStored_IsOneTransaction(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *upstreamtest.Relayer{
		"ours": func(t *testing.T) *upstreamtest.Relayer { return ours(t, nil) }, "foreign": foreign,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			w := setup(t, r)
			id := w.post(1)
			asked := make(chan struct{}, 100)
			broken := &failing{Store: w.Store, accepted: func() error {
				select {
				case asked <- struct{}{}:
				default: // it is only waited for once
				}
				return errors.New("the database is away")
			}}
			stop := w.consume(func(c *Config) { c.Store, c.Lease = broken, 2*time.Second })
			<-asked
			require.Len(t, r.Transactions(), 1)
			w.consume()
			w.reaches(id, dispatch.Submitted)
			stop()
			require.Len(t, r.Transactions(), 1)
			w.drained()
		})
	}
}

// A consumer stands still with a relayer's acceptance, as on a paused virtual machine. Meanwhile another one withdraws the transaction
// from that relayer, and has posted it to a second one. The first consumer's acceptance changes nothing when it goes on.
func TestConsumer_StandsStillWithAnAcceptance_IsNotStoredOverAnother(t *testing.T) {
	t.Parallel()
	first, second := ours(t, nil), upstreamtest.Start(t, upstreamtest.Options{Key: key, Scope: "fedcba9876543210"})
	w := setup(t, first, second)
	w.fleet.remove(second)
	id := w.post(1)
	still := newPausing(w)
	w.consume(func(c *Config) { c.Store, c.Lease, c.Queue = still, time.Second, w.queue(1) })
	t.Cleanup(still.goOn)
	<-still.asked
	require.Len(t, first.Transactions(), 1)
	r0 := first.Transactions()[0].ID

	route := w.fleet.members[0].route
	start := []store.Start{{ID: id, Holder: uuid.New(), Route: route, Lease: time.Minute}}
	require.Eventually(t, func() bool {
		begun, err := w.Begin(t.Context(), start)
		return err == nil && begun[0].State == store.Resumed
	}, 2*time.Minute, 10*time.Millisecond, "the lease of the first consumer ends")
	route.RelayerTx = r0
	require.NoError(t, w.Accepted(t.Context(), []store.Acceptance{{ID: id, Attempt: 1, Route: route}}))
	marked, err := w.Withdraw(t.Context(), dispatch.Submission{ID: id, Attempt: 1, RelayerTx: r0})
	require.NoError(t, err)
	require.True(t, marked)
	_, err = w.Apply(t.Context(), []dispatch.Update{{RelayerTx: r0, Status: dispatch.Canceled, Revision: 5}})
	require.NoError(t, err)
	_, err = w.db.Exec(t.Context(), `UPDATE relay_queue SET claimed_until = '-infinity'`)
	require.NoError(t, err, "a process that stands still does not extend its claim")
	w.fleet.restore()
	other := newPausing(w)
	w.consume(func(c *Config) { c.Store = other })
	t.Cleanup(other.goOn)
	<-other.asked

	still.goOn() // the second relayer has accepted, too, and neither acceptance is stored
	require.NoError(t, <-still.done)
	require.Empty(t, w.reaches(id, dispatch.Submitting).RelayerTx)
	other.goOn()
	require.NoError(t, <-other.done)
	tx := w.reaches(id, dispatch.Submitted)
	require.Equal(t, second.URL(), tx.Relayer)
	for _, u := range []dispatch.Update{
		{RelayerTx: r0, Status: dispatch.Canceled, Revision: 6}, {RelayerTx: tx.RelayerTx, Status: dispatch.Confirmed, Revision: 5, Hash: &common.Hash{9}},
	} {
		_, err = w.Apply(t.Context(), []dispatch.Update{u})
		require.NoError(t, err)
	}
	w.reaches(id, dispatch.Confirmed)
	require.Len(t, first.Transactions(), 1)
	require.Len(t, second.Transactions(), 1)
}

// A relayer has certainly not taken a transaction, and the database restarts before that is stored: nothing may be unknown.
func TestConsumer_DatabaseAwayAfterNotDone_IsQueuedAgain(t *testing.T) {
	t.Parallel()
	r := foreign(t)
	w := setup(t, r)
	r.Fail(upstreamtest.Submit, upstreamtest.Error(http.StatusTooManyRequests))
	id := w.post(1)
	w.consume(func(c *Config) {
		c.Store = &interrupted{Store: w.Store, once: func() { r.Fail(upstreamtest.Submit, nil) }}
	})
	w.reaches(id, dispatch.Submitted)
	require.Len(t, r.Transactions(), 1)
}

// A consumer takes messages only while it has a relayer: another one may have one meanwhile. A message that it holds when its last
// relayer goes is put back.
func TestConsumer_NoRelayer_TakesNoMessages(t *testing.T) {
	t.Parallel()
	r := ours(t, nil)
	w := setup(t, r)
	w.fleet.remove(r)
	q := &signaled{Queue: w.queue(64), begun: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	id := w.post(1)
	w.consume(func(c *Config) { c.Queue = q })
	for asked := w.fleet.asked.Load(); w.fleet.asked.Load() < asked+3; {
		runtime.Gosched()
	}
	require.Empty(t, q.begun)
	w.fleet.restore()
	<-q.begun
	w.reaches(id, dispatch.Submitted)

	w.fleet.remove(r)
	id = w.post(2)
	select {
	case <-q.ended:
	case <-time.After(40 * time.Second):
		require.FailNow(t, "it takes messages that it cannot submit")
	}
	require.Equal(t, dispatch.Queued, w.reaches(id, dispatch.Queued).Status)
	w.fleet.restore()
	<-q.begun
	w.reaches(id, dispatch.Submitted)
	require.Len(t, r.Transactions(), 2)
}

// While a request hangs, its consumer stays ready for the next message: its relayer may be available again before the end.
func TestConsumer_RequestHangs_TakesTheNextMessage(t *testing.T) {
	t.Parallel()
	r := ours(t, nil)
	w := setup(t, r)
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	var first atomic.Bool
	first.Store(true)
	w.fleet.slow = func(context.Context) {
		if first.CompareAndSwap(true, false) {
			<-released
		}
	}
	hangs := w.post(1)
	w.consume(func(c *Config) { c.Lease = 2 * time.Minute })
	t.Cleanup(release) // before the consumer's end, which waits for the request
	w.reaches(hangs, dispatch.Submitting)
	w.fleet.remove(r)
	<-time.After(patience + time.Second) // longer than it waits for a relayer
	w.fleet.restore()
	w.reaches(w.post(2), dispatch.Submitted)
	release()
	w.reaches(hangs, dispatch.Submitted)
}

// A stopping consumer finishes its request and begins no other one: the message goes to another consumer.
func TestConsumer_StopsWhileARelayerRefuses_TriesNoOther(t *testing.T) {
	t.Parallel()
	bad, good := foreign(t), foreign(t)
	w := setup(t, bad, good)
	bad.Pause(true)
	q := &watched{receiving: make(chan context.Context, 1)}
	asked := make(chan struct{})
	var first sync.Once
	w.fleet.slow = func(context.Context) {
		first.Do(func() {
			receiving := <-q.receiving
			close(asked)
			<-receiving.Done()
		})
	}
	id := w.post(1)
	stop := w.consume(func(c *Config) { q.Queue, c.Queue = c.Queue, q })
	<-asked
	stop()
	require.Equal(t, 1, bad.Calls(upstreamtest.Submit))
	require.Zero(t, good.Calls(upstreamtest.Submit))
	w.consume()
	require.Equal(t, good.URL(), w.reaches(id, dispatch.Submitted).Relayer)
}

// A request ends with its lease at the latest, whatever the relayer's timeout is: another consumer resumes after that.
func TestConsumer_Request_EndsWithItsLease(t *testing.T) {
	t.Parallel()
	w := setup(t, ours(t, nil))
	var first sync.Once
	ended := make(chan error, 1)
	w.fleet.slow = func(ctx context.Context) {
		first.Do(func() {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			ended <- ctx.Err()
		})
	}
	id := w.post(1)
	w.consume(func(c *Config) { c.Lease = 2 * time.Second })
	require.ErrorIs(t, <-ended, context.DeadlineExceeded)
	w.reaches(id, dispatch.Submitted)
}
