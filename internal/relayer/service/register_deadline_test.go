package service

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// repeating is two nodes: one answers, and the client repeats its call to the other until ctx ends.
type repeating struct{ Chain }

func (repeating) Counts(ctx context.Context, _ common.Hash, keys []common.Address) []evm.Counts {
	<-ctx.Done()
	counts := make([]uint64, len(keys))
	for i := range counts {
		counts[i] = uint64(i + 3)
	}
	return []evm.Counts{{Endpoint: "a", Err: evm.ErrStale}, {Endpoint: "b", Mined: counts, Pending: counts}}
}

func (repeating) Status() evm.Status { return evm.Status{} }

// A node that never has the state of its newest block does not delay the registration of new keys for ever.
func TestFirstNonces_NodeLacksState_OtherDecides(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Service{cfg: Config{Chain: repeating{}}}
		keys := []common.Address{{1}, {2}}
		nonces, err := s.firstNonces(t.Context(), keys)
		require.NoError(t, err)
		require.Equal(t, map[common.Address]uint64{keys[0]: 3, keys[1]: 4}, nonces)
	})
}
