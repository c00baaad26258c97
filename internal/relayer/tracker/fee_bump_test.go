package tracker_test

import (
	"context"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// A transaction that was canceled while its bump waited for the key's signer stays canceled: the bump does not outbid the
// no-op.
func TestBump_CanceledMeanwhile_StaysCanceled(t *testing.T) {
	var remote *signertest.Fake
	f := setup(t, 1, func(o *relayertest.Options) {
		remote, o.Ring = signertest.Faked(t, o.Ring)
	})
	tx, other, last := f.send(), f.send(), f.send()
	before := f.balance(f.chain.Accounts[0].Address)

	// The other transaction's signature comes first, and is slow.
	arrived, released := make(chan struct{}), make(chan struct{})
	var busy atomic.Bool
	remote.Before(func(ctx context.Context, _ [32]byte) error {
		if !busy.CompareAndSwap(false, true) {
			return nil
		}
		close(arrived)
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	db, err := pgx.Connect(t.Context(), f.options.DatabaseURL)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	_, err = db.Exec(t.Context(), `UPDATE relayer_txs SET intent = CASE WHEN id = $2 THEN 'cancel' ELSE intent END, bump_requested_at = CASE WHEN id = $1 THEN now() END
		WHERE id IN ($1, $2)`, tx.ID, other.ID) // at once, so that the same maintenance finds both
	require.NoError(t, err)
	<-arrived
	_, err = f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	require.Equal(t, relayer.PurposeNoop, f.latest(tx).Purpose)
	close(released)

	// Only the tracker signs this no-op, so once it is signed, the key's earlier tasks are done.
	_, err = f.Store.SetIntent(t.Context(), last.ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.latest(last).Purpose == relayer.PurposeNoop }, 2*time.Minute, 10*time.Millisecond)
	require.Equal(t, relayer.PurposeNoop, f.latest(tx).Purpose)
	for _, canceled := range []*relayer.Transaction{tx, other, last} { // a block before that would mine the original
		f.noopIsSent(canceled)
	}
	for _, canceled := range []*relayer.Transaction{tx, other, last} {
		f.commitUntil(canceled, relayer.Canceled)
	}
	require.Zero(t, f.balance(f.chain.Accounts[0].Address).Cmp(before))
	f.settled()
}

// known is a rule by which a node responds "already known" to every send: blocks do not include the transaction.
var known = proxy.Rule{
	Name: "known", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: "already known"},
}

// Without new blocks a fee cannot be too low: it is raised once per block, and not while there is none.
func TestBump_WithoutABlock_DoesNothing(t *testing.T) {
	rounds := make(chan struct{})
	f := setup(t, 1, func(o *relayertest.Options) {
		before(t, o).SetRules(known)
		o.Tracker = outbidSoon(rounds)
	})
	tx := f.send()
	for attempts := 1; attempts < 4; attempts++ {
		for range 15 {
			<-rounds
		}
		require.Equal(t, attempts, f.latest(tx).Number)
		f.chain.Commit()
		require.Eventually(t, func() bool { return f.latest(tx).Number > attempts }, 2*time.Minute, 10*time.Millisecond)
	}
}

// A chain that makes blocks only for transactions makes none before a price is high enough.
func TestBump_NoBlocks_RaisesTooLowPrice(t *testing.T) {
	rounds := make(chan struct{})
	f := setup(t, 1, func(o *relayertest.Options) { o.Tracker = outbidSoon(rounds) })
	tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), MaxFee: big.NewInt(1000), MaxPriorityFee: big.NewInt(1000), Speed: relayer.Fast,
	}})
	require.NoError(t, err)
	f.Reaches(t, tx, relayer.Broadcasted)
	require.Eventually(t, func() bool { return f.latest(tx).Number > 1 }, 2*time.Minute, 10*time.Millisecond)
	for range 15 {
		<-rounds
	}
	require.Equal(t, 2, f.latest(tx).Number)
	f.chain.Commit()
	require.Equal(t, f.latest(tx).Hash, *f.Reaches(t, tx, relayer.Mined).Hash)
}

// outbidSoon makes the tracker outbid blocking transactions after a tenth of a second, and reports rounds; see tell.
func outbidSoon(rounds chan<- struct{}) func(*tracker.Config) {
	return func(c *tracker.Config) {
		c.BumpAfter = map[relayer.Speed]time.Duration{relayer.Fast: 100 * time.Millisecond}
		c.Events = relayertest.OnRound(c.Events, tell(rounds))
	}
}

// tell reports rounds while the test listens.
func tell(rounds chan<- struct{}) func(context.Context, evm.Header) {
	return func(context.Context, evm.Header) {
		select {
		case rounds <- struct{}{}:
		default:
		}
	}
}

// latest returns a transaction's last attempt.
func (f *fixture) latest(tx *relayer.Transaction) *relayer.Attempt {
	f.t.Helper()
	attempts, err := f.Store.Attempts(f.t.Context(), tx.ID)
	require.NoError(f.t, err)
	require.NotEmpty(f.t, attempts)
	return attempts[len(attempts)-1]
}
