package devchain_test

import (
	"context"
	"crypto/ecdsa"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/devchain"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testchain.Leftovers()...) }

type setup struct {
	*devchain.Chain
	t       *testing.T
	key     *ecdsa.PrivateKey
	account common.Address
}

func open(t *testing.T, config devchain.Config) *setup {
	t.Helper()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	s := &setup{t: t, key: key, account: crypto.PubkeyToAddress(key.PublicKey)}
	config.Fund = append(config.Fund, s.account)
	s.Chain, err = devchain.Open(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// transfer returns a signed transaction without sending it.
func (s *setup) transfer(nonce uint64) *types.Transaction {
	s.t.Helper()
	tx, err := types.SignNewTx(s.key, types.LatestSignerForChainID(big.NewInt(devchain.ChainID)), &types.DynamicFeeTx{
		ChainID: big.NewInt(devchain.ChainID), Nonce: nonce, To: &common.Address{1}, Value: big.NewInt(1), Gas: 21_000,
		GasFeeCap: big.NewInt(10 * params.GWei), GasTipCap: big.NewInt(params.GWei),
	})
	require.NoError(s.t, err)
	return tx
}

func (s *setup) send(nonce uint64) common.Hash {
	s.t.Helper()
	tx := s.transfer(nonce)
	require.NoError(s.t, s.Client().SendTransaction(s.t.Context(), tx))
	return tx.Hash()
}

func (s *setup) commit() common.Hash {
	s.t.Helper()
	hash, err := s.Commit()
	require.NoError(s.t, err)
	return hash
}

// minedIn returns the block number of a transaction, nil if it is not mined.
func (s *setup) minedIn(tx common.Hash) *big.Int {
	s.t.Helper()
	receipt, err := s.Client().TransactionReceipt(s.t.Context(), tx)
	if err != nil {
		require.ErrorIs(s.t, err, ethereum.NotFound)
		return nil
	}
	return receipt.BlockNumber
}

func raw(t *testing.T, tx *types.Transaction) string {
	t.Helper()
	b, err := tx.MarshalBinary()
	require.NoError(t, err)
	return hexutil.Encode(b)
}

func TestCommit_PendingTransaction_IsMined(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{})
	require.Empty(t, s.Addr()+s.URL()+s.WSURL(), "no endpoint was asked for")
	tx := s.send(0)
	require.Nil(t, s.minedIn(tx), "nothing is mined before the commit")
	hash := s.commit()
	require.EqualValues(t, 2, s.minedIn(tx).Int64())
	head, err := s.Client().HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, hash, head.Hash())
	id, err := s.Client().ChainID(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, devchain.ChainID, id.Int64())
}

// Several chains run concurrently, so that the pools are slow.
func TestCommit_ManySentBefore_MinesAll(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			s := open(t, devchain.Config{})
			for nonce := range uint64(320) {
				s.send(nonce)
				if nonce%8 != 7 {
					continue
				}
				s.commit()
				block, err := s.Client().BlockByNumber(t.Context(), nil)
				require.NoError(t, err)
				require.Len(t, block.Transactions(), 8)
			}
		})
	}
}

func TestOpen_Twice_GenesisDiffers(t *testing.T) {
	t.Parallel()
	genesis := func() common.Hash {
		c, err := devchain.Open(devchain.Config{}) // the same for both, and within a second
		require.NoError(t, err)
		defer c.Close()
		header, err := c.Client().HeaderByNumber(t.Context(), common.Big0)
		require.NoError(t, err)
		require.Equal(t, header.Hash(), c.Genesis())
		return header.Hash()
	}
	require.NotEqual(t, genesis(), genesis())
}

func TestOpen_Config_IsApplied(t *testing.T) {
	t.Parallel()
	rich, poor := common.Address{7}, common.Address{8}
	s := open(t, devchain.Config{
		Fund: []common.Address{rich, poor}, Balance: big.NewInt(5e18), GasLimit: 1_000_000_000, BaseFee: big.NewInt(77),
		Alloc: types.GenesisAlloc{poor: {Balance: big.NewInt(3)}},
	})
	balance, err := s.Client().BalanceAt(t.Context(), rich, nil)
	require.NoError(t, err)
	require.Equal(t, big.NewInt(5e18), balance)
	balance, err = s.Client().BalanceAt(t.Context(), poor, nil)
	require.NoError(t, err)
	require.Equal(t, big.NewInt(3), balance)
	genesis, err := s.Client().HeaderByNumber(t.Context(), common.Big0)
	require.NoError(t, err)
	require.Equal(t, big.NewInt(77), genesis.BaseFee)
	s.commit()
	head, err := s.Client().HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)
	require.EqualValues(t, 1_000_000_000, head.GasLimit)
}

func TestFork_MinedTransactions_ReturnToThePool(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{})
	base := s.commit()
	first := s.send(0)
	s.commit()
	second := s.send(1) // in the pool while the chain forks
	require.NoError(t, s.Fork(base))
	require.Nil(t, s.minedIn(first))
	s.commit()
	require.NotNil(t, s.minedIn(first), "mined again")
	require.NotNil(t, s.minedIn(second))
}

func TestRollback_AfterFork_DropsTransactions(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{})
	base := s.commit()
	tx := s.transfer(0)
	require.NoError(t, s.Client().SendTransaction(t.Context(), tx))
	s.commit()
	require.NoError(t, s.Fork(base))
	require.NoError(t, s.Rollback())
	s.commit()
	s.commit()
	_, _, err := s.Client().TransactionByHash(t.Context(), tx.Hash())
	require.ErrorIs(t, err, ethereum.NotFound)
	nonce, err := s.Client().PendingNonceAt(t.Context(), s.account)
	require.NoError(t, err)
	require.Zero(t, nonce)
	require.NoError(t, s.Client().SendTransaction(t.Context(), tx), "it can be sent again")
	s.commit()
	require.NotNil(t, s.minedIn(tx.Hash()))
}

func TestFork_UnknownBlock_Fails(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, open(t, devchain.Config{}).Fork(common.Hash{1}), "no block 0x01")
}

func TestAdjustTime_EmptyPool_MovesTheTime(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{})
	before, err := s.Client().HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.AdjustTime(time.Hour))
	after, err := s.Client().HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)
	require.EqualValues(t, 3600, after.Time-before.Time)
	s.send(0)
	require.ErrorContains(t, s.AdjustTime(time.Hour), "non-empty")
}

func TestEndpoint_Modules_OnlyTheyAreAnswered(t *testing.T) {
	t.Parallel()
	all := []string{"eth_chainId", "net_version", "web3_clientVersion", "txpool_status", "debug_getRawHeader"}
	for name, test := range map[string]struct {
		modules []string
		answers []string
	}{
		"by default":      {answers: all[:4]},
		"debug is wanted": {modules: []string{"eth", "net", "web3", "txpool", "debug"}, answers: all},
		"eth alone":       {modules: []string{"eth"}, answers: all[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, devchain.Config{Listen: "127.0.0.1:0", Modules: test.modules})
			for _, url := range []string{s.URL(), s.WSURL()} {
				client, err := rpc.DialContext(t.Context(), url)
				require.NoError(t, err)
				defer client.Close()
				var answers []string
				for _, method := range all {
					var args []any
					if method == "debug_getRawHeader" {
						args = []any{"latest"}
					}
					if client.CallContext(t.Context(), new(any), method, args...) == nil {
						answers = append(answers, method)
					}
				}
				require.Equal(t, test.answers, answers, url)
			}
		})
	}
}

func TestEndpoint_BatchOverHTTP_IsAnswered(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{Listen: "127.0.0.1:0"})
	client, err := ethclient.DialContext(t.Context(), s.URL())
	require.NoError(t, err)
	defer client.Close()
	batch := make([]rpc.BatchElem, 10)
	for i := range batch {
		batch[i] = rpc.BatchElem{
			Method: "eth_sendRawTransaction", Args: []any{raw(t, s.transfer(uint64(i)))}, Result: new(common.Hash),
		}
	}
	require.NoError(t, client.Client().BatchCallContext(t.Context(), batch))
	for _, b := range batch {
		require.NoError(t, b.Error)
	}
	hash := s.commit()
	receipts, err := client.BlockReceipts(t.Context(), rpc.BlockNumberOrHashWithHash(hash, true))
	require.NoError(t, err)
	require.Len(t, receipts, len(batch))
	for i, r := range receipts {
		require.Equal(t, *batch[i].Result.(*common.Hash), r.TxHash)
		require.EqualValues(t, 1, r.Status)
	}
}

func TestEndpoint_Websocket_DeliversHeads(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{Listen: "127.0.0.1:0"})
	client, err := ethclient.DialContext(t.Context(), s.WSURL())
	require.NoError(t, err)
	defer client.Close()
	heads := make(chan *types.Header)
	sub, err := client.SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	for range 3 {
		hash := s.commit()
		require.Equal(t, hash, (<-heads).Hash())
	}
}

func TestRun_BlockTime_SealsBlocks(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{BlockTime: 10 * time.Millisecond})
	heads := make(chan *types.Header, 100)
	sub, err := s.Client().SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, s.Run(ctx)) })
	for n := range int64(5) {
		require.Equal(t, n+2, (<-heads).Number.Int64())
	}
	cancel()
	wg.Wait()
	// After Close, Run returns ErrClosed.
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Run(t.Context()), devchain.ErrClosed)
}

func TestChain_ConcurrentUse(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{BlockTime: time.Millisecond})
	base := s.commit()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, s.Run(ctx)) })
	for range 4 {
		wg.Go(func() {
			for range 5 {
				s.commit()
				require.NoError(t, s.Fork(base))
				require.NoError(t, s.Rollback())
			}
		})
	}
	for nonce := range uint64(5) {
		_ = s.Client().SendTransaction(t.Context(), s.transfer(nonce)) // it may be in the pool already, or be lost
	}
	cancel()
	wg.Wait()
}

func TestPool_LimitsUnset_HasDefaults(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{})
	// The pool keeps 64 transactions of an account beyond a gap, and rejects the next.
	for nonce := uint64(1); nonce <= 64; nonce++ {
		s.send(nonce)
	}
	queued := func() uint64 {
		var status struct{ Pending, Queued hexutil.Uint64 }
		require.NoError(t, s.Client().Client().CallContext(t.Context(), &status, "txpool_status"))
		return uint64(status.Queued)
	}
	require.EqualValues(t, 64, queued())
	_ = s.Client().SendTransaction(t.Context(), s.transfer(65))
	// The pool answers first and drops what is over the limit in its next round.
	require.Eventually(t, func() bool { return queued() == 64 }, 2*time.Minute, 5*time.Millisecond)
}

func TestChain_Closed_ReturnsErrClosed(t *testing.T) {
	t.Parallel()
	s := open(t, devchain.Config{Listen: "127.0.0.1:0"})
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "closing again does nothing")
	_, err := s.Commit()
	require.ErrorIs(t, err, devchain.ErrClosed)
	require.ErrorIs(t, s.Fork(common.Hash{}), devchain.ErrClosed)
	require.ErrorIs(t, s.Rollback(), devchain.ErrClosed)
	require.ErrorIs(t, s.AdjustTime(time.Hour), devchain.ErrClosed)
	_, err = net.Dial("tcp", s.Addr())
	require.Error(t, err)
}

func TestOpen_UnusableAddress_Fails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	for name, test := range map[string]struct{ listen, says string }{
		"taken":       {taken.Addr().String(), "address already in use"},
		"no port":     {"127.0.0.1", "missing port"},
		"no number":   {"127.0.0.1:http", `"http" is not a port`},
		"beyond port": {"127.0.0.1:65536", `"65536" is not a port`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := devchain.Open(devchain.Config{Listen: test.listen})
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestEndpoint_OtherHostName_IsRefusedOnLoopback(t *testing.T) {
	t.Parallel()
	for listen, code := range map[string]int{"127.0.0.1:0": http.StatusForbidden, ":0": http.StatusOK} {
		s := open(t, devchain.Config{Listen: listen})
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL(),
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}`))
		require.NoError(t, err)
		request.Host = "dev-chain:8545"
		request.Header.Set("Content-Type", "application/json")
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, code, response.StatusCode, listen)
	}
}
