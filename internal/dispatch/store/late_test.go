package store

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// elsewhere is a relayer of another scope.
var elsewhere = dispatch.Route{Relayer: "oz-relayer-9", URL: "http://relayer-9:3000", RelayerID: "other", Scope: "another"}

// acceptedLate stores the acceptance of an attempt, after the transaction has gone on.
func (f *fixture) acceptedLate(id uuid.UUID, attempt int, by dispatch.Route, relayerTx string) {
	f.t.Helper()
	by.RelayerTx = relayerTx
	require.NoError(f.t, f.Accepted(f.t.Context(), []Acceptance{{ID: id, Attempt: attempt, Route: by}}))
}

// late returns the late acceptances whose relayers are to be asked.
func (f *fixture) late() []Late {
	f.t.Helper()
	all, err := f.TakeLate(f.t.Context())
	require.NoError(f.t, err)
	return all
}

// A consumer stands still with a relayer's acceptance. Another one withdraws the transaction from that relayer, and gives it to another:
// the first one's acceptance changes nothing, at whichever point it comes.
func TestAccepted_WithdrawnMeanwhile_ChangesNothing(t *testing.T) {
	for name, done := range map[string]int{"queued": 0, "submitting": 1, "submitted": 2} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			tx := f.accept(transaction("shop"))
			begun, _ := f.begin(tx.ID, route, -time.Second)
			require.Equal(t, 1, begun.Transaction.Attempt)
			resumed, _ := f.begin(tx.ID, route, time.Minute)
			require.Equal(t, Resumed, resumed.State)
			f.accepted(tx.ID, route, "r0")
			marked, err := f.Withdraw(t.Context(), f.read(tx.ID).Submission())
			require.NoError(t, err)
			require.True(t, marked)
			f.apply(dispatch.Update{RelayerTx: "r0", Status: dispatch.Canceled, Revision: 5})
			goesOn := []func(){
				func() {
					begun, _ := f.begin(tx.ID, elsewhere, time.Minute)
					require.Equal(t, Fresh, begun.State)
				},
				func() { f.accepted(tx.ID, elsewhere, "r1") },
			}
			for _, step := range goesOn[:done] {
				step()
			}
			before := f.read(tx.ID)
			f.acceptedLate(tx.ID, 1, route, "r0")
			require.Equal(t, before, f.read(tx.ID))
			require.Empty(t, f.late(), "its end is known")
			for _, step := range goesOn[done:] {
				step()
			}
			f.apply(dispatch.Update{RelayerTx: "r0", Status: dispatch.Canceled, Revision: 6})
			f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Confirmed, Revision: 5, Hash: &common.Hash{9}})
			require.Equal(t, dispatch.Confirmed, f.read(tx.ID).Status)
			require.Zero(t, f.count(`SELECT count(*) FROM relay_history WHERE status = 'canceled'`))
		})
	}
}

// twice makes a transaction that a relayer accepted late, after it was queued again and second has given it to another one.
func (f *fixture) twice(second func(id uuid.UUID)) (tx *dispatch.Transaction) {
	f.t.Helper()
	tx = f.accept(transaction("shop"))
	_, holder := f.begin(tx.ID, foreign, time.Minute)
	ok, err := f.Requeue(f.t.Context(), tx.ID, holder, "its relayer does not have it")
	require.NoError(f.t, err)
	require.True(f.t, ok)
	if second != nil {
		second(tx.ID)
	}
	f.acceptedLate(tx.ID, 1, foreign, "r0")
	return tx
}

// A client is not told that a transaction failed or was canceled while another relayer may execute it.
func TestApply_AcceptedLateElsewhere_IsUnknownUntilThatIsSettled(t *testing.T) {
	for _, status := range []dispatch.Status{dispatch.Failed, dispatch.Canceled, dispatch.Expired} {
		for _, executed := range []*common.Hash{nil, {7}} {
			t.Run(string(status), func(t *testing.T) {
				f := setup(t)
				tx := f.twice(func(id uuid.UUID) {
					f.begin(id, elsewhere, time.Minute)
					f.accepted(id, elsewhere, "r1")
				})
				require.Equal(t, "r1", f.read(tx.ID).RelayerTx)
				due, err := f.TakeDue(t.Context(), 10, 0, nil)
				require.NoError(t, err)
				require.Len(t, due, 1, "its relayer is asked, too")

				report := dispatch.Update{ID: tx.ID, Attempt: 2, RelayerTx: "r1", Status: status, Revision: 5, At: time.Now()}
				f.apply(report)
				got := f.read(tx.ID)
				require.Equal(t, dispatch.Unknown, got.Status)
				require.Contains(t, got.Reason, string(status))

				late := f.late()
				require.Len(t, late, 1)
				require.Equal(t, dispatch.Route{Relayer: "foreign", URL: foreign.URL, RelayerID: "main", RelayerTx: "r0"}, late[0].Route)
				require.Empty(t, f.late(), "it was asked just now")
				changed, err := f.SettleLate(t.Context(), &late[0], executed)
				require.NoError(t, err)
				require.Equal(t, executed != nil, changed)
				f.apply(report)
				got = f.read(tx.ID)
				if executed == nil {
					require.Equal(t, status, got.Status)
					return
				}
				require.Equal(t, dispatch.Confirmed, got.Status)
				require.Equal(t, executed, got.Hash)
				require.Equal(t, "executed by foreign as r0; oz-relayer-9 has it as r1, and may execute it again", got.Reason)
			})
		}
	}
}

// A transaction that is queued again, and was accepted late, is given to no other relayer.
func TestTakeLate_Queued_GoesOnAtThatRelayer(t *testing.T) {
	f := setup(t)
	tx := f.twice(nil)
	begun, _ := f.begin(tx.ID, elsewhere, time.Minute)
	require.Equal(t, Held, begun.State)
	require.Greater(t, time.Until(begun.Until), 500*time.Millisecond)
	require.Empty(t, f.late())
	got := f.read(tx.ID)
	require.Equal(t, dispatch.Submitted, got.Status)
	require.Equal(t, dispatch.Route{Relayer: "foreign", URL: foreign.URL, RelayerID: "main", RelayerTx: "r0"}, got.Route)
	require.True(t, f.apply(dispatch.Update{RelayerTx: "r0", Status: dispatch.Confirmed, Revision: 5}).Changed)
}

// locked calls do while the row of a transaction is locked, after a concurrent call waits for it. It returns the call's error.
func (f *fixture) locked(id uuid.UUID, call func() error, do func(pgx.Tx)) error {
	f.t.Helper()
	lock, err := f.db.Begin(f.t.Context())
	require.NoError(f.t, err)
	defer lock.Rollback(context.WithoutCancel(f.t.Context())) //nolint:errcheck // committed below
	_, err = lock.Exec(f.t.Context(), `SELECT FROM relay_transactions WHERE id = $1 FOR UPDATE`, id)
	require.NoError(f.t, err)
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	f.waiting(1)
	do(lock)
	require.NoError(f.t, lock.Commit(f.t.Context()))
	return <-ended
}

// waiting returns once n statements wait for locks.
func (f *fixture) waiting(n int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		return f.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	}, 2*time.Minute, 5*time.Millisecond)
}

// Another process settles a late acceptance while TakeLate waits for the row. The transaction is not given to that relayer any more.
func TestTakeLate_SettledMeanwhile_IsNotGiven(t *testing.T) {
	for name, next := range map[string]dispatch.Route{"the only one": {}, "one of two": {
		Relayer: elsewhere.Relayer, URL: elsewhere.URL, RelayerID: elsewhere.RelayerID, Scope: elsewhere.Scope, RelayerTx: "r1",
	}} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			tx := f.twice(nil)
			if next.RelayerTx != "" {
				f.acceptedLate(tx.ID, 1, next, next.RelayerTx)
			}
			require.NoError(t, f.locked(tx.ID, func() error { _, err := f.TakeLate(t.Context()); return err }, func(settling pgx.Tx) {
				_, err := settling.Exec(t.Context(), `UPDATE relay_late_acceptances SET settled = true WHERE tx = $1 AND relayer_tx = 'r0'`, tx.ID)
				require.NoError(t, err)
			}))
			require.Equal(t, next, f.read(tx.ID).Route)
		})
	}
}

// A rejection by a later relayer does not end a transaction that the first one has accepted late: it goes on there, and other clients'
// equal calls do not wait for an operator.
func TestFail_AcceptedLateElsewhere_GoesOnAtThatRelayer(t *testing.T) {
	for _, status := range []dispatch.Status{dispatch.Confirmed, dispatch.Failed} {
		t.Run(string(status), func(t *testing.T) {
			f := setup(t)
			other := dispatch.Route{Relayer: "other", URL: "http://other:3000", RelayerID: "main"}
			var holder uuid.UUID
			tx := f.twice(func(id uuid.UUID) { _, holder = f.begin(id, other, time.Minute) })
			ok, err := f.Fail(t.Context(), tx.ID, holder, "rejected")
			require.NoError(t, err)
			require.True(t, ok)
			got := f.read(tx.ID)
			require.Equal(t, dispatch.Queued, got.Status)
			require.Equal(t, dispatch.Route{}, got.Route)
			require.Equal(t, "rejected", got.Reason)
			require.Zero(t, f.count(`SELECT count(*) FROM relay_unresolved_calls`))
			require.NoError(t, f.Release(t.Context(), tx.ID, holder, Unanswered))
			begun, _ := f.begin(tx.ID, elsewhere, time.Minute)
			require.Equal(t, Held, begun.State)

			require.Empty(t, f.late())
			require.Equal(t, "r0", f.read(tx.ID).RelayerTx)
			f.apply(dispatch.Update{RelayerTx: "r0", Status: status, Revision: 5, Hash: &common.Hash{7}})
			require.Equal(t, status, f.read(tx.ID).Status)
		})
	}
}

// Without a late acceptance whose end is open, a rejected transaction fails.
func TestFail_LateAcceptanceIsSettled_Fails(t *testing.T) {
	f := setup(t)
	var holder uuid.UUID
	tx := f.twice(func(id uuid.UUID) { _, holder = f.begin(id, elsewhere, time.Minute) })
	late := f.late()
	require.Len(t, late, 1)
	_, err := f.SettleLate(t.Context(), &late[0], nil)
	require.NoError(t, err)
	ok, err := f.Fail(t.Context(), tx.ID, holder, "rejected")
	require.NoError(t, err)
	require.True(t, ok)
	got := f.read(tx.ID)
	require.Equal(t, dispatch.Failed, got.Status)
	require.Equal(t, elsewhere, got.Route)
}

// Within an attempt a relayer's answer stays true, and a second one is kept. One of another row's is nothing new.
func TestAccepted_SecondOfAnAttempt_IsKept(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	_, holder := f.begin(tx.ID, foreign, time.Minute)
	ok, err := f.Park(t.Context(), tx.ID, holder, "the relayer does not show it")
	require.NoError(t, err)
	require.True(t, ok)
	f.accepted(tx.ID, foreign, "r0")
	f.acceptedLate(tx.ID, 1, foreign, "r0")
	require.Equal(t, "r0", f.read(tx.ID).RelayerTx)
	require.Empty(t, f.late())

	other := f.accept(transaction("shop"))
	f.begin(other.ID, foreign, time.Minute)
	f.accepted(other.ID, foreign, "r1")
	f.acceptedLate(tx.ID, 1, foreign, "r1")
	require.Empty(t, f.late(), "another transaction has it")
	f.acceptedLate(tx.ID, 1, foreign, "r2")
	late := f.late()
	require.Len(t, late, 1)
	require.Equal(t, "r2", late[0].Route.RelayerTx)
	require.Equal(t, "r0", late[0].Transaction.RelayerTx)
	routes, err := f.LateOf(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Equal(t, []dispatch.Route{late[0].Route}, routes)
}

// Reports of a late acceptance stay until a row has its relayer's id.
func TestAccepted_Late_KeepsItsReports(t *testing.T) {
	f := setup(t)
	f.apply(dispatch.Update{RelayerTx: "r0", Status: dispatch.Confirmed, Revision: 5, Hash: &common.Hash{7}})
	tx := f.twice(nil)
	require.Empty(t, f.late())
	_, err := f.MatchReports(t.Context())
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, f.read(tx.ID).Status)
}

// Two relayers may give a transaction the same id. A process that finds out something about the earlier submission changes nothing of
// the current one.
func TestSubmission_Earlier_ChangesNothing(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "1")
	earlier := tx.Submission()
	_, err := f.Withdraw(t.Context(), earlier)
	require.NoError(t, err)
	f.apply(dispatch.Update{ID: tx.ID, Attempt: 1, RelayerTx: "1", Status: dispatch.Canceled, Revision: 5})
	f.begin(tx.ID, elsewhere, time.Minute)
	f.accepted(tx.ID, elsewhere, "1")
	before := f.read(tx.ID)
	for name, change := range map[string]func(context.Context) (bool, error){
		"withdraw": func(ctx context.Context) (bool, error) { return f.Withdraw(ctx, earlier) },
		"lose":     func(ctx context.Context) (bool, error) { return f.Lose(ctx, earlier, "its relayer does not have it") },
		"report": func(ctx context.Context) (bool, error) {
			return f.apply(dispatch.Update{ID: tx.ID, Attempt: 1, RelayerTx: "1", Status: dispatch.Canceled, Revision: 7}).Changed, nil
		},
		"webhook": func(ctx context.Context) (bool, error) {
			return f.apply(dispatch.Update{RelayerTx: "1", Status: dispatch.Canceled, Revision: 7}).Changed, nil
		},
	} {
		changed, err := change(t.Context())
		require.NoError(t, err)
		require.False(t, changed, name)
		require.Equal(t, before, f.read(tx.ID), name)
	}
	marked, err := f.Withdraw(t.Context(), before.Submission())
	require.NoError(t, err)
	require.True(t, marked)
	require.NoError(t, f.StopWithdrawing(t.Context(), earlier))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_transactions WHERE withdrawing`))
	require.True(t, f.apply(dispatch.Update{ID: tx.ID, Attempt: 2, RelayerTx: "1", Status: dispatch.Confirmed, Revision: 5}).Changed)
}

// A lookup at a relayer without idempotency keys finds a submission of another row, maybe a former one. It is not this row's.
func TestAccepted_SubmissionOfAnotherRow_ChangesNothing(t *testing.T) {
	accepted := func(f *fixture) *dispatch.Transaction {
		tx := f.accept(transaction("shop"))
		f.begin(tx.ID, foreign, time.Minute)
		f.accepted(tx.ID, foreign, "r0")
		return tx
	}
	for name, former := range map[string]func(*fixture) *dispatch.Transaction{
		"accepted":      accepted,
		"accepted late": func(f *fixture) *dispatch.Transaction { return f.twice(nil) },
		"queued again by an operator": func(f *fixture) *dispatch.Transaction {
			tx := accepted(f)
			ok, err := f.Resolve(f.t.Context(), f.read(tx.ID), dispatch.Resolution{Retry: true}, "the relayer was replaced")
			require.NoError(f.t, err)
			require.True(f.t, ok)
			return tx
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			first := former(f)
			owners, err := f.Owners(t.Context(), []string{"r0", "r1"})
			require.NoError(t, err)
			require.Equal(t, map[string]uuid.UUID{"r0": first.ID}, owners)

			equal := f.accept(transaction("other"))
			f.begin(equal.ID, foreign, time.Minute)
			f.accepted(equal.ID, foreign, "r0")
			require.Equal(t, dispatch.Submitting, f.read(equal.ID).Status)
			require.Zero(t, f.count(`SELECT count(*) FROM relay_late_acceptances WHERE tx = $1`, equal.ID))
			f.accepted(equal.ID, foreign, "r1")
			require.Equal(t, "r1", f.read(equal.ID).RelayerTx)
		})
	}
}

// A late acceptance is stored while a report of a failure waits for the row: the transaction does not fail.
func TestApply_AcceptedLateMeanwhile_IsUnknown(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	require.NoError(t, f.locked(tx.ID, func() error {
		_, err := f.Apply(t.Context(), []dispatch.Update{{RelayerTx: "r1", Status: dispatch.Failed, Revision: 5}})
		return err
	}, func(accepting pgx.Tx) {
		_, err := accepting.Exec(t.Context(), `INSERT INTO relay_late_acceptances (tx, pool, relayer_tx, relayer, relayer_url, relayer_id, scope, settled)
			VALUES ($1, 'foreign', 'r0', 'foreign', '', 'main', '', false)`, tx.ID)
		require.NoError(t, err)
	}))
	require.Equal(t, dispatch.Unknown, f.read(tx.ID).Status)
}

// A relayer with idempotency keys that gives two transactions one id, for example after its database was lost, has one of them at most: the
// report of one would end both.
func TestAccepted_KeyedRelayerGivesAnIDTwice_ChangesNothing(t *testing.T) {
	f := setup(t)
	f.submitted("shop", "1")
	second := f.accept(transaction("shop"))
	f.begin(second.ID, route, time.Minute)
	f.accepted(second.ID, route, "1")
	require.Equal(t, dispatch.Submitting, f.read(second.ID).Status)
	f.accepted(second.ID, route, "2")
	require.Equal(t, "2", f.read(second.ID).RelayerTx)

	pair := []*dispatch.Transaction{f.accept(transaction("shop")), f.accept(transaction("shop"))}
	var both []Acceptance
	for _, tx := range pair {
		f.begin(tx.ID, route, time.Minute)
		by := route
		by.RelayerTx = "3"
		both = append(both, Acceptance{ID: tx.ID, Attempt: 1, Route: by})
	}
	require.NoError(t, f.Accepted(t.Context(), both))
	require.Equal(t, dispatch.Submitted, f.read(pair[0].ID).Status)
	require.Equal(t, dispatch.Submitting, f.read(pair[1].ID).Status, "in one batch")
}

// A lookup's acceptance is stored while another row's late one waits for a lock: only one of the rows gets it.
func TestAccepted_Concurrent_OneRowHasTheSubmission(t *testing.T) {
	f := setup(t)
	first := f.accept(transaction("shop"))
	_, holder := f.begin(first.ID, foreign, time.Minute)
	ok, err := f.Requeue(t.Context(), first.ID, holder, "answered 500, and does not have it")
	require.NoError(t, err)
	require.True(t, ok)
	equal := f.accept(transaction("other"))
	f.begin(equal.ID, foreign, time.Minute)
	by := foreign
	by.RelayerTx = "r0"
	accepted := func(id uuid.UUID) func() error {
		return func() error { return f.Accepted(t.Context(), []Acceptance{{ID: id, Attempt: 1, Route: by}}) }
	}
	second := make(chan error, 1)
	require.NoError(t, f.locked(first.ID, accepted(first.ID), func(pgx.Tx) {
		go func() { second <- accepted(equal.ID)() }()
		f.waiting(2)
	}))
	require.NoError(t, <-second)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_late_acceptances WHERE tx = $1`, first.ID))
	require.Empty(t, f.read(equal.ID).RelayerTx)
}

// The row's own former submission is its own: a relayer that lists nothing else has only that one.
func TestAccepted_OwnFormerSubmission_IsTaken(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	for range 2 {
		f.begin(tx.ID, foreign, time.Minute)
		f.accepted(tx.ID, foreign, "r0")
		require.Equal(t, "r0", f.read(tx.ID).RelayerTx)
		require.Zero(t, f.count(`SELECT count(*) FROM relay_late_acceptances`))
		ok, err := f.Resolve(t.Context(), f.read(tx.ID), dispatch.Resolution{Retry: true}, "the relayer was restarted")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_late_acceptances`))
	}
}

// Two relayers have given the same id, one of them in a late acceptance. A webhook does not name the transaction, so it changes none.
func TestApply_IDOfAnotherRowsLateAcceptance_ChangesNothing(t *testing.T) {
	f := setup(t)
	first := f.twice(func(id uuid.UUID) { f.begin(id, elsewhere, time.Minute) })
	second := f.submitted("other", "r0")
	webhook := dispatch.Update{RelayerTx: "r0", Status: dispatch.Failed, Revision: 5, At: time.Now()}
	require.False(t, f.apply(webhook).Changed)
	require.Equal(t, dispatch.Submitted, f.read(second.ID).Status)
	require.Equal(t, dispatch.Submitting, f.read(first.ID).Status)
	webhook.ID, webhook.Attempt = second.ID, 1
	require.True(t, f.apply(webhook).Changed, "an answer names it")
}

// A relayer's answer counts for its own attempt alone, also if the next one begins in a consumer that does not know of the answer's column.
func TestRelease_Failed_HoldsForTheAttempt(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	require.False(t, f.read(tx.ID).RequestFailed)
	_, holder := f.begin(tx.ID, foreign, time.Minute)
	require.NoError(t, f.Release(t.Context(), tx.ID, holder, Unanswered))
	require.False(t, f.read(tx.ID).RequestFailed)
	_, holder = f.begin(tx.ID, foreign, time.Minute)
	require.NoError(t, f.Release(t.Context(), tx.ID, holder, Failed))
	resumed, holder := f.begin(tx.ID, foreign, time.Minute)
	require.True(t, resumed.Transaction.RequestFailed)
	require.NoError(t, f.Release(t.Context(), tx.ID, holder, NoRequest))
	require.True(t, f.read(tx.ID).RequestFailed)

	_, holder = f.begin(tx.ID, foreign, time.Minute)
	ok, err := f.Requeue(t.Context(), tx.ID, holder, "answered 500, and does not have it")
	require.NoError(t, err)
	require.True(t, ok)
	_, err = f.db.Exec(t.Context(), `UPDATE relay_transactions SET status = 'submitting', relayer = 'foreign', attempts = attempts + 1 WHERE id = $1`, tx.ID)
	require.NoError(t, err)
	require.False(t, f.read(tx.ID).RequestFailed)
	resumed, _ = f.begin(tx.ID, foreign, time.Minute)
	require.Equal(t, Resumed, resumed.State)
	require.False(t, resumed.Transaction.RequestFailed)
}
