package evm

import (
	"math/rand/v2"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/params"
	"github.com/holiman/uint256"
	"github.com/stretchr/testify/require"
)

func TestIntrinsicGasOf_EqualsGoEthereums(t *testing.T) {
	t.Parallel()
	rules := params.Rules{IsHomestead: true, IsIstanbul: true, IsShanghai: true, IsPrague: true}
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, 31, 32, 33, 100, 1000, 49152, 130000} {
		for _, zeros := range []float64{0, 0.5, 0.95, 1} {
			data := make([]byte, size)
			for i := range data {
				if random.Float64() >= zeros {
					data[i] = byte(1 + random.IntN(255))
				}
			}
			for _, to := range []*common.Address{nil, {1}} {
				least, err := core.IntrinsicGas(data, nil, nil, common.Address{}, to, new(uint256.Int), rules)
				require.NoError(t, err)
				floor, err := core.FloorDataGas(rules, common.Address{}, to, new(uint256.Int), data, nil)
				require.NoError(t, err)
				old, err := core.IntrinsicGas(data, nil, nil, common.Address{}, to, new(uint256.Int), params.Rules{IsHomestead: true, IsIstanbul: true})
				require.NoError(t, err)
				require.Equal(t, old, LeastGasOf(data, to == nil))
				require.Equal(t, max(least, floor), IntrinsicGasOf(data, to == nil), "%d bytes, %v of them zero, to %v", size, zeros, to)
			}
		}
	}
}
