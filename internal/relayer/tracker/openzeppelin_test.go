package tracker_test

import (
	"context"
	"errors"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// The tests of this file cover faults reported for OpenZeppelin's relayer (github.com/OpenZeppelin/openzeppelin-relayer),
// by the numbers of its issues.

// receiver is an account without earlier transfers.
var receiver = common.HexToAddress("0x00000000000000000000000000000000000c0ffe")

// executedOnce seals blocks until all transactions, of 1 wei each, are confirmed. It requires nonces without a gap or a
// repetition, from 0 for each key, and each transaction to be executed once.
func (f *fixture) executedOnce(r *relayertest.Relayer, txs []*relayer.Transaction) {
	f.t.Helper()
	nonces := map[common.Address][]uint64{}
	for _, tx := range txs {
		var now *relayer.Transaction
		require.Eventually(f.t, func() bool {
			f.chain.Commit()
			var err error
			now, err = r.Transaction(f.t.Context(), relayertest.PoolID, tx.ID)
			return err == nil && now.Status == relayer.Confirmed
		}, 2*time.Minute, 50*time.Millisecond, "%s did not get confirmed", tx.ID)
		nonces[now.From] = append(nonces[now.From], *now.Nonce)
	}
	for key, used := range nonces {
		slices.Sort(used)
		for i, nonce := range used {
			require.EqualValues(f.t, i, nonce, "nonces of %s: %d", key, used)
		}
	}
	require.EqualValues(f.t, len(txs), f.balance(receiver).Int64(), "executions")
}

// strictNonces is the rule of a chain without a pool of future transactions, such as Arbitrum's sequencer. It rejects every
// nonce above the account's next one.
func strictNonces() proxy.Rule {
	var mu sync.Mutex
	next := map[common.Address]uint64{}
	return proxy.Rule{
		Name: "nonce too high", Methods: []string{"eth_sendRawTransaction"},
		Fault: proxy.Fault{Kind: proxy.Refuse, Message: "nonce too high: address 0x0, tx: 9 state: 7"},
		When: proxy.Sends(func(tx *types.Transaction) bool {
			from, err := types.Sender(types.LatestSignerForChainID(tx.ChainId()), tx)
			if err != nil {
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			if tx.Nonce() == next[from] {
				next[from]++
			}
			return tx.Nonce() >= next[from]
		}),
	}
}

// unreachable breaks connections that send transactions while it is on.
func unreachable(on *atomic.Bool) proxy.Rule {
	return proxy.Rule{
		Name: "unreachable", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Cut},
		When: func(proxy.Call) bool { return on.Load() },
	}
}

// #681: "nonce too low" with the code -32603, for a mined transaction, was treated as a fault of the provider. Providers
// were paused one after the other until the relayer had none.
func TestOpenZeppelin681_NonceTooLowAsInternalError(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	f.chain.Commit() // so that a node can lag behind a block
	node.SetRules(
		proxy.Rule{Name: "answer lost", Methods: []string{"eth_sendRawTransaction"}, When: proxy.At(1), Fault: proxy.Fault{Kind: proxy.Lose}},
		proxy.Rule{
			Name: "too low", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32603, Message: "Transaction nonce too low"},
			When: proxy.Sends(func(tx *types.Transaction) bool { return tx.Nonce() == 0 }),
		},
		// Otherwise the relayer would find the transaction by its hash, and not send it again.
		proxy.Rule{Name: "unknown hash", Methods: []string{"eth_getTransactionByHash"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: "null"}},
	)
	node.SetLag(1)
	txs := []*relayer.Transaction{f.Send(t, receiver, 1, nil)}
	f.oneIsPending()
	f.chain.Commit() // mined, but the node does not return it yet
	require.Eventually(t, func() bool { return node.Injected()["too low"] > 0 }, 2*time.Minute, 10*time.Millisecond)
	require.NotContains(t, f.Client.Status().Endpoints[0].Failing, "eth_sendRawTransaction")
	for range 4 {
		txs = append(txs, f.Send(t, receiver, 1, nil))
	}
	node.SetLag(0)
	f.executedOnce(f.Relayer, txs)
	f.becomesReady()
}

// #683: the nonce counter was compared with the chain only at the start, and parallel increments could leave gaps. Here
// another sender uses the key twice, while two processes accept transactions.
func TestOpenZeppelin683_CounterIsComparedWithTheChain(t *testing.T) {
	f := setup(t, 1)
	other := relayertest.Start(t, f.options)
	for range 2 {
		keys, err := f.Store.Keys(t.Context())
		require.NoError(t, err)
		f.foreign(keys[0].NextNonce)
		f.oneIsPending()
		f.chain.Commit()
		require.Eventually(t, func() bool {
			f.chain.Commit()
			now, err := f.Store.Keys(t.Context())
			return err == nil && now[0].NextNonce == keys[0].NextNonce+1
		}, 2*time.Minute, 50*time.Millisecond, "the counter does not follow the chain")
		var sending sync.WaitGroup
		txs := make([]*relayer.Transaction, 20)
		for i := range txs {
			sending.Go(func() { txs[i] = []*relayertest.Relayer{f.Relayer, other}[i%2].Send(t, receiver, 1, nil) })
		}
		sending.Wait()
		used := map[uint64]bool{}
		for _, tx := range txs {
			done := f.commitUntil(tx, relayer.Confirmed)
			require.False(t, used[*done.Nonce], "nonce %d was used twice", *done.Nonce)
			used[*done.Nonce] = true
		}
		f.settled()
	}
	require.EqualValues(t, 40, f.balance(receiver).Int64())
}

// #818: nonces were allocated for transactions that were never sent. All later ones were rejected permanently with "nonce
// too high", also after a restart.
func TestOpenZeppelin818_SendsFailAndTheProcessRestarts(t *testing.T) {
	var node *proxy.Proxy
	var down atomic.Bool
	f := setup(t, 1, func(o *relayertest.Options) { node = before(t, o) })
	node.SetRules(unreachable(&down), strictNonces())
	down.Store(true)
	var txs []*relayer.Transaction
	for range 8 {
		txs = append(txs, f.Send(t, receiver, 1, nil))
	}
	require.Eventually(t, func() bool { return node.Injected()["unreachable"] >= 3 }, 2*time.Minute, 10*time.Millisecond)
	f.Stop()
	r := relayertest.Start(t, f.options)
	for range 4 {
		txs = append(txs, r.Send(t, receiver, 1, nil))
	}
	down.Store(false)
	f.executedOnce(r, txs)
}

// #831 (the fix of #818): an allocated nonce for which nothing was signed blocks the nonces above it. Their transactions
// were sent repeatedly, and rejected each time.
func TestOpenZeppelin831_NothingIsSignedForAClaimedNonce(t *testing.T) {
	var node *proxy.Proxy
	var remote *signertest.Fake
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		keySigner, _ := o.Ring.Signer(o.Ring.Addresses()[0])
		remote = signertest.NewFake(keySigner)
		var err error
		o.Ring, err = signer.New(remote)
		require.NoError(t, err)
	})
	node.SetRules(strictNonces())
	var failed atomic.Int32
	remote.Before(func(context.Context, [32]byte) error {
		if failed.Add(1) <= 5 {
			return errors.New("the signer is away")
		}
		return nil
	})
	var txs []*relayer.Transaction
	for range 6 {
		txs = append(txs, f.Send(t, receiver, 1, nil))
	}
	f.executedOnce(f.Relayer, txs)
	require.Greater(t, failed.Load(), int32(5))
}

// #836: two workers that prepared one transaction concurrently gave it two nonces, and it was executed twice. Here three
// processes allocate nonces to queued transactions, and each may sign and send what another has allocated.
func TestOpenZeppelin836_SeveralProcessesPrepareOneTransaction(t *testing.T) {
	f := setup(t, 2, func(o *relayertest.Options) { o.Pool = func(c *service.Config) { c.Cap = 2 } })
	processes := []*relayertest.Relayer{f.Relayer, relayertest.Start(t, f.options), relayertest.Start(t, f.options)}
	var sending sync.WaitGroup
	txs := make([]*relayer.Transaction, 30)
	for i := range txs {
		sending.Go(func() { txs[i] = processes[i%3].Send(t, receiver, 1, nil) })
	}
	sending.Wait()
	f.executedOnce(f.Relayer, txs)
}

// #843: after a while of transport errors on a chain that rejects future nonces, transactions that no node had occupied all
// nonces above the chain's. The relayer was blocked while callers continued to submit.
func TestOpenZeppelin843_TransportErrorsOnAStrictChain(t *testing.T) {
	var node *proxy.Proxy
	var down atomic.Bool
	f := setup(t, 2, func(o *relayertest.Options) { node = before(t, o) })
	node.SetRules(unreachable(&down), strictNonces())
	// Callers repeat a 503, which stores nothing: the only node may be unreachable for an estimate, too.
	post := func() *relayer.Transaction {
		for {
			tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
				To: &receiver, Value: big.NewInt(1), Speed: relayer.Fast,
			}})
			if !errors.Is(err, relayer.ErrUnavailable) {
				require.NoError(t, err)
				return tx
			}
		}
	}
	var txs []*relayer.Transaction
	for i := range 40 { // callers do not wait
		switch i {
		case 10:
			down.Store(true)
		case 25:
			require.Eventually(t, func() bool { return node.Injected()["unreachable"] >= 5 }, 2*time.Minute, 10*time.Millisecond)
			down.Store(false)
		}
		txs = append(txs, post())
		if i%5 == 0 {
			f.chain.Commit()
		}
	}
	f.executedOnce(f.Relayer, txs)
	f.settled()
	require.Positive(t, node.Injected()["nonce too high"])
}
