package evm

import (
	"context"
	"crypto/ecdsa"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"
	"github.com/stretchr/testify/require"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

const simulatedID = testchain.ChainID

// sim is a real node that mines on request.
type sim struct {
	*testchain.Chain
	t    *testing.T
	keys []*ecdsa.PrivateKey
}

func newSim(t *testing.T) *sim {
	t.Helper()
	s := &sim{t: t, Chain: testchain.Simulated(t, testchain.SimulatedOptions{Balance: ether(1000), Alloc: types.GenesisAlloc{
		reverter: {Balance: new(big.Int), Code: common.FromHex(reverterCode)},
		counter:  {Balance: new(big.Int), Code: common.FromHex(counterCode)},
	}})}
	for _, a := range s.Accounts {
		s.keys = append(s.keys, a.Key)
	}
	return s
}

func (s *sim) addr(i int) common.Address { return crypto.PubkeyToAddress(s.keys[i].PublicKey) }

// tx signs a transfer of one wei.
func (s *sim) tx(key int, nonce uint64, change ...func(*types.DynamicFeeTx)) Raw {
	s.t.Helper()
	to := common.Address{1}
	data := &types.DynamicFeeTx{
		ChainID: big.NewInt(simulatedID), Nonce: nonce, To: &to, Value: big.NewInt(1), Gas: 21000,
		GasFeeCap: gwei(10), GasTipCap: gwei(1),
	}
	for _, f := range change {
		f(data)
	}
	tx, err := types.SignNewTx(s.keys[key], types.LatestSignerForChainID(data.ChainID), data)
	require.NoError(s.t, err)
	raw, err := tx.MarshalBinary()
	require.NoError(s.t, err)
	return Raw{Hash: tx.Hash(), Bytes: raw}
}

func gwei(n int64) *big.Int  { return new(big.Int).Mul(big.NewInt(n), big.NewInt(params.GWei)) }
func ether(n int64) *big.Int { return new(big.Int).Mul(big.NewInt(n), big.NewInt(params.Ether)) }

// open returns a client that is closed at the end of the test.
func open(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.ChainID == 0 {
		cfg.ChainID = simulatedID
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	c, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// run runs the client until the test ends.
func run(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func requireOutcomes(t *testing.T, results []Result, want ...Outcome) {
	t.Helper()
	got := make([]Outcome, len(results))
	for i, r := range results {
		got[i] = r.Outcome
	}
	require.Equal(t, want, got, "%v", results)
}

// reverter is a contract that returns its call data as revert data.
var reverter = common.HexToAddress("0x5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e")

// CALLDATASIZE PUSH0 PUSH0 CALLDATACOPY CALLDATASIZE PUSH0 REVERT
const reverterCode = "365f5f37365ffd"

func TestClient_SentTransaction_IsMinedAndFound(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newSim(t)
			url := s.URL()
			if scheme == "ws" {
				url = s.WSURL()
			}
			c := open(t, Config{Endpoints: []string{url}})
			ctx := t.Context()

			txs := []Raw{s.tx(0, 0), s.tx(0, 1), s.tx(1, 0)}
			requireOutcomes(t, c.Send(ctx, txs), Accepted, Accepted, Accepted)
			requireOutcomes(t, c.Send(ctx, txs[:1]), AlreadyKnown)

			v, err := c.Latest(ctx)
			require.NoError(t, err)
			addrs := []common.Address{s.addr(0), s.addr(1), s.addr(2)}
			nonces, err := v.Nonces(ctx, addrs)
			require.NoError(t, err)
			require.Equal(t, []uint64{0, 0, 0}, nonces)
			require.Eventually(t, func() bool { // the pool counts them a moment later
				pending, err := v.PendingNonces(ctx, addrs)
				return err == nil && slices.Equal(pending, []uint64{2, 1, 0})
			}, patient, time.Millisecond)
			unknown := common.Hash{1}
			found, err := v.Transactions(ctx, []common.Hash{txs[0].Hash, unknown})
			require.NoError(t, err)
			require.Equal(t, []Presence{Pending, Absent}, found)

			hash := s.Commit()
			nonces, err = v.Nonces(ctx, addrs)
			require.NoError(t, err)
			require.Equal(t, []uint64{0, 0, 0}, nonces, "a view stays at its block")
			v, err = c.Latest(ctx)
			require.NoError(t, err)
			require.Equal(t, hash, v.Header().Hash)
			nonces, err = v.Nonces(ctx, addrs)
			require.NoError(t, err)
			require.Equal(t, []uint64{2, 1, 0}, nonces)
			receipts, err := v.Receipts(ctx, []common.Hash{unknown, txs[2].Hash})
			require.NoError(t, err)
			require.Nil(t, receipts[0])
			require.Equal(t, hash, receipts[1].BlockHash)
			require.True(t, receipts[1].Canonical)
			require.True(t, receipts[1].Succeeded)
			require.EqualValues(t, 21000, receipts[1].GasUsed)
			require.Positive(t, receipts[1].GasPrice.Sign())
			all, err := v.BlockReceipts(ctx, hash)
			require.NoError(t, err)
			require.Len(t, all, 3)
			require.Contains(t, all, *receipts[1])
			found, err = v.Transactions(ctx, []common.Hash{txs[0].Hash})
			require.NoError(t, err)
			require.Equal(t, []Presence{Mined}, found)
			balances, err := c.Balances(ctx, []common.Address{{1}, s.addr(2)})
			require.NoError(t, err)
			require.Equal(t, []*big.Int{big.NewInt(3), ether(1000)}, balances)
		})
	}
}

func TestClassify_GethRejections_AreRecognized(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL()}})
	requireOutcomes(t, c.Send(t.Context(), []Raw{s.tx(0, 0)}), Accepted)
	s.Commit()
	requireOutcomes(t, c.Send(t.Context(), []Raw{s.tx(0, 1)}), Accepted)
	fees := func(fee, tip *big.Int) func(*types.DynamicFeeTx) {
		return func(tx *types.DynamicFeeTx) { tx.GasFeeCap, tx.GasTipCap = fee, tip }
	}
	for want, tx := range map[Outcome]Raw{
		NonceTooLow:            s.tx(0, 0, fees(gwei(20), gwei(2))),
		ReplacementUnderpriced: s.tx(0, 1, fees(gwei(10), big.NewInt(1.05e9))),
		Underpriced:            s.tx(1, 0, fees(gwei(10), new(big.Int))),
		InsufficientFunds:      s.tx(1, 0, func(tx *types.DynamicFeeTx) { tx.Value = ether(1000) }),
		IntrinsicGas:           s.tx(1, 0, func(tx *types.DynamicFeeTx) { tx.Gas = 20999 }),
		ExceedsBlockGas:        s.tx(1, 0, func(tx *types.DynamicFeeTx) { tx.Gas, tx.GasFeeCap, tx.GasTipCap = 1<<26, gwei(10), gwei(1) }),
		TipAboveCap:            s.tx(1, 0, fees(gwei(1), gwei(2))),
		WrongChain:             s.tx(1, 0, func(tx *types.DynamicFeeTx) { tx.ChainID = big.NewInt(1) }),
		Oversized:              s.tx(1, 0, func(tx *types.DynamicFeeTx) { tx.Data, tx.Gas = make([]byte, 140_000), 10e6 }),
		Refused:                {Bytes: []byte{2, 1}},
	} {
		t.Run(want.String(), func(t *testing.T) {
			requireOutcomes(t, c.Send(t.Context(), []Raw{tx}), want)
		})
	}
}

func TestHeads_ComeFromSubscriptionAndPolls(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]func(s *sim) Config{
		"poll":         func(s *sim) Config { return Config{Endpoints: []string{s.URL()}, PollInterval: 10 * time.Millisecond} },
		"subscription": func(s *sim) Config { return Config{Endpoints: []string{s.URL()}, Subscribe: s.WSURL()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSim(t)
			c := open(t, cfg(s))
			run(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			h, err := c.Next(ctx, common.Hash{})
			require.NoError(t, err)
			if name == "subscription" {
				require.Eventually(t, c.heads.isLive, 2*time.Minute, time.Millisecond)
			}
			for range 5 {
				want := s.Commit()
				h, err = c.Next(ctx, h.Hash)
				require.NoError(t, err)
				require.Equal(t, want, h.Hash)
			}
			require.True(t, c.Status().OK(), "%+v", c.Status())
		})
	}
}

func TestEstimateGas_CallFails_GivesReason(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL()}})
	to := common.Address{1}
	gas, err := c.EstimateGas(t.Context(), Message{From: s.addr(0), To: &to, Value: big.NewInt(1)})
	require.NoError(t, err)
	require.EqualValues(t, 21000, gas)

	_, err = c.EstimateGas(t.Context(), Message{From: s.addr(0), To: &to, Value: ether(2000)})
	require.ErrorIs(t, err, ErrInsufficientFunds)

	for want, data := range map[string]string{
		"":                           "",
		"too late":                   "08c379a000000000000000000000000000000000000000000000000000000000000000200000000000000000000000000000000000000000000000000000000000000008746f6f206c617465000000000000000000000000000000000000000000000000",
		"division or modulo by zero": "4e487b710000000000000000000000000000000000000000000000000000000000000012",
		"custom error 0xdeadbeef":    "deadbeef0000000000000000000000000000000000000000000000000000000000000001",
	} {
		_, err = c.EstimateGas(t.Context(), Message{From: s.addr(0), To: &reverter, Data: common.FromHex(data)})
		var reverted *RevertError
		require.ErrorAs(t, err, &reverted, "%s: %v", want, err)
		require.Contains(t, reverted.Reason, want)
		require.Equal(t, common.FromHex(data), append([]byte{}, reverted.Data...))
	}
}

func TestFees_CachedUntilNextHead(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	c := open(t, Config{Endpoints: []string{s.URL()}})
	for n := range uint64(3) {
		requireOutcomes(t, c.Send(t.Context(), []Raw{s.tx(0, n)}), Accepted)
		s.Commit()
	}
	f, err := c.Fees(t.Context())
	require.NoError(t, err)
	require.True(t, f.EIP1559)
	require.Positive(t, f.BaseFee.Sign())
	for s, tip := range f.Tips {
		require.Equal(t, gwei(1), tip, "speed %d", s)
	}
	require.GreaterOrEqual(t, f.Price(Fastest).Cmp(f.Price(SafeLow)), 0)
	s.Commit()
	again, err := c.Fees(t.Context())
	require.NoError(t, err)
	require.Equal(t, f, again, "no new head was noticed")
	next := f.Head.Number + 1
	c.heads.offer("test", Header{Number: next, Hash: common.Hash{4}}, time.Now(), nil)
	again, err = c.Fees(t.Context())
	require.NoError(t, err)
	require.Equal(t, next, again.Head.Number)
}
