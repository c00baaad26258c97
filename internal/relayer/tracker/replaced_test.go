package tracker_test

import (
	"context"
	"math/big"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// found is a chain that calls a hook with the receipts of each search, before the tracker gets them.
type found struct {
	tracker.Chain
	hook func([]*evm.Receipt)
}

func (f *found) Latest(ctx context.Context, except ...string) (tracker.View, error) {
	v, err := f.Chain.Latest(ctx, except...)
	if err != nil {
		return nil, err
	}
	return &foundView{v, f.hook}, nil
}

type foundView struct {
	tracker.View
	hook func([]*evm.Receipt)
}

func (v *foundView) Receipts(ctx context.Context, hashes []common.Hash) ([]*evm.Receipt, error) {
	receipts, err := v.View.Receipts(ctx, hashes)
	if err == nil {
		v.hook(receipts)
	}
	return receipts, err
}

// A transaction is replaced after the tracker has found it in a block, and before it is recorded as mined. It gets the
// contents that were mined, in the same round: no other block follows before it is mined.
func TestReplace_BetweenSearchAndRecord_ShowsMinedContents(t *testing.T) {
	var replace atomic.Pointer[func() error]
	replaced := make(chan error, 1)
	f := setup(t, 1, func(o *relayertest.Options) {
		o.Tracker = func(c *tracker.Config) {
			c.Chain = &found{c.Chain, func(receipts []*evm.Receipt) {
				if len(receipts) == 0 || receipts[0] == nil {
					return
				}
				if do := replace.Swap(nil); do != nil {
					replaced <- (*do)()
				}
			}}
		}
	})
	tx := f.send()
	replace.Store(new(func() error {
		_, err := f.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{
			To: &f.chain.Accounts[1].Address, Value: big.NewInt(7), Data: []byte{1}, Speed: relayer.Fast,
		})
		return err
	}))
	f.chain.Commit()
	mined := f.Reaches(t, tx, relayer.Mined)
	require.NoError(t, <-replaced)
	require.Equal(t, int64(1), mined.Value.Int64())
	require.Equal(t, f.chain.Accounts[0].Address, *mined.To)
	require.Empty(t, mined.Data)
	require.Equal(t, int64(1), f.commitUntil(tx, relayer.Confirmed).Value.Int64())
	f.settled()
}
