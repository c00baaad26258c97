package tracker_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestTracker_TwoPools_EachHasItsOwn(t *testing.T) {
	f := setup(t, 1)
	other := f.options
	other.ID, other.Ring = "pond", signertest.Ring(t, t.Name()+" pond", 1)
	f.chain.Fund(testchain.Ether(1), other.Ring.Addresses()...)
	pond := relayertest.Start(t, other)
	ours := f.send()
	theirs, err := pond.Submit(t.Context(), relayer.Submission{RelayerID: "pond", Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Speed: relayer.Fast,
	}})
	require.NoError(t, err)
	reached := func(status relayer.Status) func() bool {
		return func() bool {
			tx, err := pond.Transaction(t.Context(), "pond", theirs.ID)
			return err == nil && tx.Status == status
		}
	}
	require.Eventually(t, reached(relayer.Broadcasted), 2*time.Minute, 10*time.Millisecond)
	f.chain.Commit()
	f.chain.Commit()
	f.Reaches(t, ours, relayer.Confirmed)
	require.Eventually(t, reached(relayer.Confirmed), 2*time.Minute, 10*time.Millisecond)
}
