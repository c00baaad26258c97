package store

import (
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// A lease has one holder. After it ends, the next one finds the relayer that may have the transaction.
func TestBegin_LeaseEnds_NextHolderKnowsTheRelayer(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	before := time.Now()
	begun, holder := f.begin(tx.ID, route, time.Minute)
	after := time.Now()
	require.Equal(t, Fresh, begun.State)
	require.Equal(t, route, begun.Transaction.Route)
	other := route
	other.Relayer = "oz-relayer-1"
	held, _ := f.begin(tx.ID, other, time.Minute)
	require.Equal(t, Held, held.State)
	require.WithinRange(t, held.Until, before.Add(time.Minute-time.Second), after.Add(time.Minute+time.Second))
	_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET held_until = now()`)
	require.NoError(t, err)
	begun, _ = f.begin(tx.ID, other, time.Minute)
	require.Equal(t, Resumed, begun.State)
	require.Equal(t, route, begun.Transaction.Route)
	for name, late := range map[string]func() (bool, error){
		"requeue": func() (bool, error) { return f.Requeue(t.Context(), tx.ID, holder, "late") },
		"fail":    func() (bool, error) { return f.Fail(t.Context(), tx.ID, holder, "late") },
		"park":    func() (bool, error) { return f.Park(t.Context(), tx.ID, holder, "late") },
	} {
		ok, err := late()
		require.NoError(t, err)
		require.False(t, ok, name)
	}
	require.Equal(t, dispatch.Submitting, f.read(tx.ID).Status)
}

// Of many consumers with one message, one begins.
func TestBegin_Concurrent_OneBegins(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	var wg sync.WaitGroup
	states := make([]StartState, 16)
	for i := range states {
		wg.Go(func() {
			begun, err := f.Begin(t.Context(), []Start{{ID: tx.ID, Holder: uuid.New(), Route: route, Lease: time.Minute}})
			if err != nil {
				t.Error(err)
				return
			}
			states[i] = begun[0].State
		})
	}
	wg.Wait()
	fresh := 0
	for _, s := range states {
		if s == Fresh {
			fresh++
		} else {
			require.Equal(t, Held, s)
		}
	}
	require.Equal(t, 1, fresh)
	require.Equal(t, 2, f.read(tx.ID).Revision)
}

// A row that another transaction has locked is held, also for a relayer without idempotency keys: no call blocks it.
func TestBegin_Locked_IsHeld(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	lock, err := f.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `SELECT FROM relay_transactions WHERE id = $1 FOR UPDATE`, tx.ID)
	require.NoError(t, err)
	for _, to := range []dispatch.Route{route, foreign} {
		held, _ := f.begin(tx.ID, to, time.Minute)
		require.Equal(t, Held, held.State)
	}
	require.NoError(t, lock.Rollback(t.Context()))
	begun, _ := f.begin(tx.ID, foreign, time.Minute)
	require.Equal(t, Fresh, begun.State)
}

// A gasless transaction that waited beyond its deadline expires: its forwarder would revert it.
func TestBegin_DeadlinePassed_Expires(t *testing.T) {
	f := setup(t)
	for _, to := range []dispatch.Route{route, foreign} {
		tx := transaction("shop")
		tx.Kind = dispatch.Gasless
		tx.Forward = &dispatch.Forward{Signer: common.Address{7}, Nonce: big.NewInt(3), Deadline: uint64(time.Now().Add(-time.Second).Unix())}
		f.accept(tx)
		begun, _ := f.begin(tx.ID, to, time.Minute)
		require.Equal(t, Settled, begun.State)
		got := f.read(tx.ID)
		require.Equal(t, dispatch.Expired, got.Status)
		require.Equal(t, 2, got.Revision)
		require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_webhooks WHERE about = $1 AND status = 'expired'`, tx.ID))
		require.Zero(t, f.count(`SELECT count(*) FROM relay_unresolved_calls`))
	}
}

// A relayer without idempotency keys gets a second call with the same effect only when the first one is resolved.
func TestBegin_NoIdempotency_OneUnresolvedCall(t *testing.T) {
	f := setup(t)
	first, second := f.accept(transaction("shop")), f.accept(transaction("other"))
	begun, holder := f.begin(first.ID, foreign, time.Minute)
	require.Equal(t, Fresh, begun.State)
	blocked, _ := f.begin(second.ID, foreign, time.Minute)
	require.Equal(t, Blocked, blocked.State)
	require.Equal(t, dispatch.Queued, f.read(second.ID).Status)
	ok, err := f.Park(t.Context(), first.ID, holder, "outcome unknown")
	require.NoError(t, err)
	require.True(t, ok)
	blocked, _ = f.begin(second.ID, foreign, time.Minute)
	require.Equal(t, Blocked, blocked.State, "a parked call is unresolved")
	keyed, holder := f.begin(second.ID, route, time.Minute)
	require.Equal(t, Fresh, keyed.State, "a relayer with keys can tell them apart")
	ok, err = f.Requeue(t.Context(), second.ID, holder, "refused")
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = f.Resolve(t.Context(), f.read(first.ID), dispatch.Resolution{Failed: true}, "an operator looked")
	require.NoError(t, err)
	require.True(t, ok)
	begun, _ = f.begin(second.ID, foreign, time.Minute)
	require.Equal(t, Fresh, begun.State)
	require.Zero(t, f.count(`SELECT count(*) FROM relay_unresolved_calls WHERE tx = $1`, first.ID))
}

// Nothing is submitted of a transaction that is settled, or missing.
func TestBegin_NothingToSubmit(t *testing.T) {
	f := setup(t)
	begun, _ := f.begin(uuid.New(), route, time.Minute)
	require.Equal(t, Missing, begun.State)
	begun, _ = f.begin(f.submitted("shop", "r1").ID, route, time.Minute)
	require.Equal(t, Settled, begun.State)
}

// Reports move a transaction to its end, and each change is in the history and in the client's webhooks.
func TestApply_ToConfirmed(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	hash := common.Hash{9}
	for i, status := range []dispatch.Status{dispatch.Submitted, dispatch.Mined, dispatch.Confirmed} {
		applied := f.apply(dispatch.Update{RelayerTx: "r1", Status: status, Hash: &hash, Revision: i + 2, At: time.Now()})
		require.Equal(t, Applied{ID: tx.ID, Changed: true}, applied)
	}
	got := f.read(tx.ID)
	require.Equal(t, dispatch.Confirmed, got.Status)
	require.Equal(t, hash, *got.Hash)
	history, err := f.History(t.Context(), tx.ID)
	require.NoError(t, err)
	var statuses []dispatch.Status
	for i, change := range history {
		require.Equal(t, i+1, change.Revision)
		statuses = append(statuses, change.Status)
	}
	require.Equal(t, []dispatch.Status{dispatch.Queued, dispatch.Submitting, dispatch.Submitted, dispatch.Submitted, dispatch.Mined, dispatch.Confirmed}, statuses)
	require.Equal(t, 4, f.count(`SELECT count(*) FROM relay_webhooks WHERE about = $1 AND lane = 'shop'`, tx.ID))
	loads, err := f.Outstanding(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Empty(t, loads)
}

// Repeated and late reports change nothing, and a final status stays.
func TestApply_RepeatedOrLate_ChangesNothing(t *testing.T) {
	f := setup(t)
	now := time.Now()
	hash := common.Hash{9}
	for name, c := range map[string]struct{ first, late dispatch.Update }{
		"repeated":         {dispatch.Update{Status: dispatch.Mined, Revision: 4}, dispatch.Update{Status: dispatch.Mined, Revision: 4}},
		"lower revision":   {dispatch.Update{Status: dispatch.Mined, Revision: 4}, dispatch.Update{Status: dispatch.Submitted, Revision: 3, At: now.Add(time.Hour)}},
		"earlier":          {dispatch.Update{Status: dispatch.Mined, At: now}, dispatch.Update{Status: dispatch.Submitted, At: now.Add(-time.Second)}},
		"lower rank":       {dispatch.Update{Status: dispatch.Mined, At: now}, dispatch.Update{Status: dispatch.Submitted, At: now}},
		"final":            {dispatch.Update{Status: dispatch.Confirmed, Revision: 4}, dispatch.Update{Status: dispatch.Submitted, Revision: 5, At: now.Add(time.Hour)}},
		"final, other one": {dispatch.Update{Status: dispatch.Failed, At: now}, dispatch.Update{Status: dispatch.Confirmed, At: now.Add(time.Hour)}},
	} {
		c.first.RelayerTx, c.late.RelayerTx, c.first.Hash = name, name, &hash
		tx := f.submitted("shop", name)
		require.True(t, f.apply(c.first).Changed, name)
		before := f.read(tx.ID)
		require.Equal(t, Applied{ID: tx.ID}, f.apply(c.late), name)
		require.Equal(t, before, f.read(tx.ID), name)
	}
}

// A reorganization takes mined back, by the relayer's revision or by its time.
func TestApply_Reorganization_TakesMinedBack(t *testing.T) {
	f := setup(t)
	now := time.Now()
	for name, c := range map[string][2]dispatch.Update{
		"revision": {{Status: dispatch.Mined, Revision: 4}, {Status: dispatch.Submitted, Revision: 5}},
		"time":     {{Status: dispatch.Mined, At: now}, {Status: dispatch.Submitted, At: now.Add(time.Second)}},
	} {
		tx := f.submitted("shop", name)
		for _, u := range c {
			u.RelayerTx = name
			require.True(t, f.apply(u).Changed, name)
		}
		require.Equal(t, dispatch.Submitted, f.read(tx.ID).Status, name)
	}
}

// A report without a time and a revision may be late: it only moves a transaction forward, or adds its hash.
func TestApply_Untimed_OnlyMovesForward(t *testing.T) {
	f := setup(t)
	hash := common.Hash{9}
	tx := f.submitted("shop", "r1")
	require.True(t, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Submitted, Hash: &hash}).Changed)
	require.Equal(t, hash, *f.read(tx.ID).Hash)
	require.True(t, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Mined, Hash: &hash}).Changed)
	require.False(t, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Submitted, Hash: &hash}).Changed)
	require.False(t, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Submitted, At: time.Now().Add(-time.Hour)}).Changed, "mined was received after that")
	ok, err := f.Lose(t.Context(), tx.Submission(), "its relayer does not have it")
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Mined, Hash: &hash}).Changed)
	require.True(t, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Confirmed, Hash: &hash}).Changed)
}

// A relayer that uses the nonce for another call, such as a no-op, may not have executed the transaction: the chain decides. Its hash
// is not the transaction's. OpenZeppelin's writes the other call before it has another hash, so a known hash is the transaction's.
func TestApply_OtherCall(t *testing.T) {
	f := setup(t)
	own, replaced, noop := common.Hash{1}, common.Hash{2}, common.Hash{9}
	other := &dispatch.Call{To: common.Address{2}, Value: new(big.Int)}
	for name, c := range map[string]struct {
		call *dispatch.Call
		hash *common.Hash
		want []dispatch.Status
	}{
		"no-op":            {other, &noop, []dispatch.Status{dispatch.Submitted, dispatch.Unknown}},
		"no-op, no hash":   {other, nil, []dispatch.Status{dispatch.Submitted, dispatch.Unknown}},
		"known hash":       {other, &replaced, []dispatch.Status{dispatch.Mined, dispatch.Confirmed}},
		"former hash":      {other, &own, []dispatch.Status{dispatch.Mined, dispatch.Confirmed}},
		"own call":         {nil, &noop, []dispatch.Status{dispatch.Mined, dispatch.Confirmed}},
		"call not in full": {nil, &noop, []dispatch.Status{dispatch.Mined, dispatch.Confirmed}},
	} {
		tx := f.submitted("shop", name)
		if name == "own call" {
			c.call = &tx.Call
		}
		for i, hash := range []common.Hash{own, replaced} {
			require.True(t, f.apply(dispatch.Update{RelayerTx: name, Status: dispatch.Submitted, Hash: &hash, Revision: 2 + i}).Changed)
		}
		if name == "no-op" {
			require.True(t, f.apply(dispatch.Update{RelayerTx: name, Status: dispatch.Submitted, Hash: c.hash, Revision: 4, Call: c.call}).Changed)
			require.Equal(t, replaced, *f.read(tx.ID).Hash)
		}
		for i, status := range []dispatch.Status{dispatch.Mined, dispatch.Confirmed} {
			f.apply(dispatch.Update{RelayerTx: name, Status: status, Hash: c.hash, Revision: 5 + i, Call: c.call})
			got := f.read(tx.ID)
			require.Equal(t, c.want[i], got.Status, name)
			if got.Status == status {
				require.Equal(t, *c.hash, *got.Hash, name)
				continue
			}
			require.Contains(t, got.Reason, "another call", name)
			require.Equal(t, replaced, *got.Hash, name)
		}
	}
	unknown := f.read(f.only(`SELECT id FROM relay_transactions WHERE relayer_tx = 'no-op'`))
	require.Contains(t, unknown.Reason, noop.Hex())
	require.True(t, f.apply(dispatch.Update{RelayerTx: "no-op", Status: dispatch.Confirmed, Hash: &replaced, Revision: 9}).Changed)
	require.Equal(t, dispatch.Confirmed, f.read(unknown.ID).Status, "its relayer may correct the report")

	early := f.accept(transaction("shop"))
	f.apply(dispatch.Update{RelayerTx: "early", Status: dispatch.Confirmed, Hash: &noop, Call: other})
	f.begin(early.ID, route, time.Minute)
	f.accepted(early.ID, route, "early")
	require.Equal(t, dispatch.Unknown, f.read(early.ID).Status, "a kept report")
}

// A relayer that was asked to cancel a transaction may have given it a nonce, or have sent it: a no-op takes the nonce.
func TestApply_WithdrawnByANoOp_IsQueuedAgain(t *testing.T) {
	for name, sent := range map[string]*common.Hash{"a no-op takes its nonce": nil, "it was sent meanwhile": {8}} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			tx := f.submitted("shop", "r1")
			ok, err := f.Withdraw(t.Context(), tx.Submission())
			require.NoError(t, err)
			require.True(t, ok)
			if sent != nil {
				f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Submitted, Hash: sent, Revision: 4})
			}
			other := &dispatch.Call{To: common.Address{2}, Value: new(big.Int)}
			f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Canceled, Hash: &common.Hash{9}, Revision: 5, Call: other})
			got := f.read(tx.ID)
			require.Equal(t, dispatch.Queued, got.Status)
			require.Nil(t, got.Hash)
		})
	}
}

// A relayer from which everything was withdrawn looks idle. Its transactions go to another scope while that may take them.
func TestBegin_WithdrawnFromTheScope_IsAvoidedForAWhile(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	_, err := f.Withdraw(t.Context(), tx.Submission())
	require.NoError(t, err)
	f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Canceled, Revision: 5})
	require.Equal(t, dispatch.Queued, f.read(tx.ID).Status)

	begun, _ := f.begin(tx.ID, route, time.Minute)
	require.Equal(t, Avoided, begun.State)
	require.Equal(t, route.Scope, begun.Transaction.WithdrawnFrom)
	require.Equal(t, dispatch.Queued, f.read(tx.ID).Status)
	another := dispatch.Route{Relayer: "oz-relayer-9", URL: "http://relayer-9:3000", RelayerID: "other", Scope: "another"}
	begun, holder := f.begin(tx.ID, another, time.Minute)
	require.Equal(t, Fresh, begun.State)
	begun, _ = f.begin(tx.ID, route, time.Minute)
	require.Equal(t, Held, begun.State)

	ok, err := f.Requeue(t.Context(), tx.ID, holder, "full")
	require.NoError(t, err)
	require.True(t, ok)
	begun, _ = f.begin(tx.ID, route, time.Minute)
	require.Equal(t, Avoided, begun.State, "another relayer's refusal changes nothing")
	_, err = f.db.Exec(t.Context(), `UPDATE relay_transactions SET withdrawn_at = withdrawn_at - $1::interval`, AvoidedFor)
	require.NoError(t, err)
	begun, _ = f.begin(tx.ID, route, time.Minute)
	require.Equal(t, Fresh, begun.State)
}

// A cancellation that the relay path has not asked for ends the transaction, also if it wanted to ask before.
func TestApply_CanceledAfterStopWithdrawing_IsCanceled(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	_, err := f.Withdraw(t.Context(), tx.Submission())
	require.NoError(t, err)
	require.NoError(t, f.StopWithdrawing(t.Context(), tx.Submission()))
	f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Canceled, Hash: &common.Hash{9}, Revision: 5})
	require.Equal(t, dispatch.Canceled, f.read(tx.ID).Status)
}

// In one batch a report without a time does not hide one with a time.
func TestApply_Batch_TimedCountsBeforeUntimed(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	_, err := f.Apply(t.Context(), []dispatch.Update{
		{RelayerTx: "r1", Status: dispatch.Submitted}, {RelayerTx: "r1", Status: dispatch.Confirmed, At: time.Now().Add(-time.Second)},
	})
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, f.read(tx.ID).Status)
}

// Two relayers may give the same id. A report that does not name the transaction changes no row.
func TestApply_EqualIDsOfTwoRelayers(t *testing.T) {
	f := setup(t)
	first, second := f.submitted("shop", "1"), f.accept(transaction("other"))
	f.begin(second.ID, elsewhere, time.Minute)
	f.accepted(second.ID, elsewhere, "1")
	require.Equal(t, Applied{}, f.apply(dispatch.Update{RelayerTx: "1", Status: dispatch.Confirmed, Revision: 5}))
	require.Zero(t, f.count(`SELECT count(*) FROM relay_reports`))
	require.Equal(t, first.ID, f.apply(dispatch.Update{ID: first.ID, RelayerTx: "1", Status: dispatch.Confirmed, Revision: 5}).ID)
	require.Equal(t, dispatch.Confirmed, f.read(first.ID).Status)
	require.Equal(t, dispatch.Submitted, f.read(second.ID).Status)
}

// However many reports were kept, one call applies a bounded number of them.
func TestMatchReports_Many_AreBounded(t *testing.T) {
	f := setup(t)
	f.submitted("shop", "r1")
	_, err := f.db.Exec(t.Context(), `INSERT INTO relay_reports (relayer_tx, status, reason, revision)
		SELECT 'r1', 'submitted', '', 1 FROM generate_series(1, $1)`, maxMatched+500)
	require.NoError(t, err)
	for _, left := range []int{500, 0} {
		_, err = f.MatchReports(t.Context())
		require.NoError(t, err)
		require.Equal(t, left, f.count(`SELECT count(*) FROM relay_reports`))
	}
}

// Relayers report other callers' transactions, too. Their reports are kept, and must not be read in each round.
func TestMatchReports_OldOnes_AreNotRead(t *testing.T) {
	f := setup(t)
	f.submitted("shop", "r1")
	_, err := f.db.Exec(t.Context(), `INSERT INTO relay_reports (relayer_tx, status, reason, revision, received_at)
		VALUES ('r1', 'mined', '', 1, now() - interval '11 minutes'), ('r1', 'mined', '', 1, now())`)
	require.NoError(t, err)
	_, err = f.MatchReports(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_reports`))
}

// Of several reports in one batch the newest counts, in any order.
func TestApply_Batch_NewestCounts(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	applied, err := f.Apply(t.Context(), []dispatch.Update{
		{RelayerTx: "r1", Status: dispatch.Confirmed, Revision: 4}, {RelayerTx: "r1", Status: dispatch.Mined, Revision: 3}, {RelayerTx: "r2", Status: dispatch.Mined},
	})
	require.NoError(t, err)
	require.Equal(t, dispatch.Confirmed, f.read(tx.ID).Status)
	changed := Applied{ID: tx.ID, Changed: true}
	require.Equal(t, []Applied{changed, changed, {}}, applied)
}

// A report that comes before the relayer's id is stored is applied with it.
func TestApply_BeforeTheRelayersID_IsKept(t *testing.T) {
	f := setup(t)
	hash := common.Hash{9}
	require.Equal(t, Applied{}, f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Confirmed, Hash: &hash, Revision: 5}))
	tx := f.submitted("shop", "r1")
	require.Equal(t, dispatch.Confirmed, tx.Status)
	require.Zero(t, f.count(`SELECT count(*) FROM relay_reports`))

	// The report and the id are stored at once, so that neither statement saw the other's row.
	second := f.submitted("shop", "r2")
	_, err := f.db.Exec(t.Context(), `INSERT INTO relay_reports (relayer_tx, status, reason, revision, at) VALUES ('r2', 'mined', '', 3, now()), ('r3', 'mined', '', 3, now())`)
	require.NoError(t, err)
	_, err = f.MatchReports(t.Context())
	require.NoError(t, err)
	require.Equal(t, dispatch.Mined, f.read(second.ID).Status)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_reports`))
	_, err = f.db.Exec(t.Context(), `UPDATE relay_reports SET received_at = now() - interval '25 hours'`)
	require.NoError(t, err)
	removed, err := f.MatchReports(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, removed)
}

// An acceptance is stored whatever became of the lease, once.
func TestAccepted_LeaseLost_IsStored(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	f.begin(tx.ID, route, -time.Second)
	f.accepted(tx.ID, route, "r1")
	f.accepted(tx.ID, route, "r2")
	got := f.read(tx.ID)
	require.Equal(t, dispatch.Submitted, got.Status)
	require.Equal(t, "r1", got.RelayerTx)
	require.Equal(t, 3, got.Revision)
}

// An operator's retry queues an unknown transaction again, once.
func TestResolve_Retry_QueuesAgain(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	_, holder := f.begin(tx.ID, foreign, time.Minute)
	_, err := f.db.Exec(t.Context(), `DELETE FROM relay_queue`)
	require.NoError(t, err)
	ok, err := f.Resolve(t.Context(), f.read(tx.ID), dispatch.Resolution{Retry: true}, "")
	require.NoError(t, err)
	require.False(t, ok, "a consumer submits it")
	_, err = f.Park(t.Context(), tx.ID, holder, "x")
	require.NoError(t, err)
	seen := f.read(tx.ID)
	for i, want := range []bool{true, false} {
		ok, err = f.Resolve(t.Context(), seen, dispatch.Resolution{Retry: true}, "nothing was sent")
		require.NoError(t, err)
		require.Equal(t, want, ok, i)
	}
	require.Equal(t, dispatch.Queued, f.read(tx.ID).Status)
	require.Equal(t, dispatch.Route{}, f.read(tx.ID).Route)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_queue`))
}

// A relayer may still process the last request of a consumer that was frozen or killed, however old the first one is.
func TestBegin_Resumed_QuietSinceTheLastRequest(t *testing.T) {
	f := setup(t)
	tx := f.accept(transaction("shop"))
	f.begin(tx.ID, route, -time.Second)
	_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET updated_at = now() - interval '1 hour', held_until = now() - interval '10 min'`)
	require.NoError(t, err)
	resumed, holder := f.begin(tx.ID, route, time.Minute)
	require.Equal(t, Resumed, resumed.State)
	require.WithinDuration(t, time.Now().Add(-10*time.Minute), resumed.Transaction.QuietSince, time.Minute, "the end of the lease")
	require.NoError(t, f.Release(t.Context(), tx.ID, holder, Unanswered))
	resumed, _ = f.begin(tx.ID, route, time.Minute)
	require.Equal(t, Resumed, resumed.State)
	require.WithinDuration(t, time.Now(), resumed.Transaction.QuietSince, time.Minute, "the end of the request")
}

// A submission that no relayer can finish is ended by an operator, once the consumers have tried for a while and none has the lease.
// A consumer that had it cannot change it.
func TestResolve_Submitting(t *testing.T) {
	f := setup(t)
	hash := common.Hash{9}
	for _, c := range []struct {
		decision dispatch.Resolution
		want     dispatch.Status
	}{
		{dispatch.Resolution{Retry: true}, dispatch.Queued}, {dispatch.Resolution{Failed: true}, dispatch.Failed}, {dispatch.Resolution{Executed: &hash}, dispatch.Confirmed},
		{dispatch.Resolution{RelayerTx: "r1"}, dispatch.Submitted},
	} {
		tx := f.accept(transaction("shop"))
		resolve := func() bool {
			ok, err := f.Resolve(t.Context(), f.read(tx.ID), c.decision, "the relayers' database is gone")
			require.NoError(t, err)
			return ok
		}
		_, holder := f.begin(tx.ID, route, -time.Second)
		require.False(t, resolve(), "the request may still be on its way")
		_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET updated_at = now() - $1::interval, held_until = now() + interval '1 min' WHERE id = $2`,
			ResolvableAfter+time.Second, tx.ID)
		require.NoError(t, err)
		require.False(t, resolve(), "a consumer submits it")
		require.NoError(t, f.Release(t.Context(), tx.ID, holder, Unanswered))
		require.False(t, resolve(), "its relayer may still process the last request")
		_, err = f.db.Exec(t.Context(), `UPDATE relay_transactions SET requested_at = now() - $1::interval, tx_hash = $2 WHERE id = $3`,
			ResolvableAfter+time.Second, hash[:], tx.ID)
		require.NoError(t, err)
		changed := *f.read(tx.ID)
		changed.Revision--
		ok, err := f.Resolve(t.Context(), &changed, c.decision, "decided about an older revision")
		require.NoError(t, err)
		require.False(t, ok)
		require.True(t, resolve())
		got := f.read(tx.ID)
		require.Equal(t, c.want, got.Status)
		require.Equal(t, tx.RelayerKey(), got.RelayerKey(), "its relayer may have the key")
		require.Equal(t, c.decision.RelayerTx, got.RelayerTx)
		if got.Status.Final() {
			require.Equal(t, hash, *got.Hash)
		} else {
			require.Nil(t, got.Hash, "it may get another one")
		}
		ok, err = f.Park(t.Context(), tx.ID, holder, "late")
		require.NoError(t, err)
		require.False(t, ok)
	}
}

// An operator decides about a transaction that a relayer has accepted, and a report about the former submission changes nothing then.
func TestResolve_AtRelayer(t *testing.T) {
	f := setup(t)
	hash := common.Hash{9}
	for _, mined := range []bool{false, true} {
		for _, c := range []struct {
			decision dispatch.Resolution
			want     dispatch.Status
		}{
			{dispatch.Resolution{Retry: true}, dispatch.Queued}, {dispatch.Resolution{Failed: true}, dispatch.Failed}, {dispatch.Resolution{Executed: &hash}, dispatch.Confirmed},
		} {
			id := uuid.NewString()
			tx := f.submitted("shop", id)
			if mined {
				f.apply(dispatch.Update{RelayerTx: id, Status: dispatch.Mined, Revision: 4, Hash: &common.Hash{8}})
			}
			ok, err := f.Resolve(t.Context(), f.read(tx.ID), dispatch.Resolution{RelayerTx: "other"}, "")
			require.NoError(t, err)
			require.False(t, ok, "its relayer has given it an id")
			ok, err = f.Resolve(t.Context(), f.read(tx.ID), c.decision, "the relayer lost it")
			require.NoError(t, err)
			require.True(t, ok)
			got := f.read(tx.ID)
			require.Equal(t, c.want, got.Status)
			f.apply(dispatch.Update{ID: tx.ID, Attempt: 1, RelayerTx: id, Status: dispatch.Canceled, Revision: 9, At: time.Now()})
			require.Equal(t, got, f.read(tx.ID))
			if c.decision.Retry {
				require.Equal(t, tx.ID.String()+".1", got.RelayerKey())
				require.True(t, got.SubmittedAt.IsZero())
				f.acceptedLate(tx.ID, 1, route, id)
				require.Empty(t, f.late(), "the operator knew of it")
			}
			ok, err = f.Resolve(t.Context(), f.read(tx.ID), dispatch.Resolution{Retry: true}, "")
			require.NoError(t, err)
			require.False(t, ok, "it is %s", c.want)
		}
	}
	loads, err := f.Outstanding(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Empty(t, loads)
}

// A relayer that was restored from a backup reports lower revisions than before. Its answers to direct questions count, unless another
// report came since the question; webhooks with lower revisions may be late.
func TestApply_RelayersHistoryWentBack_AnswersCount(t *testing.T) {
	f := setup(t)
	hash := common.Hash{8}
	mined := func(id string) *dispatch.Transaction {
		tx := f.submitted("shop", id)
		f.apply(dispatch.Update{RelayerTx: id, Status: dispatch.Mined, Revision: 7, Hash: &hash, At: time.Now().Add(time.Hour)})
		return f.read(tx.ID)
	}
	for _, status := range []dispatch.Status{dispatch.Confirmed, dispatch.Failed, dispatch.Canceled, dispatch.Expired} {
		tx := mined("r-" + string(status))
		require.Equal(t, 7, tx.Reported)
		answer := dispatch.Update{ID: tx.ID, Attempt: 1, RelayerTx: tx.RelayerTx, Status: status, Revision: 3, Hash: &hash, At: time.Now()}
		late := answer
		late.Known = 6
		require.False(t, f.apply(late).Changed, "revision 7 was reported after the question")
		require.False(t, f.apply(answer).Changed, "the revision before the question is not known")
		webhook := answer
		webhook.ID, webhook.Attempt = uuid.Nil, 0
		require.False(t, f.apply(webhook).Changed)
		require.Equal(t, tx, f.read(tx.ID))
		answer.Known = 7
		require.True(t, f.apply(answer).Changed)
		require.Equal(t, status, f.read(tx.ID).Status)
	}
	tx := mined("goes on")
	f.apply(dispatch.Update{ID: tx.ID, Attempt: 1, RelayerTx: "goes on", Status: dispatch.Submitted, Revision: 2, Known: 7, At: time.Now()})
	require.Equal(t, 2, f.read(tx.ID).Reported)
	require.True(t, f.apply(dispatch.Update{RelayerTx: "goes on", Status: dispatch.Confirmed, Revision: 3, Hash: &hash, At: time.Now()}).Changed, "a webhook of the new history")
}

// Old final transactions go, in batches, with all that belongs to them. Open ones and those with undelivered webhooks stay.
func TestPurge_OldFinalOnes_AreDeletedInBatches(t *testing.T) {
	f := setup(t)
	old := func(status dispatch.Status) *dispatch.Transaction {
		tx := transaction("shop")
		first := firstID(time.Now().Add(-2 * time.Hour))
		copy(tx.ID[:6], first[:6])
		tx = f.accept(tx)
		_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET status = $2, open = $3, updated_at = now() - interval '61 minutes' WHERE id = $1`, tx.ID, status, !status.Final())
		require.NoError(t, err)
		return tx
	}
	dead := old(dispatch.Confirmed)
	for range 5 {
		old(dispatch.Confirmed)
	}
	kept := []*dispatch.Transaction{old(dispatch.Unknown), old(dispatch.Failed), f.submitted("shop", "r1"), old(dispatch.Failed), dead}
	_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET status = 'failed', open = false WHERE id = $1`, kept[2].ID)
	require.NoError(t, err)
	_, err = f.db.Exec(t.Context(), `UPDATE relay_transactions SET updated_at = now() - interval '59 minutes' WHERE id = $1`, kept[3].ID) // it was open for long
	require.NoError(t, err)
	_, err = f.db.Exec(t.Context(), `INSERT INTO relay_webhooks (about, lane, revision) VALUES ($1, 'shop', 2)`, kept[1].ID)
	require.NoError(t, err)
	_, err = f.db.Exec(t.Context(), `INSERT INTO relay_webhooks (about, lane, revision, state)
		SELECT id, 'shop', 1, CASE WHEN id = $1 THEN 'dead' ELSE 'done' END FROM relay_transactions`, dead.ID)
	require.NoError(t, err)
	purges := func(want ...int) {
		for _, n := range want {
			deleted, err := f.Purge(t.Context(), time.Hour, 3)
			require.NoError(t, err)
			require.Equal(t, n, deleted)
		}
	}
	purges(3, 2, 0)
	for _, tx := range kept {
		require.Equal(t, tx.ID, f.read(tx.ID).ID)
	}
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_webhooks WHERE about = $1`, dead.ID))
	becomes := func(state string) {
		_, err := f.db.Exec(t.Context(), `UPDATE relay_webhooks SET state = $2 WHERE about = $1`, dead.ID, state)
		require.NoError(t, err)
	}
	becomes("waiting") // an operator has replayed it
	purges(0)
	becomes("done")
	purges(1)
	require.Equal(t, 4, f.count(`SELECT count(*) FROM relay_transactions`))
	require.Equal(t, 4, f.count(`SELECT count(DISTINCT tx) FROM relay_history`))
	require.Zero(t, f.count(`SELECT count(*) FROM relay_webhooks WHERE about NOT IN (SELECT id FROM relay_transactions)`))
}

// Silent transactions are due, each for one reconciler and less often each time. Final ones never are.
func TestTakeDue_SilentOnes(t *testing.T) {
	f := setup(t)
	silent, final := f.submitted("shop", "r1"), f.submitted("shop", "r2")
	f.apply(dispatch.Update{RelayerTx: "r2", Status: dispatch.Confirmed, Revision: 9})
	due, err := f.TakeDue(t.Context(), 10, 0, nil)
	require.NoError(t, err)
	require.Empty(t, due)
	_, err = f.db.Exec(t.Context(), `UPDATE relay_transactions SET check_at = now() - interval '61 s'`)
	require.NoError(t, err)
	due, err = f.TakeDue(t.Context(), 10, 0, nil)
	require.NoError(t, err)
	require.Len(t, due, 1)
	require.Equal(t, silent.ID, due[0].ID)
	require.Equal(t, 1, due[0].Checks)
	again, err := f.TakeDue(t.Context(), 10, 0, nil)
	require.NoError(t, err)
	require.Empty(t, again)
	require.Equal(t, dispatch.Confirmed, f.read(final.ID).Status)
}

// The pause is a setting of the process that looks, not of those that store reports or an operator's decision.
func TestTakeDue_ReportStoredByAnotherProcess_UsesTheOwnPause(t *testing.T) {
	f := setup(t)
	f.submitted("shop", "r1")
	f.apply(dispatch.Update{RelayerTx: "r1", Status: dispatch.Mined, Revision: 2})
	age := func(d time.Duration) {
		_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET check_at = check_at - $1::interval`, d)
		require.NoError(t, err)
	}
	impatient := New(f.db, Config{Enqueue: queue.EnqueueSQL, Silent: time.Second})
	due := func(s *Store) int {
		due, err := s.TakeDue(t.Context(), 10, 0, nil)
		require.NoError(t, err)
		return len(due)
	}
	age(10 * time.Second)
	require.Zero(t, due(f.Store))
	require.Equal(t, 1, due(impatient))
	require.Zero(t, due(impatient))
	for pause := time.Second; pause <= 64*time.Second; pause *= 2 { // a minute becomes an hour
		age(pause * 9 / 10)
		require.Zero(t, due(impatient), pause)
		age(pause)
		require.Equal(t, 1, due(impatient), pause)
	}
	age(time.Minute)
	require.Zero(t, due(impatient))
	age(time.Minute)
	require.Equal(t, 1, due(impatient), "the pause does not grow further")
}

// The ages of a due transaction are counted by the database's clock: its acceptance, and the last report or change.
func TestTakeDue_Ages(t *testing.T) {
	f := setup(t)
	f.submitted("shop", "r1")
	f.accept(transaction("other"))
	_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET check_at = now() - interval '301 s', submitted_at = submitted_at - interval '3 h',
		updated_at = now() - interval '2 h', reported_at = CASE WHEN status = 'submitted' THEN now() - interval '1 h' ELSE reported_at END`)
	require.NoError(t, err)
	due, err := f.TakeDue(t.Context(), 10, 0, nil)
	require.NoError(t, err)
	require.Len(t, due, 2)
	for _, d := range due {
		silence, accepted := 2*time.Hour, time.Duration(0)
		if d.Status == dispatch.Submitted {
			silence, accepted = time.Hour, 3*time.Hour
		}
		require.InDelta(t, silence, d.Silence, float64(time.Minute), d.Status)
		require.InDelta(t, accepted, d.AtRelayer, float64(time.Minute), d.Status)
	}
}

// A relayer's load is what it has accepted and not finished. A transaction that stays without a hash is stuck.
func TestOutstanding_CountsUnfinished(t *testing.T) {
	f := setup(t)
	f.submitted("shop", "r1")
	f.submitted("shop", "r2")
	hash := common.Hash{9}
	f.apply(dispatch.Update{RelayerTx: "r2", Status: dispatch.Submitted, Hash: &hash, Revision: 2})
	loads, err := f.Outstanding(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, []Outstanding{{Relayer: route.Relayer, Count: 2, Stuck: 1}}, loads)
	depth, err := f.Depth(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[dispatch.Status]int{dispatch.Submitted: 2}, depth.Counts)
}

// Pages list a client's transactions, the newest first, without gaps.
func TestList_Pages(t *testing.T) {
	f := setup(t)
	for range 5 {
		f.accept(transaction("shop"))
		f.accept(transaction("other"))
	}
	seen := map[uuid.UUID]bool{}
	filter := Filter{Client: "shop", Limit: 2}
	for range 3 {
		page, err := f.List(t.Context(), filter)
		require.NoError(t, err)
		for _, tx := range page {
			require.Equal(t, "shop", tx.Client)
			seen[tx.ID] = true
			filter.Before = tx.ID
		}
	}
	require.Len(t, seen, 5)
	page, err := f.List(t.Context(), Filter{Client: "shop", Statuses: []dispatch.Status{dispatch.Mined}})
	require.NoError(t, err)
	require.Empty(t, page)
}

// A reason from outside is stored, bounded, as valid text.
func TestBounded_ReasonFromOutside(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ab\uFFFD", bounded("a\x00b\xff"))
	require.LessOrEqual(t, len(bounded(strings.Repeat("é", 5000))), maxReason)
}

// The database's clock is an hour ahead of this process's. How long ago something happened does not depend on that.
func TestGet_DatabasesClockIsAhead_TimesOfThisProcess(t *testing.T) {
	f := setup(t)
	tx := f.submitted("shop", "r1")
	for _, statement := range []string{
		`CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT pg_catalog.now() + interval '1 h'$$`,
		`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END$$`,
	} {
		_, err := f.db.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	f.db.Reset() // new connections have the setting
	begin := time.Now()
	_, err := f.db.Exec(t.Context(), `UPDATE relay_transactions SET created_at = now(), updated_at = now()`)
	require.NoError(t, err)
	got, err := f.ByID(t.Context(), tx.ID)
	require.NoError(t, err)
	for _, at := range []time.Time{got.AcceptedAt, got.ChangedAt, got.QuietSince} {
		require.WithinRange(t, at, begin, time.Now())
	}
	require.True(t, got.CreatedAt.After(begin.Add(50*time.Minute)))
}
