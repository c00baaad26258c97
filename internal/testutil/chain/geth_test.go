package chain_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

// failing is a testing.TB that records a failure.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (*failing) Skip(...any) { panic("skipped") }

func TestGeth_Missing_FailsTheTest(t *testing.T) {
	t.Chdir(t.TempDir())
	f := &failing{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { testchain.Geth(f, testchain.GethOptions{}) })
	wg.Wait()
	require.Contains(t, f.message, "scripts/setup.sh test")
}

// awaitMined waits for a receipt and returns it.
func awaitMined(t *testing.T, client *ethclient.Client, tx common.Hash) *types.Receipt {
	t.Helper()
	var receipt *types.Receipt
	require.Eventually(t, func() bool {
		var err error
		receipt, err = client.TransactionReceipt(t.Context(), tx)
		return err == nil
	}, 2*time.Minute, 20*time.Millisecond)
	return receipt
}

func TestGeth_MinesEachSecond(t *testing.T) {
	t.Parallel()
	n := testchain.Geth(t, testchain.GethOptions{Accounts: 2, Balance: testchain.Ether(5)})
	require.Len(t, n.Accounts, 2)
	for _, a := range n.Accounts {
		balance, err := n.Client().BalanceAt(t.Context(), a.Address, nil)
		require.NoError(t, err)
		require.Equal(t, testchain.Ether(5), balance)
	}
	ws := dial(t, n.WSURL())
	heads := make(chan *types.Header)
	sub, err := ws.SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	tx := transfer(t, n.Accounts[0], 0)
	require.NoError(t, ws.SendTransaction(t.Context(), tx))
	receipt := awaitMined(t, n.Client(), tx.Hash())
	for head := range heads {
		if head.Hash() == receipt.BlockHash {
			break
		}
	}
	id, err := n.Client().ChainID(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, testchain.ChainID, id.Int64())
	var status map[string]hexutil.Uint64
	require.NoError(t, ws.Client().CallContext(t.Context(), &status, "txpool_status"))
}

func TestGeth_HitAtItsEstimate_IsCounted(t *testing.T) {
	t.Parallel()
	n := testchain.Geth(t, testchain.GethOptions{Args: []string{"--dev.gaslimit", "1000000000"}})
	counter, from, id := n.Counter(), n.Accounts[0], common.Hash{7}
	msg := ethereum.CallMsg{From: from.Address, To: &counter, Data: contracts.Hit(id)}
	gas, err := n.Client().EstimateGas(t.Context(), msg)
	require.NoError(t, err)
	require.LessOrEqual(t, gas, uint64(contracts.HitGas))
	for nonce, gas := range []uint64{gas, contracts.HitGas} {
		tx, err := types.SignNewTx(from.Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)), &types.DynamicFeeTx{
			ChainID: big.NewInt(testchain.ChainID), Nonce: uint64(nonce), To: &counter, Data: msg.Data, Gas: gas,
			GasFeeCap: big.NewInt(1e10), GasTipCap: big.NewInt(1e9),
		})
		require.NoError(t, err)
		require.NoError(t, n.Client().SendTransaction(t.Context(), tx))
		require.EqualValues(t, 1, awaitMined(t, n.Client(), tx.Hash()).Status)
	}
	counts, err := contracts.Counts(t.Context(), n.Client(), counter, nil, id)
	require.NoError(t, err)
	require.Equal(t, []uint64{2}, counts)
	head, err := n.Client().HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)
	require.Greater(t, head.GasLimit, uint64(900_000_000))
}

func TestGeth_Rewound_ForgetsTransactions(t *testing.T) {
	t.Parallel()
	n := testchain.Geth(t, testchain.GethOptions{})
	before, err := n.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	tx := transfer(t, n.Accounts[0], 0)
	require.NoError(t, n.Client().SendTransaction(t.Context(), tx))
	awaitMined(t, n.Client(), tx.Hash())
	n.SetHead(before)
	_, _, err = n.Client().TransactionByHash(t.Context(), tx.Hash())
	require.ErrorIs(t, err, ethereum.NotFound, "neither mined nor in the pool")
	require.NoError(t, n.Client().SendTransaction(t.Context(), tx), "until it is sent again")
	awaitMined(t, n.Client(), tx.Hash())
}

func TestGeth_Stopped_KeepsItsChain(t *testing.T) {
	t.Parallel()
	n := testchain.Geth(t, testchain.GethOptions{})
	tx := transfer(t, n.Accounts[0], 0)
	require.NoError(t, n.Client().SendTransaction(t.Context(), tx))
	mined := awaitMined(t, n.Client(), tx.Hash())
	n.Stop()
	_, err := n.Client().BlockNumber(t.Context())
	require.Error(t, err)
	n.Restart()
	require.Equal(t, mined.BlockHash, awaitMined(t, n.Client(), tx.Hash()).BlockHash)
}

// A durable geth continues its chain. Blocks that its database had not written yet are lost: the last ones, or all of a
// young chain.
func TestGeth_KilledDurable_Restarts(t *testing.T) {
	t.Parallel()
	n := testchain.Geth(t, testchain.GethOptions{Durable: true})
	n.Kill()
	n.Restart()
	funded := testchain.NewAccount(t).Address
	n.Fund(testchain.Ether(1), funded)
	balance, err := n.Client().BalanceAt(t.Context(), funded, nil)
	require.NoError(t, err)
	require.Equal(t, testchain.Ether(1), balance)
}

func TestGeth_KilledNotDurable_RestartFails(t *testing.T) {
	t.Parallel()
	f := &failing{TB: t}
	n := testchain.Geth(f, testchain.GethOptions{})
	n.Kill()
	var wg sync.WaitGroup
	wg.Go(n.Restart)
	wg.Wait()
	require.Contains(t, f.message, "not Durable")
}

func TestGeth_Paused_AnswersLater(t *testing.T) {
	t.Parallel()
	n := testchain.Geth(t, testchain.GethOptions{})
	n.Pause()
	conn, err := net.Dial("tcp", n.URL()[len("http://"):])
	require.NoError(t, err, "a frozen node's port still accepts")
	require.NoError(t, conn.Close())
	tx := transfer(t, n.Accounts[0], 0)
	sent := make(chan error, 1)
	go func() { sent <- n.Client().SendTransaction(t.Context(), tx) }()
	select {
	case err := <-sent:
		require.Fail(t, "it answered", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	n.Resume()
	require.NoError(t, <-sent)
	awaitMined(t, n.Client(), tx.Hash())
}

func TestGeth_TestEnds_IsStopped(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("inner", func(t *testing.T) { url = testchain.Geth(t, testchain.GethOptions{}).URL() })
	_, err := net.Dial("tcp", url[len("http://"):])
	require.Error(t, err)
}

// A relayer must survive this: at its default limits geth accepts transactions, and silently drops some of them later.
func TestGeth_DefaultLimits_DropsAcceptedTransactions(t *testing.T) {
	t.Parallel()
	const accounts, each = 120, 64
	// Small blocks, which take few transactions out of the pool meanwhile.
	n := testchain.Geth(t, testchain.GethOptions{Accounts: accounts, Args: []string{"--dev.gaslimit", "1000000"}})
	var accepted []common.Hash
	for _, a := range n.Accounts {
		batch := make([]rpc.BatchElem, each)
		for nonce := range batch {
			raw, err := transfer(t, a, uint64(nonce)).MarshalBinary()
			require.NoError(t, err)
			batch[nonce] = rpc.BatchElem{
				Method: "eth_sendRawTransaction", Args: []any{hexutil.Bytes(raw)}, Result: new(common.Hash),
			}
		}
		require.NoError(t, n.Client().Client().BatchCallContext(t.Context(), batch))
		for _, b := range batch {
			if b.Error == nil {
				accepted = append(accepted, *b.Result.(*common.Hash))
			}
		}
	}
	unknown := 0
	for chunk := range slices.Chunk(accepted, 500) {
		batch := make([]rpc.BatchElem, len(chunk))
		for i, tx := range chunk {
			batch[i] = rpc.BatchElem{Method: "eth_getTransactionByHash", Args: []any{tx}, Result: new(json.RawMessage)}
		}
		require.NoError(t, n.Client().Client().BatchCallContext(t.Context(), batch))
		for _, b := range batch {
			require.NoError(t, b.Error)
			if string(*b.Result.(*json.RawMessage)) == "null" {
				unknown++
			}
		}
	}
	t.Logf("%d sent, %d accepted, %d of them unknown now", accounts*each, len(accepted), unknown)
	require.Positive(t, unknown)
}
