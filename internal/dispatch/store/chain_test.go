package store

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// Whichever process is the first one, all of them get the same chain, and none gets the one that lost.
func TestClaimChain_ManyProcesses_AgreeOnTheFirst(t *testing.T) {
	f := setup(t)
	known, err := f.Chain(t.Context())
	require.NoError(t, err)
	require.Zero(t, known)
	_, err = f.ClaimChain(t.Context(), 0)
	require.Error(t, err)
	_, err = f.ClaimChain(t.Context(), math.MaxInt64+1)
	require.Error(t, err)
	require.Zero(t, f.count(`SELECT count(*) FROM relay_chain`))

	const processes = 16
	claimed := make([]uint64, processes)
	var all errgroup.Group
	for i := range processes {
		all.Go(func() (err error) {
			claimed[i], err = New(f.db, Config{Enqueue: queue.EnqueueSQL}).ClaimChain(context.WithoutCancel(t.Context()), uint64(i+1))
			return err
		})
	}
	require.NoError(t, all.Wait())
	for _, id := range claimed {
		require.Equal(t, claimed[0], id)
	}
	known, err = f.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, claimed[0], known)
	other, err := f.ClaimChain(t.Context(), 99)
	require.NoError(t, err)
	require.Equal(t, known, other)
}

func TestHasOpen_TransactionsThatAreNotFinal(t *testing.T) {
	f := setup(t)
	requireOpen := func(want bool) {
		t.Helper()
		open, err := f.HasOpen(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, open)
	}
	requireOpen(false)
	tx := f.accept(transaction("shop"))
	requireOpen(true)
	_, holder := f.begin(tx.ID, route, time.Minute)
	ok, err := f.Fail(t.Context(), tx.ID, holder, "rejected")
	require.NoError(t, err)
	require.True(t, ok)
	requireOpen(false)
}
