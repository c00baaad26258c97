package reconciler

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

// acceptedLate makes a transaction that the relayer accepts, and whose row is at another one, which reports that it failed.
func (w *world) acceptedLate() (id uuid.UUID, relayerTx string) {
	w.t.Helper()
	tx := w.accept()
	other := dispatch.Route{Relayer: "other", URL: "http://127.0.0.1:1", RelayerID: "main", RelayerTx: "r1", Scope: "another"}
	begin := func(route dispatch.Route) uuid.UUID {
		holder := uuid.New()
		require.Eventually(w.t, func() bool { // it is held while the reconciler looks at it
			begun, err := w.Begin(w.t.Context(), []store.Start{{ID: tx.ID, Holder: holder, Route: route, Lease: time.Minute}})
			return err == nil && begun[0].State == store.Fresh
		}, 2*time.Minute, 10*time.Millisecond)
		return holder
	}
	holder := begin(w.route)
	result := w.client.Submit(w.t.Context(), upstream.Submission{
		RelayerID: w.route.RelayerID, IdempotencyKey: tx.ID.String(), Scope: w.route.Scope, To: &tx.To, Value: tx.Value, GasLimit: tx.GasLimit, Speed: string(tx.Speed),
	})
	require.Equal(w.t, upstream.Accepted, result.Outcome)
	ok, err := w.Requeue(w.t.Context(), tx.ID, holder, "")
	require.NoError(w.t, err)
	require.True(w.t, ok)
	begin(other)
	require.NoError(w.t, w.Accepted(w.t.Context(), []store.Acceptance{{ID: tx.ID, Attempt: 2, Route: other}}))
	late := w.route
	late.RelayerTx = result.Transaction.ID
	require.NoError(w.t, w.Accepted(w.t.Context(), []store.Acceptance{{ID: tx.ID, Attempt: 1, Route: late}}))
	w.otherFails(tx.ID, dispatch.Unknown)
	require.Equal(w.t, "r1", w.reads(tx.ID).RelayerTx)
	return tx.ID, late.RelayerTx
}

// otherFails applies a report that the transaction failed at the other relayer, which makes it another status.
func (w *world) otherFails(id uuid.UUID, becomes dispatch.Status) {
	w.t.Helper()
	_, err := w.Apply(w.t.Context(), []dispatch.Update{{ID: id, Attempt: 2, RelayerTx: "r1", Status: dispatch.Failed, Revision: 5, At: time.Now()}})
	require.NoError(w.t, err)
	require.Equal(w.t, becomes, w.reads(id).Status)
}

// onlyOwn returns the relayer as the witness of its own route alone.
func onlyOwn(w **world) func(*Config) {
	return func(c *Config) {
		c.Witnesses = func(at dispatch.Route) []Witness {
			if at.URL != (*w).route.URL {
				return nil
			}
			return []Witness{{(*w).client, at.URL}}
		}
	}
}

// A relayer executes a transaction that it accepted late, while another one reports that it failed: it is confirmed.
func TestReconciler_AcceptedLateAndExecuted_IsConfirmed(t *testing.T) {
	var w *world
	w = setup(t, onlyOwn(&w))
	id, relayerTx := w.acceptedLate()
	w.relayer.Advance(t, relayerTx, "mined")
	w.relayer.Advance(t, relayerTx, "confirmed")
	tx := w.reaches(id, dispatch.Confirmed)
	require.Equal(t, relayerTx, tx.RelayerTx)
	require.NotNil(t, tx.Hash)
	require.Contains(t, tx.Reason, "other has it as r1")
	require.InDelta(t, 1, w.counter("rollcall_relay_late_acceptances_total"), 0)
}

// A relayer has canceled, or does not have, what it accepted late. Then the report of the transaction's own relayer counts.
func TestReconciler_AcceptedLateAndNotExecuted_EndsAsItsRelayerReports(t *testing.T) {
	for name, end := range map[string]func(*world, string){
		"canceled":  func(w *world, relayerTx string) { w.relayer.Advance(w.t, relayerTx, "canceled") },
		"cancelled": func(w *world, relayerTx string) { w.relayer.Advance(w.t, relayerTx, "cancelled") }, //nolint:misspell // some documents spell it so
		"lost":      func(w *world, _ string) { w.relayer.Fail(upstreamtest.Get, upstreamtest.Error(404)) },
	} {
		t.Run(name, func(t *testing.T) {
			var w *world
			w = setup(t, onlyOwn(&w))
			id, relayerTx := w.acceptedLate()
			end(w, relayerTx)
			require.Eventually(t, func() bool {
				late, err := w.LateOf(t.Context(), id)
				return err == nil && len(late) == 0
			}, 2*time.Minute, 10*time.Millisecond)
			w.otherFails(id, dispatch.Failed)
		})
	}
}

// A relayer that answers slowly about what it accepted late must delay no transaction of another one.
func TestReconciler_LateRelayerAnswersSlowly_DelaysNoOther(t *testing.T) {
	slow := &stopped{began: make(chan struct{}, page), release: make(chan struct{})}
	w := setup(t, func(c *Config) {
		witnesses := c.Witnesses
		c.Witnesses = func(to dispatch.Route) []Witness {
			if to.URL == "http://slow" {
				return []Witness{{slow, "http://slow"}}
			}
			return witnesses(to)
		}
	})
	id, relayerTx := w.submitted()
	slowly := dispatch.Route{Relayer: "slow", URL: "http://slow", RelayerID: "main", RelayerTx: "r9", Scope: "another"}
	require.NoError(t, w.Accepted(t.Context(), []store.Acceptance{{ID: id, Attempt: 0, Route: slowly}}))
	<-slow.began
	w.relayer.Advance(t, relayerTx, "confirmed")
	w.confirmedByChecks(id)
	require.EqualValues(t, 1, slow.calls.Load(), "its answer is waited for")
	close(slow.release)
	require.Eventually(t, func() bool { // the next check comes
		_, err := w.db.Exec(t.Context(), `UPDATE relay_late_acceptances SET check_at = now()`)
		return err == nil && slow.calls.Load() > 1
	}, 2*time.Minute, 10*time.Millisecond)
}
