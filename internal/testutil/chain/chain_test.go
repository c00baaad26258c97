package chain_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/params"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testchain.Leftovers()...) }

// transfer returns a signed transfer of one wei.
func transfer(t *testing.T, from testchain.Account, nonce uint64) *types.Transaction {
	t.Helper()
	tx, err := types.SignNewTx(from.Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)), &types.DynamicFeeTx{
		ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, To: &common.Address{1}, Value: big.NewInt(1), Gas: 21_000,
		GasFeeCap: big.NewInt(10 * params.GWei), GasTipCap: big.NewInt(params.GWei),
	})
	require.NoError(t, err)
	return tx
}

func dial(t *testing.T, url string) *ethclient.Client {
	t.Helper()
	client, err := ethclient.DialContext(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func TestSimulated_Commit_Mines(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	require.Len(t, c.Accounts, 3)
	for nonce, url := range []string{c.URL(), c.WSURL()} {
		client := dial(t, url)
		tx := transfer(t, c.Accounts[0], uint64(nonce))
		require.NoError(t, client.SendTransaction(t.Context(), tx))
		hash := c.Commit()
		receipt, err := client.TransactionReceipt(t.Context(), tx.Hash())
		require.NoError(t, err)
		require.Equal(t, hash, receipt.BlockHash)
	}
}

func TestSimulated_Fund_ManyAddresses(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{Accounts: 1, Balance: testchain.Ether(2)})
	var to []common.Address
	for _, a := range testchain.NewAccounts(t, 40) {
		to = append(to, a.Address)
	}
	c.Fund(testchain.Ether(7), to...)
	for _, a := range to {
		balance, err := c.Client().BalanceAt(t.Context(), a, nil)
		require.NoError(t, err)
		require.Equal(t, testchain.Ether(7), balance)
	}
	balance, err := c.Client().BalanceAt(t.Context(), c.Accounts[0].Address, nil)
	require.NoError(t, err)
	require.Equal(t, testchain.Ether(2), balance)
}

func TestSimulated_BlockTime_MakesBlocks(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{BlockTime: 10 * time.Millisecond})
	heads := make(chan *types.Header)
	sub, err := dial(t, c.WSURL()).SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	first := <-heads
	require.Equal(t, first.Hash(), (<-heads).ParentHash)
}

func TestSimulated_Fork(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	base := c.Commit()
	tx := transfer(t, c.Accounts[0], 0)
	require.NoError(t, c.Client().SendTransaction(t.Context(), tx))
	first := c.Commit()
	c.Fork(base)
	second := c.Commit()
	require.NotEqual(t, first, second)
	receipt, err := c.Client().TransactionReceipt(t.Context(), tx.Hash())
	require.NoError(t, err)
	require.Equal(t, second, receipt.BlockHash)
	c.Fork(base)
	c.Rollback()
	c.AdjustTime(time.Minute)
	_, err = c.Client().TransactionReceipt(t.Context(), tx.Hash())
	require.ErrorContains(t, err, "not found")
}
