package service_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// watched starts a relayer that reads its keys' balances, and waits until it has read them.
func (f *fixture) watched(t *testing.T, edit ...func(*service.Config)) *relayertest.Relayer {
	t.Helper()
	f.options.KeyMonitor = func(*keymonitor.Config) {}
	r := f.start(t, edit...)
	f.known(t, r)
	return r
}

// known waits until all current balances are stored.
func (f *fixture) known(t *testing.T, r *relayertest.Relayer) {
	t.Helper()
	require.Eventually(t, func() bool {
		keys, err := r.Store.Keys(t.Context())
		for _, k := range keys {
			var owns *big.Int
			if err == nil {
				owns, err = f.chain.Client().BalanceAt(t.Context(), k.Address, nil)
			}
			if err != nil || k.Balance == nil || k.Balance.Cmp(owns) != 0 {
				return false
			}
		}
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond)
}

func TestSubmit_OneKeyCanPay_IsAccepted(t *testing.T) {
	f := setup(t, 2)
	rich := f.ring.Addresses()[1]
	f.chain.Fund(testchain.Ether(1000), rich)
	r := f.watched(t)
	for range 20 {
		s := f.submission()
		s.Request.Value = testchain.Ether(11)
		tx, err := r.Submit(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, uint64(21_000), tx.GasLimit)
	}
	s := f.submission()
	s.Request.Value = testchain.Ether(2000)
	_, err := r.Submit(t.Context(), s)
	var invalid *relayer.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "value", invalid.Field)
}

// Only a value above every key's balance is rejected permanently. A transaction that lacks funds because of pending ones,
// or because balances were not read yet, may pass later.
func TestSubmit_FundsArePending_IsRetryable(t *testing.T) {
	f := setup(t, 1)
	r := f.watched(t)
	key, to := f.ring.Addresses()[0], f.chain.Accounts[0].Address
	s := f.submission()
	s.Request.Value = testchain.Ether(9)
	tx, err := r.Submit(t.Context(), s)
	require.NoError(t, err)
	r.Reaches(t, tx, relayer.Broadcasted)
	require.Eventually(t, func() bool {
		_, err := r.Client.EstimateGas(t.Context(), evm.Message{From: key, To: &to, Value: testchain.Ether(2)})
		return err != nil
	}, 2*time.Minute, 50*time.Millisecond)
	s.Request.Value = testchain.Ether(2)
	_, err = r.Submit(t.Context(), s)
	var poor *relayer.FundsError
	require.ErrorAs(t, err, &poor)
	require.Equal(t, testchain.Ether(2), poor.Need)
	s.Request.Value = testchain.Ether(11)
	_, err = r.Submit(t.Context(), s)
	var invalid *relayer.InvalidError
	require.ErrorAs(t, err, &invalid)
}

func TestSubmit_BalancesUnread_IsRetryable(t *testing.T) {
	f := setup(t, 2)
	r := f.start(t)
	s := f.submission()
	s.Request.Value = testchain.Ether(11)
	_, err := r.Submit(t.Context(), s)
	var poor *relayer.FundsError
	require.ErrorAs(t, err, &poor)
}

func TestReplace_AnyRelayerID_IsSimulatedFromItsKey(t *testing.T) {
	f := setup(t, 2)
	own, rich := f.ring.Addresses()[0], f.ring.Addresses()[1]
	f.chain.Fund(testchain.Ether(1000), rich)
	r := f.watched(t)
	for id, replaced := range map[string]common.Address{own.Hex(): own, rich.Hex(): rich} {
		s := f.submission()
		s.RelayerID = id
		tx, err := r.Submit(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, replaced, tx.From)
		r.Reaches(t, tx, relayer.Broadcasted)
		s.Request.Value = testchain.Ether(11)
		_, err = r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", s.Request)
		if replaced == rich {
			require.NoError(t, err)
			continue
		}
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "value", invalid.Field)
	}
}

// A replacement that its key cannot pay for is rejected like a submission. No node would accept it, and the rejections
// would count against the key.
func TestReplace_KeyCannotPay_IsRejected(t *testing.T) {
	f := setup(t, 1)
	r := f.watched(t, func(c *service.Config) { c.Cap = 2 })
	var txs []*relayer.Transaction
	for _, value := range []*big.Int{big.NewInt(1), testchain.Ether(4), big.NewInt(1)} {
		s := f.submission()
		s.Request.Value, s.Request.GasLimit = value, 21_000
		tx, err := r.Submit(t.Context(), s)
		require.NoError(t, err)
		txs = append(txs, tx)
	}
	replaced, waiting := txs[0], txs[2]
	r.Reaches(t, replaced, relayer.Broadcasted)
	require.Nil(t, waiting.Nonce)
	replace := func(tx *relayer.Transaction, value *big.Int) error {
		_, err := r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{
			To: tx.To, Value: value, GasLimit: 21_000, Speed: relayer.Fast,
		})
		return err
	}
	var invalid *relayer.InvalidError
	var poor *relayer.FundsError
	require.ErrorAs(t, replace(replaced, new(big.Int).Lsh(common.Big1, 255)), &invalid)
	require.Equal(t, "value", invalid.Field)
	require.ErrorAs(t, replace(replaced, testchain.Ether(7)), &poor, "the other transaction has committed 4 of 10")
	require.ErrorAs(t, replace(replaced, testchain.Ether(10)), &poor, "gas has to be paid for, too")
	attempts, err := r.Store.Attempts(t.Context(), replaced.ID)
	require.NoError(t, err)
	require.Len(t, attempts, 1)
	require.NoError(t, replace(replaced, testchain.Ether(5)))
	require.NoError(t, replace(replaced, new(big.Int).Rsh(testchain.Ether(11), 1)), "the former 5 are free again")

	// A transaction without a nonce waits for the pending ones.
	require.ErrorAs(t, replace(waiting, testchain.Ether(11)), &invalid)
	require.ErrorAs(t, replace(waiting, testchain.Ether(10)), &poor)
	require.NoError(t, replace(waiting, testchain.Ether(9)))
}

// Without a known balance no replacement is rejected, and one that costs no more than before never is.
func TestReplace_BalanceUnknownOrCostsNoMore_IsAccepted(t *testing.T) {
	f := setup(t, 1)
	r := f.start(t)
	s := f.submission()
	s.Request.Value, s.Request.GasLimit = testchain.Ether(5), 30_000
	tx, err := r.Submit(t.Context(), s)
	require.NoError(t, err)
	s.Request.Value = testchain.Ether(6)
	_, err = r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", s.Request)
	require.NoError(t, err)
	_, err = r.Store.ChangeKey(t.Context(), f.ring.Addresses()[0], store.KeyChange{Balance: big.NewInt(1)})
	require.NoError(t, err)
	s.Request.Value, s.Request.GasLimit = testchain.Ether(6), 21_000
	_, err = r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", s.Request)
	require.NoError(t, err)
	s.Request.Value = testchain.Ether(7)
	_, err = r.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", s.Request)
	require.Error(t, err)
}
