package mirror

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fleet too large for one script must be listed completely in several.
func TestDesiredState_LargeFleet_IsWrittenInSteps(t *testing.T) {
	t.Parallel()
	l := newDesiredState(1)
	fleet := make([]*Entry, 2*changeBatch+20)
	for i := range fleet {
		fleet[i] = &Entry{ID: strconv.Itoa(i), Kind: "relayer", Status: Healthy}
	}
	l.update(fleet, nil, time.Now())
	for _, want := range []int{changeBatch, changeBatch, 20} {
		b := l.take(OpChange)
		require.Len(t, b.sets[0].Add, want)
		require.LessOrEqual(t, len(b.status), statusBatch)
		require.True(t, l.applied(b, nil, time.Now()))
	}
	changes, status := l.pending()
	require.False(t, changes)
	require.True(t, status)
	require.Equal(t, len(fleet), l.activeOf("relayer"))
}
