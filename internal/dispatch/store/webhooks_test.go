package store

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// sent is a webhook as a claim reads it.
type sent struct {
	event   string
	payload any
	err     error
}

// webhooks claims the next n webhooks, and returns them in the order of the claims.
func (f *fixture) webhooks(n int) (all []sent) {
	f.t.Helper()
	box, err := outbox.New(f.db, Webhooks().Table)
	require.NoError(f.t, err)
	claimed := make(chan sent)
	w, err := box.NewWorker(outbox.Config{Handle: func(_ context.Context, w outbox.Work) outbox.Result {
		var s sent
		s.event, s.payload, s.err = Webhooks().Read(w)
		claimed <- s
		return outbox.Finished()
	}})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	for range n {
		all = append(all, <-claimed)
	}
	cancel()
	require.NoError(f.t, <-ended)
	return all
}

// A webhook reports the transaction as its client could read it after the change.
func TestWebhooks_EachReports_TheTransactionAtItsRevision(t *testing.T) {
	f := setup(t)
	for _, clientID := range []string{"", "order-1"} {
		tx := transaction("shop")
		tx.ClientID = clientID
		f.accept(tx)
		begun, _ := f.begin(tx.ID, route, time.Minute)
		require.Equal(t, Fresh, begun.State)
		relayerTx := uuid.NewString()
		f.accepted(tx.ID, route, relayerTx)
		want := []sent{{EventTransaction, f.read(tx.ID).View(), nil}}
		for i, status := range []dispatch.Status{dispatch.Submitted, dispatch.Mined, dispatch.Failed} {
			applied := f.apply(dispatch.Update{RelayerTx: relayerTx, Status: status, Revision: 2 + i, Hash: &common.Hash{9}, Reason: string(status) + " \"é\""})
			require.True(t, applied.Changed)
			want = append(want, sent{EventTransaction, f.read(tx.ID).View(), nil})
		}
		require.Equal(t, want, f.webhooks(len(want)))
	}
}

// Each change that stores a webhook reports it once it is committed, so that its deliverers are woken. No other change reports one.
func TestWebhooks_Stored_AreReportedAfterTheCommit(t *testing.T) {
	f := setup(t)
	stored, reports := 0, 0
	f.cfg.WebhooksStored = func() {
		now := f.count(`SELECT count(*) FROM relay_webhooks`)
		require.Greater(t, now, stored, "a report without a committed webhook")
		stored = now
		reports++
	}
	expect := func(change string, n int) {
		t.Helper()
		require.Equal(t, f.count(`SELECT count(*) FROM relay_webhooks`), stored, change)
		require.Equal(t, n, reports, change)
		reports = 0
	}
	begin := func(client string, change ...func(*dispatch.Transaction)) (id, holder uuid.UUID) {
		t.Helper()
		tx := transaction(client)
		for _, c := range change {
			c(tx)
		}
		f.accept(tx)
		_, holder = f.begin(tx.ID, route, time.Minute)
		return tx.ID, holder
	}
	report := func(relayerTx string, status dispatch.Status) dispatch.Update {
		return dispatch.Update{RelayerTx: relayerTx, Status: status, At: time.Now()}
	}

	f.submitted("other", "r0")
	f.apply(report("r0", dispatch.Mined))
	expect("a client without a webhook", 0)
	begin("shop")
	expect("begin", 0)
	tx := f.submitted("shop", "r1")
	expect("accepted", 1)
	f.apply(report("r1", dispatch.Mined))
	expect("apply", 1)
	f.apply(report("r1", dispatch.Mined))
	expect("apply without a change", 0)
	lost, err := f.Lose(t.Context(), f.read(tx.ID).Submission(), "")
	require.NoError(t, err)
	require.True(t, lost)
	expect("lose", 1)
	done, err := f.Resolve(t.Context(), f.read(tx.ID), dispatch.Resolution{Failed: true}, "")
	require.NoError(t, err)
	require.True(t, done)
	expect("resolve", 1)

	id, holder := begin("shop")
	ok, err := f.Requeue(t.Context(), id, holder, "")
	require.NoError(t, err)
	require.True(t, ok)
	expect("requeue", 0)
	id, holder = begin("shop")
	ok, err = f.Fail(t.Context(), id, holder, "")
	require.NoError(t, err)
	require.True(t, ok)
	expect("fail", 1)
	begin("shop", func(tx *dispatch.Transaction) {
		tx.Kind, tx.Forward = dispatch.Gasless, &dispatch.Forward{Nonce: new(big.Int), Deadline: 1}
	})
	expect("expire", 1)

	f.apply(report("r2", dispatch.Mined)) // of a row that is not stored yet
	tx = f.submitted("shop", "r2")
	expect("accepted with an early report", 1)
	late := route
	late.Scope, late.RelayerTx = "other", "r3"
	require.NoError(t, f.Accepted(t.Context(), []Acceptance{{ID: tx.ID, Attempt: 0, Route: late}}))
	expect("accepted late", 0)
	_, err = f.SettleLate(t.Context(), &Late{Transaction: tx, Route: late}, &common.Hash{9})
	require.NoError(t, err)
	expect("executed late", 1)
}

// A client may name a transaction between two attempts of a webhook.
func TestWebhooks_TransactionNamedLater_SameContent(t *testing.T) {
	f := setup(t)
	tx := transaction("shop")
	tx.IdempotencyKey = "key"
	f.accept(tx)
	f.begin(tx.ID, route, time.Minute)
	f.accepted(tx.ID, route, "r1")
	want := f.read(tx.ID).View()
	again := transaction("shop")
	again.IdempotencyKey, again.ClientID = "key", "order-1"
	require.Equal(t, "order-1", f.accept(again).ClientID)
	require.Equal(t, []sent{{EventTransaction, want, nil}}, f.webhooks(1))
}
