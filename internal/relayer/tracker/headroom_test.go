package tracker_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
)

// withCap caps the relayer's gas price.
func withCap(limit *big.Int) func(*relayertest.Options) {
	return func(o *relayertest.Options) {
		o.Sender = func(c *sender.Config) { c.MaxFee = limit }
		o.Pool = func(c *service.Config) { c.MaxFee = limit }
	}
}

// atCap submits a transaction whose price is the cap. A zero validUntil is none.
func (f *fixture) atCap(limit *big.Int, validUntil time.Time) *relayer.Transaction {
	f.t.Helper()
	tx, err := f.Submit(f.t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), MaxFee: limit, MaxPriorityFee: limit, Speed: relayer.Fast, ValidUntil: validUntil,
	}})
	require.NoError(f.t, err)
	return f.Reaches(f.t, tx, relayer.Broadcasted)
}

// noopIsSent waits until the node has a transaction's no-op.
func (f *fixture) noopIsSent(tx *relayer.Transaction) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		last := f.latest(tx)
		now, err := f.Transaction(f.t.Context(), relayertest.PoolID, tx.ID)
		return err == nil && last.Purpose == relayer.PurposeNoop && now.Status == relayer.Broadcasted && *now.Hash == last.Hash
	}, 2*time.Minute, 10*time.Millisecond)
}

func TestCancel_OriginalAtTheCap_DoesNotExecute(t *testing.T) {
	limit := big.NewInt(30_000_000_000)
	f := setup(t, 1, withCap(limit))
	before := f.balance(f.chain.Accounts[0].Address)
	tx := f.atCap(limit, time.Time{})
	_, err := f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	f.noopIsSent(tx)
	f.commitUntil(tx, relayer.Canceled)
	require.Zero(t, f.balance(f.chain.Accounts[0].Address).Cmp(before))
	f.settled()
}

func TestValidUntil_OriginalAtTheCap_IsHonored(t *testing.T) {
	limit := big.NewInt(30_000_000_000)
	f := setup(t, 1, withCap(limit))
	before := f.balance(f.chain.Accounts[0].Address)
	tx := f.atCap(limit, time.Now().Add(time.Hour))
	f.expire(tx)
	f.noopIsSent(tx)
	f.commitUntil(tx, relayer.Expired)
	require.Zero(t, f.balance(f.chain.Accounts[0].Address).Cmp(before))
	f.settled()
}

// The market fee exceeds the cap. The first attempt leaves room for two replacements, which the node accepts.
func TestReplace_MarketAboveTheCap_TwiceUnderTheCap(t *testing.T) {
	limit := big.NewInt(1_500_000_000) // the simulated chain's base fee is 1 gwei, and the relayer offers twice that
	f := setup(t, 1, withCap(limit))
	tx := f.send()
	for n := range 2 {
		_, err := f.Replace(t.Context(), relayertest.PoolID, tx.ID, "test", relayer.Request{
			To: &f.chain.Accounts[1].Address, Value: big.NewInt(int64(2 + n)), Speed: relayer.Fast,
		})
		require.NoError(t, err)
		require.LessOrEqual(t, f.latest(tx).MaxFee.Cmp(limit), 0)
	}
	require.Equal(t, int64(3), f.commitUntil(tx, relayer.Confirmed).Value.Int64())
	f.settled()
}

// The base fee exceeds the cap, so no caller's transaction is mined. Its expiry must not wait for the fee to fall.
func TestValidUntil_BaseFeeAboveTheCap_IsHonored(t *testing.T) {
	f := setup(t, 1, withCap(big.NewInt(600_000_000)))
	before := f.balance(f.chain.Accounts[0].Address)
	tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), Speed: relayer.Fast, ValidUntil: time.Now().Add(time.Hour),
	}})
	require.NoError(t, err)
	f.Reaches(t, tx, relayer.Broadcasted)
	f.expire(tx)
	f.noopIsSent(tx) // each empty block lowers the base fee, so none is made before
	f.commitUntil(tx, relayer.Expired)
	require.Zero(t, f.balance(f.chain.Accounts[0].Address).Cmp(before))
	f.settled()
}
