package service_test

import (
	"context"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// A replacement that is never the first to store its attempt fails. A cancellation leaves its stored intent to the tracker.
func TestReplace_AttemptIsNeverFirst_Fails(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	to := f.chain.Accounts[0].Address
	tx := r.Reaches(t, r.Send(t, to, 1, nil), relayer.Broadcasted)
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	_, err = db.Exec(t.Context(), `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER lose BEFORE INSERT ON relayer_attempts FOR EACH ROW EXECUTE FUNCTION lose()`)
	require.NoError(t, err)
	_, err = r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{To: &to, Value: big.NewInt(7), Speed: relayer.Fast})
	require.ErrorIs(t, err, relayer.ErrUnavailable)
	require.ErrorContains(t, err, "nothing was changed")
	now, err := r.Transaction(t.Context(), relayertest.PoolID, tx.ID)
	require.NoError(t, err)
	require.Equal(t, int64(1), now.Value.Int64())
	canceled, err := r.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	require.Equal(t, relayer.IntentCancel, canceled.Intent)
}

func TestCancel_StatementWithoutResponse_IsUnknown(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	tx := r.Reaches(t, r.Send(t, f.chain.Accounts[0].Address, 1, nil), relayer.Broadcasted)
	err := f.unanswered(t, func(ctx context.Context) error {
		_, err := r.Cancel(ctx, relayertest.PoolID, tx.ID, "test")
		return err
	})
	require.ErrorIs(t, err, relayer.ErrUnknown)
}

// The error of an operation that the state does not allow has the reason, in the API's terms.
func TestStateError_GivesTheReason(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t, func(c *service.Config) { c.Cap = 2 })
	to := f.chain.Accounts[0].Address
	replace := func(tx *relayer.Transaction) error {
		_, err := r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{To: &to, Value: big.NewInt(7), Speed: relayer.Fast})
		return err
	}
	cancel := func(tx *relayer.Transaction) error {
		_, err := r.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
		return err
	}
	canceled, expiring, waiting := r.Send(t, to, 1, nil), r.Send(t, to, 1, nil), r.Send(t, to, 1, nil)
	r.Reaches(t, canceled, relayer.Broadcasted)
	r.Reaches(t, expiring, relayer.Broadcasted)
	require.NoError(t, cancel(canceled))
	require.EqualError(t, replace(canceled), "replace: it is being canceled")
	_, err := r.Store.SetIntent(t.Context(), expiring.ID, relayer.IntentExpire, "too late")
	require.NoError(t, err)
	require.EqualError(t, cancel(expiring), "cancel: it is past its valid_until, and being taken back")
	_, err = r.Store.SetIntent(t.Context(), waiting.ID, relayer.IntentFail, "hopeless")
	require.NoError(t, err)
	require.EqualError(t, cancel(waiting), "cancel: the transaction is failed")

	// The stored status differs from the API's.
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	_, err = db.Exec(t.Context(), "UPDATE relayer_txs SET status = 'dropped' WHERE id = $1", waiting.ID)
	require.NoError(t, err)
	require.EqualError(t, replace(waiting), "replace: the transaction is failed")
}

// A replacement must have the accepted metadata, because limits were checked with them.
func TestReplace_OtherMetadata_IsRejected(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	to := f.chain.Accounts[0].Address
	request := relayer.Request{To: &to, Value: big.NewInt(1), Speed: relayer.Fast, Metadata: relayer.Metadata{Method: "fill", Trader: "me"}}
	tx, err := r.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: request})
	require.NoError(t, err)
	for name, m := range map[string]relayer.Metadata{
		"method": {Method: "cancel"}, "orderbook": {Orderbook: "book"}, "trader": {Method: "fill", Trader: "you"},
		"request_id": {RequestID: "1"}, "trace_id": {TraceID: "2"},
	} {
		other := request
		other.Metadata = m
		_, err := r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", other)
		require.ErrorContains(t, err, "metadata."+name+": can't be replaced")
		invalid, ok := errors.AsType[*relayer.InvalidError](err)
		require.True(t, ok)
		require.Equal(t, "metadata."+name, invalid.Field)
	}
	for _, m := range []relayer.Metadata{request.Metadata, {Trader: "me"}, {}} {
		same := request
		same.Metadata = m
		now, err := r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", same)
		require.NoError(t, err)
		require.Equal(t, request.Metadata, now.Metadata)
	}
}

// If the caller disconnects, the attempt stored for it is still sent.
func TestReplace_CallerIsGone_StoredAttemptIsSent(t *testing.T) {
	f := setup(t, 1)
	f.start(t).Stop() // the next process takes the lease at once
	signer, ring := signertest.Faked(t, f.ring)
	nodes := new(hooked)
	f.options.Ring = ring
	f.options.Sender = func(c *sender.Config) { nodes.Chain, c.Chain = c.Chain, nodes }
	// Otherwise the tracker would send it.
	f.options.Tracker = func(c *tracker.Config) { c.Tend, c.Abandoned, c.ChainIdentity = time.Hour, time.Hour, nil }
	r := relayertest.Launch(t, f.options)
	require.Eventually(t, func() bool { // the relayer compares its keys with each block
		f.chain.Commit()
		return r.Health().Ready
	}, 2*time.Minute, 100*time.Millisecond)
	to := f.chain.Accounts[0].Address
	replaced, canceled := r.Send(t, to, 1, nil), r.Send(t, to, 1, nil)
	r.Reaches(t, replaced, relayer.Broadcasted)
	r.Reaches(t, canceled, relayer.Broadcasted)
	gone := func(purpose relayer.Purpose, tx *relayer.Transaction) {
		t.Helper()
		attempts, err := r.Store.Attempts(t.Context(), tx.ID)
		require.NoError(t, err)
		require.Len(t, attempts, 2)
		require.Equal(t, purpose, attempts[1].Purpose)
		now, err := r.Transaction(t.Context(), relayertest.PoolID, tx.ID)
		require.NoError(t, err)
		require.Equal(t, relayer.Broadcasted, now.Status)
		require.Equal(t, attempts[1].Hash, *now.Hash)
	}

	ctx, cancel := context.WithCancel(t.Context())
	nodes.before.Store(new(func() { cancel() }))
	_, err := r.Replace(ctx, relayertest.PoolID, replaced.ID, "test", relayer.Request{To: &to, Value: big.NewInt(7), GasLimit: 21_000, Speed: relayer.Fast})
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	gone(relayer.PurposeReplace, replaced)

	nodes.before.Store(nil)
	ctx, cancel = context.WithCancel(t.Context())
	signer.Before(func(context.Context, [32]byte) error { cancel(); return nil })
	_, err = r.Cancel(ctx, relayertest.PoolID, canceled.ID, "test")
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	gone(relayer.PurposeNoop, canceled)
}
