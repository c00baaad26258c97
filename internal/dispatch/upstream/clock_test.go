package upstream_test

import (
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

// A transaction that was just accepted must be found, whatever the relayer's clock shows, and one that is too old must not be.
func TestLookup_RelayersClockIsOff_ComparesByIts(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]time.Duration{"right": 0, "behind": -20 * time.Minute, "ahead": 20 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upstreamtest.Start(t, upstreamtest.Options{Now: func() time.Time { return time.Now().Add(offset) }})
			client := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key })
			accepted := time.Now()
			for _, age := range []time.Duration{0, 10 * time.Minute} {
				r.Add(upstreamtest.Transaction{To: strings.ToLower(receiver.Hex()), Data: "0x01", Value: big.NewInt(5), CreatedAt: accepted.Add(offset - age)})
			}
			found, err := client.Lookup(t.Context(), ref, upstream.Match{To: &receiver, Data: []byte{1}, Value: big.NewInt(5), Since: accepted})
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.WithinDuration(t, accepted.Add(offset), found[0].CreatedAt, time.Second)
			measured, ok := client.Clock()
			require.True(t, ok)
			require.LessOrEqual(t, measured.Min, offset)
			require.GreaterOrEqual(t, measured.Max, offset)
			if offset == 0 {
				require.Zero(t, measured.Offset())
			}
		})
	}
}

// Answers narrow the offset down. After the clock was set, the new offset counts, and times from before are still found.
func TestClock_RelayersClockIsSet_TakesTheNewOffset(t *testing.T) {
	t.Parallel()
	for name, network := range map[string]string{"any network": "", "its network is read first": "dev"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clockIsSet(t, upstream.Ref{ID: ref.ID, Network: network})
		})
	}
}

func clockIsSet(t *testing.T, ref upstream.Ref) {
	t.Helper()
	var offset atomic.Int64
	offset.Store(int64(-30 * time.Second))
	r := upstreamtest.Start(t, upstreamtest.Options{Now: func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }})
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	_, ok := client.Clock()
	require.False(t, ok)
	began := time.Now()
	r.Add(upstreamtest.Transaction{To: strings.ToLower(receiver.Hex()), Data: "0x01", Value: big.NewInt(5), CreatedAt: began.Add(-30 * time.Second)})
	list := func() upstream.Clock {
		_, err := client.List(t.Context(), ref, 1, 10)
		require.NoError(t, err)
		now, ok := client.Clock()
		require.True(t, ok)
		return now
	}
	first := list()
	for range 5 {
		again := list()
		require.LessOrEqual(t, again.Max-again.Min, first.Max-first.Min)
		require.LessOrEqual(t, again.Min, -30*time.Second)
		require.GreaterOrEqual(t, again.Max, -30*time.Second)
	}
	offset.Store(int64(time.Minute))
	require.Positive(t, list().Offset())
	found, err := client.Lookup(t.Context(), ref, upstream.Match{To: &receiver, Data: []byte{1}, Value: big.NewInt(5), Since: began})
	require.NoError(t, err)
	require.Len(t, found, 1, "its time is by the clock before it was set")
}
