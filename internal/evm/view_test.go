package evm

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/holiman/uint256"
	"github.com/stretchr/testify/require"
)

func TestView_Reorganization_IsDetected(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL()}})
	ctx := t.Context()
	addrs := []common.Address{s.addr(0)}
	latest := func() *View {
		v, err := c.Latest(ctx)
		require.NoError(t, err)
		return v
	}

	base := s.Commit()
	kept := s.tx(0, 0)
	requireOutcomes(t, c.Send(ctx, []Raw{kept}), Accepted)
	old := s.Commit()
	before := latest()
	require.Equal(t, old, before.Header().Hash)
	mined, err := before.Receipts(ctx, []common.Hash{kept.Hash})
	require.NoError(t, err)
	require.True(t, mined[0].Canonical)

	// A longer branch without the transaction, in which the other key's transaction is mined.
	s.Fork(base)
	other := s.tx(1, 0)
	requireOutcomes(t, c.Send(ctx, []Raw{other}), Accepted)
	s.Commit()
	s.Commit()
	after := latest()
	require.Equal(t, before.Header().Number+1, after.Header().Number)

	_, err = before.Nonces(ctx, addrs)
	require.ErrorIs(t, err, ErrStale)
	_, err = before.Receipts(ctx, []common.Hash{kept.Hash})
	require.ErrorIs(t, err, ErrStale)
	_, err = before.Headers(ctx, 0, before.Header().Number)
	require.ErrorIs(t, err, ErrStale)
	_, err = c.ViewAt(ctx, before.Endpoint(), old)
	require.ErrorIs(t, err, ErrStale)
	_, err = c.ViewAt(ctx, before.Endpoint(), common.Hash{1})
	require.ErrorIs(t, err, ErrStale)
	_, err = c.ViewAt(ctx, "elsewhere", old)
	require.ErrorIs(t, err, ErrNoEndpoint)

	again, err := c.ViewAt(ctx, after.Endpoint(), after.Header().Hash)
	require.NoError(t, err)
	require.Equal(t, after.Header(), again.Header())
	again, err = c.LatestOf(ctx, after.Endpoint())
	require.NoError(t, err)
	require.Equal(t, after.Header(), again.Header())

	headers, err := after.Headers(ctx, 0, after.Header().Number)
	require.NoError(t, err)
	require.Len(t, headers, int(after.Header().Number)+1)
	require.Equal(t, after.Header(), headers[len(headers)-1])
	for i, h := range headers[1:] {
		require.Equal(t, headers[i].Hash, h.Parent)
	}
	receipts, err := again.Receipts(ctx, []common.Hash{other.Hash})
	require.NoError(t, err)
	require.True(t, receipts[0].Canonical, "in a block before the view's")

	// A transaction mined after the view's block exists, but does not count for the view.
	late := s.tx(2, 0)
	requireOutcomes(t, c.Send(ctx, []Raw{late}), Accepted)
	s.Commit()
	receipts, err = again.Receipts(ctx, []common.Hash{late.Hash})
	require.NoError(t, err)
	require.False(t, receipts[0].Canonical)
	_, err = again.Headers(ctx, 0, again.Header().Number+1)
	require.ErrorIs(t, err, ErrMissing)
}

func TestFindForeign_UsedNonce(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL()}})
	ctx := t.Context()
	var txs []Raw
	var blocks []common.Hash
	for i := range uint64(40) {
		if i%3 == 0 {
			s.Commit()
		}
		txs = append(txs, s.tx(0, i))
		requireOutcomes(t, c.Send(ctx, []Raw{txs[i], s.tx(1, i)}), Accepted, Accepted)
		blocks = append(blocks, s.Commit())
	}
	v, err := c.Latest(ctx)
	require.NoError(t, err)
	for i := range txs {
		used, err := v.FindNonce(ctx, s.addr(0), uint64(i), 0)
		require.NoError(t, err)
		require.Equal(t, txs[i].Hash, used.TxHash, "nonce %d", i)
		require.Equal(t, blocks[i], used.BlockHash)
		require.Equal(t, common.Address{1}, *used.To)
	}
	_, err = v.FindNonce(ctx, s.addr(0), 40, 0)
	require.ErrorIs(t, err, ErrNonceUnused)
	first, err := v.FindNonce(ctx, s.addr(0), 0, 0)
	require.NoError(t, err)
	_, err = v.FindNonce(ctx, s.addr(0), 0, first.BlockNumber)
	require.NoError(t, err)
}

func TestFindNonce_UsedByAuthorization_IsFound(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL()}})
	auth, err := types.SignSetCode(s.keys[1], types.SetCodeAuthorization{
		ChainID: *uint256From(simulatedID), Address: reverter, Nonce: 0,
	})
	require.NoError(t, err)
	other := auth // of another chain, and so of another signer
	other.ChainID = *uint256From(simulatedID + 1)
	data := &types.SetCodeTx{
		ChainID: uint256From(simulatedID), To: common.Address{1}, Gas: 200_000, GasFeeCap: uint256From(10e9),
		GasTipCap: uint256From(1e9), AuthList: []types.SetCodeAuthorization{other, auth},
	}
	tx, err := types.SignNewTx(s.keys[0], types.LatestSignerForChainID(big.NewInt(simulatedID)), data)
	require.NoError(t, err)
	raw, err := tx.MarshalBinary()
	require.NoError(t, err)
	requireOutcomes(t, c.Send(t.Context(), []Raw{{Hash: tx.Hash(), Bytes: raw}}), Accepted)
	hash := s.Commit()
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	nonces, err := v.Nonces(t.Context(), []common.Address{crypto.PubkeyToAddress(s.keys[1].PublicKey)})
	require.NoError(t, err)
	require.Equal(t, []uint64{1}, nonces)
	used, err := v.FindNonce(t.Context(), s.addr(1), 0, 0)
	require.NoError(t, err)
	require.Equal(t, Used{TxHash: tx.Hash(), BlockHash: hash, BlockNumber: v.Header().Number, To: &common.Address{1}, Authorization: true}, used)
	used, err = v.FindNonce(t.Context(), s.addr(0), 0, 0)
	require.NoError(t, err)
	require.False(t, used.Authorization)
}

// pruned makes a node keep the state of its latest blocks only. The given block used the nonce.
func pruned(f *fake, addr common.Address, nonce, block, kept uint64) {
	const head = 100_000
	f.set(func() { f.head = head })
	f.on("eth_getTransactionCount", func(params []json.RawMessage) (string, string) {
		n := uint64(head)
		if params[1][0] != '{' {
			n = numberOf(params[1], head)
		}
		switch {
		case n+kept <= head:
			return "", `{"code":-32000,"message":"missing trie node"}`
		case n < block:
			return fmt.Sprintf(`"%#x"`, nonce), ""
		}
		return fmt.Sprintf(`"%#x"`, nonce+1), ""
	})
	f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
		b := blockJSON(numberOf(params[0], head), 1)
		if string(params[1]) == "true" && numberOf(params[0], head) == block {
			b = strings.Replace(b, `[]`, fmt.Sprintf(`[{"hash":%q,"from":%q,"to":null,"nonce":"%#x"}]`, common.Hash{7}, addr, nonce), 1)
		}
		return b, ""
	})
}

// FindNonce searches a node with the state of some blocks as far as that state reaches.
func TestFindForeign_NodeHasStateOfFewBlocks(t *testing.T) {
	t.Parallel()
	addr := common.Address{9}
	for back, found := range map[uint64]bool{0: true, 1: true, 63: true, 64: true, 65: true, 100: true, 126: true, 127: true, 128: false, 5000: false} {
		f := newFake(t)
		pruned(f, addr, 5, 100_000-back, 128)
		c := open(t, Config{Endpoints: []string{f.url()}})
		v, err := c.Latest(t.Context())
		require.NoError(t, err)
		used, err := v.FindNonce(t.Context(), addr, 5, 0)
		if !found {
			require.ErrorContains(t, err, "missing trie node", "%d blocks ago", back)
			continue
		}
		require.NoError(t, err, "%d blocks ago", back)
		require.Equal(t, common.Hash{7}, used.TxHash)
		require.Equal(t, 100_000-back, used.BlockNumber)
	}
}

func TestFindNonce_NoTransactionUsesIt_IsUntraced(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	pruned(f, common.Address{9}, 5, 99_990, 128)
	c := open(t, Config{Endpoints: []string{f.url()}})
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	_, err = v.FindNonce(t.Context(), common.Address{8}, 5, 0)
	require.ErrorIs(t, err, ErrNonceUntraced)
	require.ErrorContains(t, err, "block 99990")
}

func TestSpread_CoversItsRange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ low, high uint64 }{{0, 1}, {3, 3 + probes}, {0, probes + 1}, {5, 1000}, {0, 20e6}, {19e6, 20e6}} {
		for _, near := range []bool{false, true} {
			points := spread(test.low, test.high, near)
			require.NotEmpty(t, points)
			for i, p := range points {
				require.GreaterOrEqual(t, p, test.low)
				require.Less(t, p, test.high)
				if i > 0 {
					require.Greater(t, p, points[i-1])
				}
			}
		}
	}
}

func TestView_NewerMethodsMissing_ReadsByOlderOnes(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	hash := common.HexToHash(fmt.Sprintf("0x01%062x", 100))
	tx := common.Hash{7}
	f.on("eth_getTransactionCount", func(params []json.RawMessage) (string, string) {
		if params[1][0] == '{' {
			return "", `{"code":-32602,"message":"invalid argument 1"}`
		}
		return `"0x9"`, ""
	})
	f.always("eth_getBlockReceipts", "", `{"code":-32601,"message":"no such method"}`)
	f.always("eth_getBlockByHash", fmt.Sprintf(`{"number":"0x64","hash":%q,"parentHash":%q,"timestamp":"0x1","transactions":[%q]}`, hash, hash, tx), "")
	f.always("eth_getTransactionReceipt", fmt.Sprintf(`{"transactionHash":%q,"blockHash":%q,"blockNumber":"0x64",
		"transactionIndex":"0x0","status":"0x0","gasUsed":"0x5208","logs":[{"data":"0x\""}]}`, tx, hash), "")
	c := open(t, Config{Endpoints: []string{f.url()}})
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	for range 2 {
		nonces, err := v.Nonces(t.Context(), []common.Address{{1}})
		require.NoError(t, err)
		require.Equal(t, []uint64{9}, nonces)
		receipts, err := v.BlockReceipts(t.Context(), hash)
		require.NoError(t, err)
		require.Equal(t, []Receipt{{TxHash: tx, BlockHash: hash, BlockNumber: 100, GasUsed: 21000, Canonical: true}}, receipts)
	}
	require.Equal(t, 3, f.count("eth_getTransactionCount"), "by hash only once")
	require.Equal(t, 1, f.count("eth_getBlockReceipts"))
	f.set(func() { f.hash = 2 }) // another branch
	_, err = v.Nonces(t.Context(), []common.Address{{1}})
	require.ErrorIs(t, err, ErrStale)
}

func TestView_ReadFails_AsksNoOtherEndpoint(t *testing.T) {
	t.Parallel()
	first, second := newFake(t), newFake(t)
	c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
	c.shorten(t, 0)
	v, err := c.LatestOf(t.Context(), c.endpoints[0].name)
	require.NoError(t, err)
	first.breakFor("eth_getTransactionCount", faults["hangs"].apply)
	_, err = v.Nonces(t.Context(), []common.Address{{1}})
	var transport *TransportError
	require.ErrorAs(t, err, &transport)
	require.Zero(t, second.count("eth_getTransactionCount"))
	c.endpoints[0].prolong()
	v, err = c.Latest(t.Context())
	require.NoError(t, err)
	require.Equal(t, c.endpoints[1].name, v.Endpoint())
}

func TestAnchors_EachEndpoint_ReportsItsOwn(t *testing.T) {
	t.Parallel()
	a, b, gone := newFake(t), newFake(t), newFake(t)
	b.set(func() { b.hash = 2 })
	gone.breakFor("eth_chainId", faults["500"].apply)
	c := open(t, Config{Endpoints: []string{a.url(), b.url(), gone.url()}})
	anchors := c.Anchors(t.Context(), 50, 0)
	require.Len(t, anchors, 3)
	require.NoError(t, anchors[0].Err)
	require.Equal(t, byte(1), anchors[0].Genesis[0])
	require.EqualValues(t, 50, anchors[0].Block.Number)
	require.Equal(t, byte(2), anchors[1].Genesis[0])
	require.Equal(t, byte(2), anchors[1].Block.Hash[0])
	require.Error(t, anchors[2].Err)

	a.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
		if numberOf(params[0], 1) > 1 {
			return "null", ""
		}
		return blockJSON(numberOf(params[0], 1), 3), ""
	})
	anchors = c.Anchors(t.Context(), 50, 0)
	require.NoError(t, anchors[0].Err)
	require.Equal(t, byte(3), anchors[0].Genesis[0], "the chain has begun again")
	require.True(t, anchors[0].Block.IsZero())
	require.Equal(t, byte(3), c.Status().Endpoints[0].Genesis[0])
}

func TestFees_NoBaseFee_HasPriceOnly(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.always("eth_gasPrice", `"0x3b9aca00"`, "")
	f.always("eth_feeHistory", "", `{"code":-32601,"message":"no such method"}`)
	f.always("eth_maxPriorityFeePerGas", "", `{"code":-32601,"message":"no such method"}`)
	c := open(t, Config{Endpoints: []string{f.url()}})
	fees, err := c.Fees(t.Context())
	require.NoError(t, err)
	require.False(t, fees.EIP1559)
	require.Equal(t, gwei(1), fees.Price(Fastest))
	require.Equal(t, gwei(1), fees.Price(SafeLow))
}

func TestFees_Tips_IgnoreEmptyBlocks(t *testing.T) {
	t.Parallel()
	f := Fees{Head: Header{Number: 3, BaseFee: big.NewInt(3)}}
	for i := range f.Tips {
		f.Tips[i] = big.NewInt(5)
	}
	require.NoError(t, f.learn([]byte(`{"oldestBlock":"0x1","baseFeePerGas":["0x1","0x2","0x3","0x4"],
		"gasUsedRatio":[0.5,0,1],"reward":[["0x1","0x2","0x3","0x4"],["0x0","0x0","0x0","0x0"],["0x5","0x4","0x9","0x8"]]}`)))
	require.Equal(t, big.NewInt(4), f.BaseFee, "of the next block")
	require.Equal(t, [4]*big.Int{big.NewInt(5), big.NewInt(5), big.NewInt(9), big.NewInt(9)}, f.Tips, "never falling")

	f = Fees{Head: Header{BaseFee: big.NewInt(1)}, Tips: [4]*big.Int{big.NewInt(7), big.NewInt(7), big.NewInt(7), big.NewInt(7)}}
	require.NoError(t, f.learn([]byte(`{"baseFeePerGas":["0x1","0x2"],"gasUsedRatio":[0],"reward":[["0x0","0x0","0x0","0x0"]]}`)))
	require.Equal(t, big.NewInt(7), f.Tips[0], "nothing to learn from empty blocks")
	require.NoError(t, f.learn([]byte(`{"baseFeePerGas":["0x1","0x2"],"gasUsedRatio":[0.1],"reward":null}`)))
	for _, bad := range []string{``, `[]`, `{"reward":[["x"]]}`, `{"baseFeePerGas":[1]}`} {
		require.Error(t, f.learn([]byte(bad)), bad)
	}
}

func TestFees_Concurrent_OneRequestAHead(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.always("eth_gasPrice", `"0x1"`, "")
	c := open(t, Config{Endpoints: []string{f.url()}})
	done := make(chan error, 50)
	for range cap(done) {
		go func() {
			_, err := c.Fees(t.Context())
			done <- err
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
	}
	require.LessOrEqual(t, f.count("eth_gasPrice"), 2, "the first head may come with the first answer")
}

func uint256From(n uint64) *uint256.Int { return uint256.NewInt(n) }

// While an endpoint returns the same block, nothing else is read. Another answer is compared with the whole chain.
func TestAnchors_SameBlock_IsReadAlone(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	first := c.Anchors(t.Context(), 7, 0)[0]
	require.NoError(t, first.Err)
	require.EqualValues(t, 7, first.Block.Number)
	f.set(func() { f.seen = nil })
	require.Equal(t, first, c.Anchors(t.Context(), 7, 0)[0])
	require.Len(t, f.seen, 1)

	f.set(func() { f.hash = 2 })
	changed := c.Anchors(t.Context(), 7, 0)[0]
	require.NoError(t, changed.Err)
	require.NotEqual(t, first.Genesis, changed.Genesis)
	require.NotEqual(t, first.Block.Hash, changed.Block.Hash)

	f.set(func() { f.chainID = 5 })
	c.endpoints[0].mu.Lock()
	c.endpoints[0].verified = time.Now().Add(-verifyEvery)
	c.endpoints[0].mu.Unlock()
	var wrong *WrongChainError
	require.ErrorAs(t, c.Anchors(t.Context(), 7, 0)[0].Err, &wrong, "the chain id is read again each minute")
}

// The chain may grow between the reads of its newest block and of the tagged one. Then the View's block is before the tagged one.
func TestTagged_ChainHasGrown_IsTheViewsBlock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tagged, canonical byte // the forks of the tagged block, and of the blocks by number
		want              error
	}{
		"on the chain":       {1, 1, nil},
		"not on the chain":   {2, 1, ErrMissing},
		"the View's is gone": {2, 2, ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
				switch string(params[0]) {
				case `"finalized"`:
					return blockJSON(105, test.tagged), ""
				case `"latest"`:
					return blockJSON(100, 1), ""
				}
				return blockJSON(numberOf(params[0], 100), test.canonical), ""
			})
			c := open(t, Config{Endpoints: []string{f.url()}})
			v, err := c.Latest(t.Context())
			require.NoError(t, err)
			h, err := v.Tagged(t.Context(), "finalized")
			require.ErrorIs(t, err, test.want)
			if test.want == nil {
				require.Equal(t, v.Header(), h)
			}
		})
	}
}
