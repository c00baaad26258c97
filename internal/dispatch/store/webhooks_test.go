package store

import (
	"context"
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
