package modeltest

import (
	"context"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// nodes are the relayers' interfaces of a chain.
type nodes interface {
	tracker.Chain
	sender.Chain
}

// rig is a chain with one funded key.
type rig struct {
	t   *testing.T
	key signertest.Key
	nodes
	seal func()
	// rewind makes an earlier block the head again. Its descendants' transactions return to the pool unless lost is
	// set.
	rewind func(to common.Hash, lost bool)
}

// TestConformance checks that the chain in memory answers like go-ethereum's, through the same interfaces.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *rig{"memory": inMemory, "go-ethereum": simulated} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range conformance {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.test(open(t))
				})
			}
		})
	}
}

func inMemory(t *testing.T) *rig {
	w := newWorld(testchain.ChainID)
	w.seal(1)
	return &rig{
		t: t, key: signertest.Keys(t, t.Name(), 1)[0], nodes: &client{world: w, gate: open{}, second: func() bool { return false }},
		seal: func() { w.seal(100) },
		rewind: func(to common.Hash, lost bool) {
			depth := 0
			for b := w.nodes[0].head; b.Hash != to; b = b.up {
				depth++
			}
			w.rewind(depth, lost)
			if lost {
				w.forget(func() bool { return true })
			}
		},
	}
}

func simulated(t *testing.T) *rig {
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	key := signertest.Keys(t, t.Name(), 1)[0]
	c.Fund(testchain.Ether(100), key.Address)
	client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{c.URL()}, PollInterval: 5 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = client.Run(ctx) }) // it ends with ctx
	t.Cleanup(func() { cancel(); running.Wait(); client.Close() })
	return &rig{
		t: t, key: key, nodes: both{tracker.Nodes(client), client}, seal: func() { c.Commit() },
		rewind: func(to common.Hash, lost bool) {
			c.Fork(to)
			if lost {
				c.Rollback()
			}
		},
	}
}

// both combines the two interfaces of a client.
type both struct {
	tracker.Chain
	client *evm.Client
}

func (b both) Balances(ctx context.Context, keys []common.Address) ([]*big.Int, error) {
	return b.client.Balances(ctx, keys)
}

func (b both) TransferGas(ctx context.Context, from, to common.Address, fresh bool) uint64 {
	return b.client.TransferGas(ctx, from, to, fresh)
}

func (b both) Send(ctx context.Context, txs []evm.Raw) []evm.Result {
	return b.client.Send(ctx, txs)
}

func (b both) SendToAll(ctx context.Context, txs []evm.Raw) []evm.Result {
	return b.client.SendToAll(ctx, txs)
}

// transfer returns a signed transfer without sending it; fees are in gwei.
func (r *rig) transfer(nonce uint64, fee, tip float64) evm.Raw {
	r.t.Helper()
	wei := func(gwei float64) *big.Int { return big.NewInt(int64(gwei * 1e9)) }
	signed, err := signer.SignRaw(r.t.Context(), r.key.Signer, types.NewTx(&types.DynamicFeeTx{
		Nonce: nonce, To: new(common.HexToAddress("0xcc")), Gas: 21_000, GasFeeCap: wei(fee), GasTipCap: wei(tip),
	}), big.NewInt(testchain.ChainID))
	require.NoError(r.t, err)
	return evm.Raw{Hash: signed.Hash, Bytes: signed.Raw}
}

func (r *rig) send(tx evm.Raw, want evm.Outcome) evm.Raw {
	r.t.Helper()
	results := r.Send(r.t.Context(), []evm.Raw{tx})
	require.Equal(r.t, want.String(), results[0].Outcome.String(), "%v", results[0].Err)
	return tx
}

func (r *rig) latest() tracker.View {
	r.t.Helper()
	v, err := r.Latest(r.t.Context())
	require.NoError(r.t, err)
	return v
}

// counts requires the numbers of transactions mined up to a view's block, and of those including the pool without a
// gap.
func (r *rig) counts(v tracker.View, mined, pending uint64) {
	r.t.Helper()
	got, err := v.Nonces(r.t.Context(), []common.Address{r.key.Address})
	require.NoError(r.t, err)
	require.Equal(r.t, []uint64{mined}, got, "mined")
	// go-ethereum counts an accepted transaction as pending only after its pool has arranged it in the background.
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		got, err := v.PendingNonces(r.t.Context(), []common.Address{r.key.Address})
		require.NoError(c, err)
		require.Equal(c, []uint64{pending}, got, "pending")
	}, slowMachine, 2*time.Millisecond)
}

// receipt returns the receipt of a transaction in a view; nil if there is none.
func (r *rig) receipt(v tracker.View, tx evm.Raw) *evm.Receipt {
	r.t.Helper()
	receipts, err := v.Receipts(r.t.Context(), []common.Hash{tx.Hash})
	require.NoError(r.t, err)
	require.Len(r.t, receipts, 1)
	return receipts[0]
}

var conformance = []struct {
	name string
	test func(r *rig)
}{
	{"what was sent waits, and is mined", func(r *rig) {
		tx := r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.send(tx, evm.AlreadyKnown)
		r.counts(r.latest(), 0, 1)
		require.Nil(r.t, r.receipt(r.latest(), tx))
		r.seal()
		v := r.latest()
		r.counts(v, 1, 1)
		receipt := r.receipt(v, tx)
		require.Equal(r.t, v.Header().Hash, receipt.BlockHash)
		require.True(r.t, receipt.Canonical && receipt.Succeeded)
		require.EqualValues(r.t, 21_000, receipt.GasUsed)
		all, err := v.BlockReceipts(r.t.Context(), v.Header().Hash)
		require.NoError(r.t, err)
		require.Len(r.t, all, 1)
		require.Equal(r.t, *receipt, all[0])
		require.Eventually(r.t, func() bool { // the pool follows the head later
			return r.Send(r.t.Context(), []evm.Raw{tx})[0].Outcome == evm.NonceTooLow
		}, 2*time.Minute, time.Millisecond)
		r.send(r.transfer(0, 20, 2), evm.NonceTooLow)
	}},
	{"what comes after a gap waits for it", func(r *rig) {
		second := r.send(r.transfer(1, 10, 1), evm.Accepted)
		r.counts(r.latest(), 0, 0)
		r.seal()
		require.Nil(r.t, r.receipt(r.latest(), second))
		first := r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.counts(r.latest(), 0, 2)
		r.seal()
		v := r.latest()
		r.counts(v, 2, 2)
		require.EqualValues(r.t, 0, r.receipt(v, first).Index)
		require.EqualValues(r.t, 1, r.receipt(v, second).Index)
	}},
	{"a replacement offers a tenth more in both", func(r *rig) {
		first := r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.send(r.transfer(0, 20, 1.09), evm.ReplacementUnderpriced)
		r.send(r.transfer(0, 10.9, 2), evm.ReplacementUnderpriced)
		next := r.send(r.transfer(0, 11, 1.1), evm.Accepted)
		r.send(first, evm.ReplacementUnderpriced)
		r.counts(r.latest(), 0, 1)
		r.seal()
		require.Nil(r.t, r.receipt(r.latest(), first))
		require.NotNil(r.t, r.receipt(r.latest(), next))
	}},
	{"what is below the base fee waits", func(r *rig) {
		tx := r.send(r.transfer(0, 0.01, 0.01), evm.Accepted)
		r.seal()
		require.Nil(r.t, r.receipt(r.latest(), tx))
		r.counts(r.latest(), 0, 1)
	}},
	{"what is wrong is refused for its own reason", func(r *rig) {
		r.send(r.transfer(0, 1, 2), evm.TipAboveCap)
	}},
	{"a view stays at its block", func(r *rig) {
		before := r.latest()
		tx := r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.seal()
		r.counts(before, 0, 1)
		require.False(r.t, r.receipt(before, tx).Canonical, "its block comes after the view's")
		require.True(r.t, r.receipt(r.latest(), tx).Canonical)
		_, err := before.FindNonce(r.t.Context(), r.key.Address, 0, 0)
		require.ErrorIs(r.t, err, evm.ErrNonceUnused)
		v := r.latest()
		used, err := v.FindNonce(r.t.Context(), r.key.Address, 0, 0)
		require.NoError(r.t, err)
		require.Equal(r.t, tx.Hash, used.TxHash)
		require.Equal(r.t, v.Header().Hash, used.BlockHash)
		require.Equal(r.t, v.Header().Number, used.BlockNumber)
	}},
	{"counts are those at a block that the chain has built upon", func(r *rig) {
		before := r.latest()
		r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.seal()
		key := []common.Address{r.key.Address}
		for block, mined := range map[common.Hash]uint64{before.Header().Hash: 0, r.latest().Header().Hash: 1, {}: 1} {
			for _, n := range r.Counts(r.t.Context(), block, key) {
				require.NoError(r.t, n.Err)
				require.Equal(r.t, []uint64{mined}, n.Mined)
				require.Equal(r.t, []uint64{1}, n.Pending)
			}
		}
		ctx, cancel := context.WithTimeout(r.t.Context(), 100*time.Millisecond) // nodes are asked again until then
		defer cancel()
		for _, n := range r.Counts(ctx, common.Hash{1}, key) {
			require.Error(r.t, n.Err)
		}
	}},
	{"headers are linked", func(r *rig) {
		r.seal()
		r.seal()
		v := r.latest()
		top := v.Header().Number
		headers, err := v.Headers(r.t.Context(), top-2, top)
		require.NoError(r.t, err)
		require.Len(r.t, headers, 3)
		require.Equal(r.t, headers[0].Hash, headers[1].Parent)
		require.Equal(r.t, v.Header().Hash, headers[2].Hash)
		_, err = v.Headers(r.t.Context(), top, top+1)
		require.ErrorIs(r.t, err, evm.ErrMissing)
	}},
	{"a reorganization puts back, and makes views stale", func(r *rig) {
		start := r.latest()
		tx := r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.seal()
		gone := r.latest()
		r.rewind(start.Header().Hash, false)
		_, err := gone.Nonces(r.t.Context(), []common.Address{r.key.Address})
		require.ErrorIs(r.t, err, evm.ErrStale)
		_, err = gone.Headers(r.t.Context(), start.Header().Number, gone.Header().Number)
		require.ErrorIs(r.t, err, evm.ErrStale)
		_, err = gone.Receipts(r.t.Context(), []common.Hash{tx.Hash})
		require.ErrorIs(r.t, err, evm.ErrStale)
		v := r.latest()
		require.Equal(r.t, start.Header().Hash, v.Header().Hash)
		r.counts(v, 0, 1)
		require.Nil(r.t, r.receipt(v, tx))
		r.send(tx, evm.AlreadyKnown)
		r.seal()
		v = r.latest()
		require.NotEqual(r.t, gone.Header().Hash, v.Header().Hash)
		require.Equal(r.t, gone.Header().Number, v.Header().Number)
		require.True(r.t, r.receipt(v, tx).Canonical)
	}},
	{"what a reorganization loses is gone", func(r *rig) {
		start := r.latest()
		tx := r.send(r.transfer(0, 10, 1), evm.Accepted)
		r.seal()
		r.rewind(start.Header().Hash, true)
		r.counts(r.latest(), 0, 0)
		r.send(tx, evm.Accepted)
		r.counts(r.latest(), 0, 1)
	}},
	{"the next head is told of", func(r *rig) {
		v := r.latest()
		ctx, cancel := context.WithCancel(r.t.Context())
		cancel()
		_, err := r.Next(ctx, v.Header().Hash)
		require.Error(r.t, err)
		r.seal()
		h, err := r.Next(r.t.Context(), v.Header().Hash)
		require.NoError(r.t, err)
		require.Equal(r.t, v.Header().Number+1, h.Number)
	}},
	{"a transaction is found by its hash", func(r *rig) {
		tx := r.send(r.transfer(0, 10, 1), evm.Accepted)
		for range 2 { // in the pool, and mined
			found, err := r.Transaction(r.t.Context(), tx.Hash)
			require.NoError(r.t, err)
			require.Equal(r.t, tx.Hash, found.Hash())
			r.seal()
		}
		_, err := r.Transaction(r.t.Context(), common.Hash{1})
		require.Error(r.t, err)
	}},
	{"fees come with a base fee", func(r *rig) {
		fees, err := r.Fees(r.t.Context())
		require.NoError(r.t, err)
		require.True(r.t, fees.EIP1559 && fees.BaseFee.Sign() > 0)
		for i := 1; i < len(fees.Tips); i++ {
			require.GreaterOrEqual(r.t, fees.Tips[i].Cmp(fees.Tips[i-1]), 0)
		}
	}},
	{"the first block is told of, and any other", func(r *rig) {
		v := r.latest()
		for _, a := range r.Anchors(r.t.Context(), v.Header().Number, 0) {
			require.NoError(r.t, a.Err)
			require.NotZero(r.t, a.Genesis)
			require.Equal(r.t, v.Header().Hash, a.Block.Hash)
		}
		for _, a := range r.Anchors(r.t.Context(), v.Header().Number+1, 0) {
			require.True(r.t, a.Block.IsZero())
		}
	}},
}
