package tracker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// exec changes the stored rows.
func (f *fixture) exec(statement string, args ...any) {
	f.t.Helper()
	db, err := pgx.Connect(f.t.Context(), f.options.DatabaseURL)
	require.NoError(f.t, err)
	defer func() { require.NoError(f.t, db.Close(context.WithoutCancel(f.t.Context()))) }()
	_, err = db.Exec(f.t.Context(), statement, args...)
	require.NoError(f.t, err)
}

// After a failover of the database new nonces wait for all nodes, of which one may hang or be down. Transactions with a
// nonce do not wait: they are sent again, tracked and made final. Each round queries the nodes again.
func TestFailover_NodeIsDown_NewNoncesWait(t *testing.T) {
	var calls atomic.Int32
	var answer atomic.Pointer[func(context.Context, []common.Address) ([]uint64, error)]
	say := func(how func(context.Context, []common.Address) ([]uint64, error)) { answer.Store(&how) }
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) {
			c.Everywhere = func(ctx context.Context, keys []common.Address) ([]uint64, error) {
				calls.Add(1)
				return (*answer.Load())(ctx, keys)
			}
		}
	})
	tx := f.send()
	refused := func() {
		t.Helper()
		_, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
			To: &f.chain.Accounts[0].Address, Speed: relayer.Fast,
		}})
		require.ErrorIs(t, err, relayer.ErrUnavailable)
		require.ErrorContains(t, err, "failed over")
	}
	released := make(chan struct{})
	say(func(ctx context.Context, _ []common.Address) ([]uint64, error) {
		select {
		case <-released:
		case <-ctx.Done():
		}
		return nil, errors.New("endpoint b: timeout")
	})
	f.exec(`UPDATE relayer_pools SET timeline = '00000000'`) // as if allocated under another timeline

	f.chain.Rollback()
	f.oneIsPending()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Mined)
	refused()
	require.Equal(t, int32(1), calls.Load(), "one at a time")

	close(released)
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Confirmed)
	require.Eventually(t, func() bool { return calls.Load() >= 3 }, 20*time.Second, 10*time.Millisecond)
	refused()

	say(func(context.Context, []common.Address) ([]uint64, error) { return []uint64{7}, nil })
	require.Eventually(t, func() bool {
		over, err := f.Store.FailedOver(t.Context())
		return err == nil && !over
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, uint64(7), *f.Send(t, f.chain.Accounts[0].Address, 1, nil).Nonce)
}

// idleEvents reports the rounds that a tracker leaves out.
type idleEvents struct {
	tracker.Events

	idle chan<- struct{}
}

func (e idleEvents) Idle() {
	select {
	case e.idle <- struct{}{}:
	default:
	}
}

// An idle tracker, which leaves out rounds at new heads, compares nonces as soon as it finds the failover.
func TestFailover_TrackerIsIdle_NoncesAreCompared(t *testing.T) {
	idle := make(chan struct{}, 1)
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) {
			c.Tend = 2 * time.Second // its complete rounds are 18 s apart, and two are needed
			c.Events = idleEvents{relayertest.OnRound(c.Events, func(context.Context, evm.Header) {}), idle}
		}
	})
	f.commitUntil(f.send(), relayer.Confirmed)
	f.chain.Commit()
	select {
	case <-idle:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the tracker left out no round")
	}
	f.exec(`UPDATE relayer_pools SET timeline = '00000000'`)
	require.Eventually(t, func() bool {
		f.chain.Commit()
		over, err := f.Store.FailedOver(t.Context())
		return err == nil && !over
	}, 15*time.Second, 50*time.Millisecond)
}
