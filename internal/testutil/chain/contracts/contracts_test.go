package contracts_test

import (
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testchain.Leftovers()...) }

type setup struct {
	*testchain.Chain
	t       *testing.T
	counter common.Address
	nonce   uint64
}

func start(t *testing.T) *setup {
	t.Helper()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	return &setup{Chain: c, t: t, counter: c.Counter()}
}

// send adds a call of the counter to the pool.
func (s *setup) send(data []byte, gas uint64) common.Hash {
	s.t.Helper()
	tx, err := types.SignNewTx(s.Accounts[0].Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)),
		&types.DynamicFeeTx{
			ChainID: big.NewInt(testchain.ChainID), Nonce: s.nonce, To: &s.counter, Data: data, Gas: gas,
			GasFeeCap: big.NewInt(10 * params.GWei), GasTipCap: big.NewInt(params.GWei),
		})
	require.NoError(s.t, err)
	require.NoError(s.t, s.Client().SendTransaction(s.t.Context(), tx))
	s.nonce++
	return tx.Hash()
}

func (s *setup) receipt(tx common.Hash) *types.Receipt {
	s.t.Helper()
	r, err := s.Client().TransactionReceipt(s.t.Context(), tx)
	require.NoError(s.t, err)
	return r
}

func TestHit_CountsByID(t *testing.T) {
	t.Parallel()
	s := start(t)
	a, b := common.Hash{0xa}, common.Hash{0xb}
	first := s.send(contracts.Hit(a), contracts.HitGas)
	s.send(contracts.Hit(b), contracts.HitGas)
	s.Commit()
	before, err := s.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	third := s.send(contracts.Hit(a), contracts.HitGas)
	s.Commit()

	counts, err := contracts.Counts(t.Context(), s.Client(), s.counter, nil, a, b, common.Hash{0xc})
	require.NoError(t, err)
	require.Equal(t, []uint64{2, 1, 0}, counts)
	counts, err = contracts.Counts(t.Context(), s.Client(), s.counter, new(big.Int).SetUint64(before), a)
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, counts)
	total, err := contracts.Total(t.Context(), s.Client(), s.counter, nil)
	require.NoError(t, err)
	require.EqualValues(t, 3, total)

	for tx, want := range map[common.Hash]uint64{first: 1, third: 2} {
		logs := s.receipt(tx).Logs
		require.Len(t, logs, 1)
		hit, ok := contracts.ParseHit(logs[0])
		require.True(t, ok)
		require.Equal(t, contracts.HitEvent{ID: a, Caller: s.Accounts[0].Address, Count: want}, hit)
	}
	_, ok := contracts.ParseHit(&types.Log{Topics: []common.Hash{{1}, {2}, {3}}, Data: make([]byte, 32)})
	require.False(t, ok)
}

func TestCounts_ManyIDs_AreReadInParts(t *testing.T) {
	t.Parallel()
	s := start(t)
	ids := make([]common.Hash, 2*contracts.ReadMax+1)
	for i := range ids {
		ids[i] = common.BigToHash(big.NewInt(int64(i)))
	}
	s.send(contracts.Hit(ids[len(ids)-1]), contracts.HitGas)
	s.Commit()
	counts, err := contracts.Counts(t.Context(), s.Client(), s.counter, nil, ids...)
	require.NoError(t, err)
	require.Len(t, counts, len(ids))
	require.EqualValues(t, 1, counts[len(ids)-1])
	_, err = contracts.Counts(t.Context(), s.Client(), common.Address{1}, nil, ids...)
	require.ErrorContains(t, err, "read counts of 0x01")
}

func TestFailures_EachHasItsOwnError(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, test := range map[string]struct {
		data []byte
		says string // the node's error
		with []byte // the revert data
	}{
		"a reason":       {contracts.Fail("naïve \"reason\""), "naïve \"reason\"", nil},
		"a custom error": {contracts.Refuse(42), "execution reverted", contracts.RefusedSelector()},
		"no word":        {contracts.FailSilently(), "execution reverted", nil},
		"a panic":        {contracts.Overflow(), "arithmetic underflow or overflow", nil},
		"not yet":        {contracts.HitAfter(common.Hash{1}, common.Hash{2}, 1), "not yet", nil},
		"out of gas":     {contracts.Exhaust(), "gas", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Client().EstimateGas(t.Context(), ethereum.CallMsg{
				From: s.Accounts[0].Address, To: &s.counter, Data: test.data, Gas: 1_000_000,
			})
			require.ErrorContains(t, err, test.says)
			if test.with != nil {
				var data rpc.DataError
				require.ErrorAs(t, err, &data)
				b, err := hexutil.Decode(data.ErrorData().(string))
				require.NoError(t, err)
				require.Equal(t, test.with, b[:4])
			}
			tx := s.send(test.data, 500_000)
			s.Commit()
			require.Zero(t, s.receipt(tx).Status, "it is mined and fails")
		})
	}
	total, err := contracts.Total(t.Context(), s.Client(), s.counter, nil)
	require.NoError(t, err)
	require.Zero(t, total)
}

func TestBurn_CostsRequestedGas(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, gas := range []uint64{50_000, 1_000_000, 10_000_000} {
		tx := s.send(contracts.Burn(gas), gas+100_000)
		s.Commit()
		r := s.receipt(tx)
		require.EqualValues(t, 1, r.Status)
		require.GreaterOrEqual(t, r.GasUsed, gas)
		require.Less(t, r.GasUsed, gas+70_000)
	}
}
