package store

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// A queued transaction shows its client that an equal call is parked, and not whose call that is. The reason goes when it does.
func TestReportBlocked_EqualCallIsParked_GivesTheReason(t *testing.T) {
	f := setup(t)
	report := func(id uuid.UUID) bool {
		t.Helper()
		changed, err := f.ReportBlocked(t.Context(), id)
		require.NoError(t, err)
		return changed
	}
	blocked := func() int {
		t.Helper()
		depth, err := f.Depth(t.Context())
		require.NoError(t, err)
		return depth.Blocked
	}
	first, second := f.accept(transaction("shop")), f.accept(transaction("other"))
	differs := transaction("other")
	differs.Data = []byte{9}
	f.accept(differs)
	_, holder := f.begin(first.ID, foreign, time.Minute)
	begun, _ := f.begin(second.ID, foreign, time.Minute)
	require.Equal(t, Blocked, begun.State)
	require.False(t, report(second.ID), "the first one is only being submitted")
	require.Empty(t, f.read(second.ID).Reason)

	ok, err := f.Park(t.Context(), first.ID, holder, "outcome unknown")
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, report(second.ID))
	require.False(t, report(second.ID), "it has the reason")
	require.False(t, report(first.ID))
	require.False(t, report(differs.ID))
	got := f.read(second.ID)
	require.Equal(t, []any{dispatch.Queued, BlockedReason, 2}, []any{got.Status, got.Reason, got.Revision})
	require.NotContains(t, got.Reason, first.ID.String())
	require.Equal(t, 1, blocked())
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_history WHERE tx = $1 AND reason = $2`, second.ID, BlockedReason))

	ok, err = f.Resolve(t.Context(), f.read(first.ID), dispatch.Resolution{Failed: true}, "an operator looked")
	require.NoError(t, err)
	require.True(t, ok)
	begun, _ = f.begin(second.ID, foreign, time.Minute)
	require.Equal(t, Fresh, begun.State)
	require.Empty(t, f.read(second.ID).Reason)
	require.Zero(t, blocked())
}
