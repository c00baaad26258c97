package escrowchain_test

import (
	"log/slog"
	"math/big"
	"os"
	"testing"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/log"
	"github.com/ethereum/go-ethereum/params"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated nodes
	goleak.VerifyTestMain(m, testchain.Leftovers()...)
}

// topics returns topic0 of each log.
func topics(logs []*types.Log) (all []common.Hash) {
	for _, l := range logs {
		all = append(all, l.Topics[0])
	}
	return all
}

// The topics are those that contracts on public chains emit.
var (
	deployed = common.HexToHash("0x94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace9")
	created  = common.HexToHash("0xe6937249bbc03fbc2004b1de77449df9901d6f3b5e685634282c4092637e2eb4")
	approved = common.HexToHash("0x5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e")
	released = common.HexToHash("0xe2dfcde598cb66b4f1b776076fc47ec832da9a3f92a82f224b0181ba2bfb9b9e")
	refunded = common.HexToHash("0xefe2e8d9a1e53fd22b439f66298e9dc5146b8a429b9e1636e2334a59782e6904")
)

func TestEscrow_Life_EmitsTheEvents(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	payer, payee, arbiter := c.Accounts[0], c.Accounts[1], c.Accounts[2]
	backend := contract.Sealing{Client: c.Client(), Seal: func() { c.Commit() }}
	send := func(from testchain.Account, to common.Address, value int64, data []byte) (*types.Receipt, error) {
		return contract.Send(t.Context(), backend, from.Key, contract.Transaction{To: &to, Value: big.NewInt(value), Data: data, Gas: 2_000_000})
	}
	factory, err := escrowchain.DeployFactory(t.Context(), backend, payer.Key)
	require.NoError(t, err)
	terms := escrowchain.Terms{Payee: payee.Address, Arbiter: arbiter.Address, ReleaseDelay: 3600, ApprovalsRequired: 2}
	create := func(data []byte) common.Address {
		receipt, err := send(payer, factory, 5, data)
		require.NoError(t, err)
		require.Equal(t, []common.Hash{created, deployed}, topics(receipt.Logs))
		escrow, err := escrowchain.Created(receipt)
		require.NoError(t, err)
		require.Equal(t, escrow, receipt.Logs[0].Address)
		require.Equal(t, factory, receipt.Logs[1].Address)
		return escrow
	}

	escrow := create(escrowchain.Create(terms))
	receipt, err := send(payer, escrow, 0, escrowchain.Approve())
	require.NoError(t, err)
	require.Equal(t, []common.Hash{approved}, topics(receipt.Logs))
	_, err = send(payer, escrow, 0, escrowchain.Approve())
	require.Error(t, err, "twice")
	_, err = send(payee, escrow, 0, escrowchain.Release())
	require.Error(t, err, "too early")
	before, err := c.Client().BalanceAt(t.Context(), escrow, nil)
	require.NoError(t, err)
	require.Equal(t, int64(5), before.Int64())
	receipt, err = send(arbiter, escrow, 0, escrowchain.Approve())
	require.NoError(t, err)
	require.Equal(t, []common.Hash{approved, released}, topics(receipt.Logs))
	after, err := c.Client().BalanceAt(t.Context(), escrow, nil)
	require.NoError(t, err)
	require.Zero(t, after.Sign())

	other := create(escrowchain.CreateDeterministic(terms, common.Hash{7}))
	_, err = send(payer, other, 0, escrowchain.Refund())
	require.Error(t, err, "too early")
	receipt, err = send(arbiter, other, 0, escrowchain.Refund())
	require.NoError(t, err)
	require.Equal(t, []common.Hash{refunded}, topics(receipt.Logs))
	_, err = send(arbiter, other, 0, escrowchain.Approve())
	require.Error(t, err, "settled")
}

// The composed monitor is configured with the address that the chain's factory gets.
func TestFactoryAddress_ComposeFile_HasIt(t *testing.T) {
	t.Parallel()
	compose, err := os.ReadFile("../../../deploy/compose.yaml")
	require.NoError(t, err)
	require.Contains(t, string(compose), `FACTORY_ADDRESS: "`+escrowchain.FactoryAddress().Hex()+`"`)
}

func TestDemo_EvenReleasesAndOddRefunds(t *testing.T) {
	t.Parallel()
	deployer := escrowchain.Deployer()
	c := testchain.Simulated(t, testchain.SimulatedOptions{
		Alloc: types.GenesisAlloc{crypto.PubkeyToAddress(deployer.PublicKey): {Balance: big.NewInt(params.Ether)}},
	})
	backend := contract.Sealing{Client: c.Client(), Seal: func() { c.Commit() }}
	factory, err := escrowchain.DeployFactory(t.Context(), backend, deployer)
	require.NoError(t, err)
	require.Equal(t, escrowchain.FactoryAddress(), factory)
	for number, want := range [][]common.Hash{{approved, released}, {refunded}} {
		escrow, err := escrowchain.Demo(t.Context(), backend, factory, number)
		require.NoError(t, err)
		logs, err := c.Client().FilterLogs(t.Context(), ethereum.FilterQuery{Addresses: []common.Address{escrow}})
		require.NoError(t, err)
		var all []common.Hash
		for i := range logs {
			all = append(all, logs[i].Topics[0])
		}
		require.Equal(t, append([]common.Hash{created}, want...), all)
	}
}

func TestEmitter_AnyLog(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	backend := contract.Sealing{Client: c.Client(), Seal: func() { c.Commit() }}
	emitter, err := escrowchain.DeployEmitter(t.Context(), backend, c.Accounts[0].Key)
	require.NoError(t, err)
	send := func(data []byte) *types.Receipt {
		receipt, err := contract.Send(t.Context(), backend, c.Accounts[0].Key, contract.Transaction{To: &emitter, Data: data, Gas: 2_000_000})
		require.NoError(t, err)
		return receipt
	}
	for n := range 5 {
		var want []common.Hash
		for i := range n {
			want = append(want, common.Hash{byte(i + 1)})
		}
		receipt := send(escrowchain.Emit(want, []byte{1, 2, 3}, 2))
		require.Len(t, receipt.Logs, 2)
		for _, l := range receipt.Logs {
			require.Equal(t, len(want), len(l.Topics))
			require.Subset(t, l.Topics, want)
			require.Equal(t, []byte{1, 2, 3}, l.Data)
		}
	}
	receipt := send(escrowchain.EmitDeployed(common.Address{19: 5}, 100))
	require.Len(t, receipt.Logs, 100)
	require.Equal(t, deployed, receipt.Logs[99].Topics[0])
	require.Equal(t, common.Address{19: 104}, common.BytesToAddress(receipt.Logs[99].Topics[1][:]))
}
