package tracker_test

import (
	"context"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

// A signer that hangs delays only its own key: another key's no-ops are signed, and its queued transactions sent.
func TestTracker_SignerHangs_OtherKeysGoOn(t *testing.T) {
	var remote *signertest.Fake
	f := setup(t, 2, func(o *relayertest.Options) {
		first, _ := o.Ring.Signer(o.Ring.Addresses()[0])
		second, _ := o.Ring.Signer(o.Ring.Addresses()[1])
		remote = signertest.NewFake(first)
		var err error
		o.Ring, err = signer.New(remote, second)
		require.NoError(t, err)
		o.Pool = func(c *service.Config) { c.Cap = 2 }
	})
	by := func(key common.Address) *relayer.Transaction {
		tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: strings.ToLower(key.Hex()), Caller: "test", Request: relayer.Request{
			To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Speed: relayer.Fast,
		}})
		require.NoError(t, err)
		return tx
	}
	hangs, signs := f.ring.Addresses()[0], f.ring.Addresses()[1]
	stuck := f.Reaches(t, by(hangs), relayer.Broadcasted)
	f.Reaches(t, by(signs), relayer.Broadcasted)
	canceled := f.Reaches(t, by(signs), relayer.Broadcasted)
	waits := by(signs)

	arrived, released := make(chan struct{}, 100), make(chan struct{})
	var gaveUp atomic.Bool
	remote.Before(func(ctx context.Context, _ [32]byte) error {
		arrived <- struct{}{}
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			gaveUp.Store(true)
			return context.Cause(ctx)
		}
	})
	_, err := f.Store.SetIntent(t.Context(), stuck.ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	<-arrived
	_, err = f.Store.SetIntent(t.Context(), canceled.ID, relayer.IntentCancel, "by a test")
	require.NoError(t, err)
	for { // until its no-op is signed
		attempts, err := f.Store.Attempts(t.Context(), canceled.ID)
		require.NoError(t, err)
		require.False(t, gaveUp.Load(), "the other key's signer was waited for")
		if attempts[len(attempts)-1].Purpose == relayer.PurposeNoop {
			break
		}
	}
	f.chain.Commit()
	f.Reaches(t, waits, relayer.Broadcasted)
	require.False(t, gaveUp.Load(), "the other key's signer was waited for")
	close(released)
	f.commitUntil(waits, relayer.Confirmed)
	f.settled()
}
