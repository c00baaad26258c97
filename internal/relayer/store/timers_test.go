package store

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

func TestTimers(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	a, b := limits.Held[0], limits.Held[1]
	set := func(name string, head uint64, marks map[common.Address]string) map[common.Address]Timer {
		t.Helper()
		timers, err := s.Timers(t.Context(), name, head, marks)
		require.NoError(t, err)
		return timers
	}
	later := func() {
		t.Helper()
		_, err := s.db.Exec(t.Context(), `UPDATE relayer_timers SET since = since - interval '1 hour'`)
		require.NoError(t, err)
	}
	require.Equal(t, map[common.Address]Timer{a: {Head: 3}, b: {Head: 3}}, set("x", 3, map[common.Address]string{a: "1", b: "2"}))
	later()
	timers := set("x", 4, map[common.Address]string{a: "1", b: "3"})
	require.GreaterOrEqual(t, timers[a].Age, time.Hour)
	require.Equal(t, uint64(3), timers[a].Head)
	require.Equal(t, Timer{Head: 4}, timers[b], "another mark")
	later()
	require.Equal(t, map[common.Address]Timer{a: {Head: 5}}, set("y", 5, map[common.Address]string{a: "1"}), "another name")
	require.Empty(t, set("x", 5, map[common.Address]string{a: ""}))
	timers = set("x", 6, map[common.Address]string{a: "1", b: "3"})
	require.Equal(t, Timer{Head: 6}, timers[a], "removed meanwhile")
	require.GreaterOrEqual(t, timers[b].Age, time.Hour, "not named meanwhile")
	require.Empty(t, set("x", 7, nil))
}
