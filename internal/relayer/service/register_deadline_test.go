package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// repeating is two nodes: one answers at once, and the client repeats its call to the other until it stops waiting.
type repeating struct{ Chain }

func (repeating) CountsWithin(ctx context.Context, stragglers time.Duration, _ common.Hash, keys []common.Address) []evm.Counts {
	select {
	case <-ctx.Done():
	case <-time.After(stragglers):
	}
	counts := make([]uint64, len(keys))
	for i := range counts {
		counts[i] = uint64(i + 3)
	}
	return []evm.Counts{{Endpoint: "a", Err: evm.ErrStale}, {Endpoint: "b", Mined: counts, Pending: counts}}
}

func (repeating) Status() evm.Status { return evm.Status{} }

// A node that never has the state of its newest block delays the registration of new keys by the grace for both readings.
func TestFirstNonces_NodeLacksState_OtherDecides(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Service{cfg: Config{Chain: repeating{}, MaxNonceJump: 64}}
		keys := []common.Address{{1}, {2}}
		began := time.Now()
		nonces, err := s.firstNonces(t.Context(), keys)
		require.NoError(t, err)
		require.Equal(t, map[common.Address]uint64{keys[0]: 3, keys[1]: 4}, nonces)
		require.Equal(t, silentGrace+secondGrace, time.Since(began))
	})
}

// A new key begins at the highest count on which more than half of the endpoints agree.
func TestAgreedCount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		counts []endpointCounts // the names of those that lag begin with "lag"
		want   uint64
		agreed bool
	}{
		"one":                       {[]endpointCounts{{"a", 3, 3}}, 3, true},
		"one, unsteady":             {[]endpointCounts{{"a", 3, 100}}, 0, false},
		"two":                       {[]endpointCounts{{"a", 3, 3}, {"b", 5, 9}}, 9, true},
		"two that differ":           {[]endpointCounts{{"a", 3, 3}, {"b", 90, 90}}, 0, false},
		"one of three too high":     {[]endpointCounts{{"a", 1 << 40, 1 << 40}, {"b", 3, 3}, {"c", 4, 5}}, 5, true},
		"one of three too low":      {[]endpointCounts{{"a", 0, 0}, {"b", 90, 90}, {"c", 91, 91}}, 91, true},
		"one of three unsteady":     {[]endpointCounts{{"a", 3, 1 << 40}, {"b", 3, 3}, {"c", 3, 3}}, 3, true},
		"three that differ":         {[]endpointCounts{{"a", 0, 0}, {"b", 90, 90}, {"c", 900, 900}}, 0, false},
		"only one that lags":        {[]endpointCounts{{"lag", 3, 3}}, 0, false},
		"one lags":                  {[]endpointCounts{{"lag", 0, 0}, {"b", 90, 90}}, 90, true},
		"one lags and counts more":  {[]endpointCounts{{"lag", 9, 9}, {"b", 3, 3}}, 9, true},
		"one lags, and is too high": {[]endpointCounts{{"lag", 90, 90}, {"b", 3, 3}}, 0, false},
	} {
		lags := map[string]bool{"lag": true}
		count, agreed := agreedCount(test.counts, lags, 64)
		require.Equal(t, test.agreed, agreed, name)
		require.Equal(t, test.want, count, name)
	}
}
