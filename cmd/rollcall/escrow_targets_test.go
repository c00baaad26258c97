package main

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
)

// With instant delivery the events of a block that is not final are pending, and final once it is.
func TestEscrow_Instant_PendingAtOnceAndFinalLater(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	n.settle(1)
	i := n.start("one", "--delivery", "instant", "--finality", "1000000").await(t) // no block becomes final
	n.settle(1)
	n.awaitMessages(n.messages, events.Pending)
	require.Equal(t, "instant", escrowStatus(i.http).Delivery)
	require.Zero(t, i.stop(), "%s", &i.log)

	i = n.start("one", "--delivery", "instant").await(t)
	n.awaitMessages(n.messages, events.Pending, events.Final)
	for _, messages := range n.messages() {
		half := len(messages) / 2
		for k, pending := range messages[:half] {
			final := messages[half+k]
			require.Equal(t, []int{1, 2}, []int{pending.Revision, final.Revision})
			require.Equal(t, []any{pending.EventID, pending.BlockHash}, []any{final.EventID, final.BlockHash})
		}
	}
	require.Zero(t, i.stop(), "%s", &i.log)
}

// E5: an operator adds a factory by a backfill: an instance with the former settings ends, and names both values.
func TestEscrow_SettingsChangedMeanwhile_EndsWithBothValues(t *testing.T) {
	t.Parallel()
	n := newEscrowNet(t)
	i := n.start("one").await(t)
	n.settle(1)
	n.awaitSettled()
	added := common.Address{1}
	_, err := n.db.Exec(t.Context(), `UPDATE escrow_chains SET factories = ARRAY[$1::bytea] || factories`, added[:])
	require.NoError(t, err)
	select {
	case <-i.done:
	case <-time.After(patience):
		t.Fatal("it has not ended")
	}
	require.Equal(t, cli.ExitNotDone, i.code)
	require.Contains(t, i.log.String(), "an operator has added to the chain's settings since this process has started: FACTORY_ADDRESS is "+lower(n.factory)+
		", and the database has "+lower(added)+","+lower(n.factory))
	require.Contains(t, n.fails(), "FACTORY_ADDRESS is")
}
