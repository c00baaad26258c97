package tracker_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// A tracker that lacks a key releases the lease when that key makes no progress, because another process may hold it.
func TestLease_ProcessLacksAKey_ReleasesIt(t *testing.T) {
	var missing common.Address
	var all *signer.Ring
	f := setup(t, 2, func(o *relayertest.Options) {
		all, missing = o.Ring, o.Ring.Addresses()[1]
		held, _ := all.Signer(all.Addresses()[0])
		var err error
		o.Ring, err = signer.New(held)
		require.NoError(t, err)
		o.Tracker = func(c *tracker.Config) { c.StuckAfter = time.Second }
	})
	tx := f.send() // it takes the lease
	f.options.Ring = all
	relayertest.Start(t, f.options)

	// This transaction was allocated by a process that is gone.
	results, err := f.Store.Accept(t.Context(), store.AllocationLimits{Held: []common.Address{missing}, Cap: 1}, []*store.NewTransaction{{
		ID: uuid.Must(uuid.NewV7()), Target: relayertest.PoolID, Caller: "test", Kind: relayer.KindTransaction,
		Request: relayer.Request{To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), GasLimit: 21_000, Speed: relayer.Fast},
	}})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	claimed := f.Reaches(t, results[0].Tx, relayer.Broadcasted)
	require.Equal(t, missing, claimed.From)
	f.chain.Commit()
	f.chain.Commit()
	f.Reaches(t, tx, relayer.Confirmed)
	f.Reaches(t, claimed, relayer.Confirmed)
	f.settled()
}
