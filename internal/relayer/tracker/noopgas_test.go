package tracker_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// dearGas is the rule of a node where a transfer's intrinsic gas is 60,000.
var dearGas = proxy.Rule{
	Name: "intrinsic gas", Methods: []string{"eth_sendRawTransaction"}, Fault: proxy.Fault{Kind: proxy.Refuse, Message: "intrinsic gas too low"},
	When: proxy.Sends(func(tx *types.Transaction) bool { return tx.Gas() < 60_000 }),
}

// estimates is the rule of a node that estimates 60,000 gas.
var estimates = proxy.Rule{
	Name: "estimates", Methods: []string{"eth_estimateGas"}, Fault: proxy.Fault{Kind: proxy.Answer, Result: `"0xea60"`},
}

// submitRoomy submits a transaction that a node with the rule dearGas accepts.
func (f *fixture) submitRoomy() *relayer.Transaction {
	f.t.Helper()
	tx, err := f.Submit(f.t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), GasLimit: 100_000, Speed: relayer.Fast,
	}})
	require.NoError(f.t, err)
	return tx
}

// roomy is submitRoomy, and waits until the node has the transaction.
func (f *fixture) roomy() *relayer.Transaction {
	f.t.Helper()
	return f.Reaches(f.t, f.submitRoomy(), relayer.Broadcasted)
}

func TestNoop_IntrinsicGasAbove21000_IsEstimated(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(dearGas, estimates)
	})
	tx := f.roomy()
	_, err := f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	f.noopIsSent(tx)
	f.commitUntil(tx, relayer.Canceled)
	require.Zero(t, node.Injected()["intrinsic gas"])
	f.settled()
}

// Some chains count gas in units so small that a transfer costs millions. This one allows a transaction 2^24 (EIP-7825).
func TestNoop_TransferCostsMillions_IsEstimated(t *testing.T) {
	const transfer = 12_000_000
	dear, estimated := dearGas, estimates
	dear.When = proxy.Sends(func(tx *types.Transaction) bool { return tx.Gas() < transfer })
	estimated.Fault.Result = `"` + hexutil.EncodeUint64(transfer) + `"`
	f := setup(t, 1, func(o *relayertest.Options) { before(t, o).SetRules(dear, estimated) })
	tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
		To: &f.chain.Accounts[0].Address, Value: big.NewInt(1), GasLimit: 1 << 24, Speed: relayer.Fast,
	}})
	require.NoError(t, err)
	f.Reaches(t, tx, relayer.Broadcasted)
	_, err = f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	f.noopIsSent(tx)
	f.commitUntil(tx, relayer.Canceled)
	f.settled()
}

// The node's estimates are too low. The no-op's gas limit is raised until the node accepts it.
func TestNoop_IntrinsicGasAboveTheEstimate_Grows(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(dearGas)
	})
	tx := f.roomy()
	_, err := f.Cancel(t.Context(), relayertest.PoolID, tx.ID, "test")
	require.NoError(t, err)
	f.noopIsSent(tx)
	f.commitUntil(tx, relayer.Canceled)
	attempts, err := f.Store.Attempts(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Len(t, attempts, 4, "21,000, twice that and twice that again")
	require.Equal(t, attempts[1].MaxFee, attempts[3].MaxFee, "more gas is not a reason for a higher price")
	f.settled()
}

// A gap blocks all later nonces. It is filled although a transfer needs more than 21,000 gas.
func TestGap_IntrinsicGasAbove21000_IsFilled(t *testing.T) {
	var node *proxy.Proxy
	f := setup(t, 1, func(o *relayertest.Options) {
		node = before(t, o)
		node.SetRules(dearGas, estimates)
	})
	f.foreign(0)
	parent := f.head()
	f.chain.Commit()
	require.Eventually(t, func() bool {
		keys, err := f.Store.Keys(t.Context())
		return err == nil && keys[0].NextNonce == 1
	}, 2*time.Minute, 10*time.Millisecond)
	f.chain.Fork(parent)
	f.chain.Rollback()
	f.chain.Commit()
	f.chain.Commit()
	f.commitUntil(f.roomy(), relayer.Confirmed)
	f.settled()
}
