package erc2771_test

import (
	"context"
	"log/slog"
	"math/big"
	"os"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/log"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated nodes
	goleak.VerifyTestMain(m, testchain.Leftovers()...)
}

// patient limits what a healthy chain does in less than a second.
const patient = 2 * time.Minute

// Requests of the relay path are executed on these contracts in the tests of package forward.
func TestDeploy_BothContracts_Answer(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	backend := contract.Sealing{Client: c.Client(), Seal: func() { c.Commit() }}
	forwarder, err := erc2771.DeployForwarder(ctx, backend, c.Accounts[0].Key, erc2771.Name)
	require.NoError(t, err)
	recipient, err := erc2771.DeployRecipient(ctx, backend, c.Accounts[0].Key, forwarder)
	require.NoError(t, err)
	for _, contract := range []common.Address{forwarder, recipient} {
		code, err := c.Client().CodeAt(ctx, contract, nil)
		require.NoError(t, err)
		require.NotEmpty(t, code)
	}
	ids := make([]common.Hash, 2_001)
	for i := range ids {
		ids[i] = common.BigToHash(big.NewInt(int64(i)))
	}
	counts, err := erc2771.Counts(ctx, c.Client(), recipient, nil, ids...)
	require.NoError(t, err)
	require.Equal(t, make([]uint64, len(ids)), counts)
	total, err := erc2771.Total(ctx, c.Client(), recipient, nil)
	require.NoError(t, err)
	require.Zero(t, total)
	_, err = erc2771.Counts(ctx, c.Client(), forwarder, nil, ids[0])
	require.ErrorContains(t, err, "read counts of recipient")
}

func TestDeploy_NoEther_Fails(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	_, err := erc2771.DeployForwarder(t.Context(), c.Client(), testchain.NewAccount(t).Key, erc2771.Name)
	require.ErrorContains(t, err, "deploy forwarder: send 0x")
	require.ErrorContains(t, err, "insufficient funds")
}

func TestDeploy_NoBlock_WaitsUntilContextEnds(t *testing.T) {
	t.Parallel()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := erc2771.DeployRecipient(ctx, c.Client(), c.Accounts[0].Key, common.Address{1})
		done <- err
	}()
	require.Eventually(t, func() bool {
		n, err := c.Client().PendingNonceAt(t.Context(), c.Accounts[0].Address)
		return err == nil && n == 1
	}, patient, 10*time.Millisecond)
	require.Empty(t, done)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

// The selectors and the topic are those of OpenZeppelin's ERC2771Forwarder, version 5.
func TestForwarderABI_Selectors_AreOpenZeppelins(t *testing.T) {
	t.Parallel()
	contract := erc2771.ForwarderABI()
	for method, want := range map[string]string{
		"execute": "0xdf905caf", "verify": "0x19d8d38c", "nonces": "0x7ecebe00", "eip712Domain": "0x84b0196e",
	} {
		require.Equal(t, want, hexutil.Encode(contract.Methods[method].ID), method)
	}
	for name, want := range map[string]string{
		"ERC2771ForwarderInvalidSigner": "0xc845a056", "ERC2771ForwarderMismatchedValue": "0x70647f79",
		"ERC2771ForwarderExpiredRequest": "0x94eef58a", "ERC2771UntrustfulTarget": "0xd2650cd1", "FailedCall": "0xd6bda275",
	} {
		require.Equal(t, want, hexutil.Encode(contract.Errors[name].ID.Bytes()[:4]), name)
	}
	require.Equal(t, "ExecutedForwardRequest(address,uint256,bool)", contract.Events["ExecutedForwardRequest"].Sig)
	require.True(t, contract.Events["ExecutedForwardRequest"].Inputs[0].Indexed)
}

func TestParse_OtherLogs_False(t *testing.T) {
	t.Parallel()
	for _, l := range []*types.Log{
		{}, {Topics: []common.Hash{{1}, {2}, {3}}, Data: make([]byte, 64)}, {Topics: []common.Hash{{1}, {2}}, Data: make([]byte, 64)},
	} {
		_, ok := erc2771.ParseRecorded(l)
		require.False(t, ok)
		_, ok = erc2771.ParseExecuted(l)
		require.False(t, ok)
	}
}

// The composed APIs are configured with the address that the chain's contract gets.
func TestAddresses_ComposeFile_HasTheForwarder(t *testing.T) {
	t.Parallel()
	compose, err := os.ReadFile("../../../deploy/compose.yaml")
	require.NoError(t, err)
	forwarder, _ := erc2771.Addresses()
	require.Contains(t, string(compose), `FORWARDER_ADDRESS: "`+forwarder.Hex()+`"`)
}

func TestDeploy_NewChain_CreatesTheContractsAtTheirAddresses(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	chain.Fund(testchain.Ether(1), crypto.PubkeyToAddress(erc2771.Deployer().PublicKey))
	require.NoError(t, erc2771.Deploy(t.Context(), contract.Sealing{Client: chain.Client(), Seal: func() { chain.Commit() }}))
	forwarder, recipient := erc2771.Addresses()
	for _, address := range []common.Address{forwarder, recipient} {
		code, err := chain.Client().CodeAt(t.Context(), address, nil)
		require.NoError(t, err)
		require.NotEmpty(t, code)
	}
}
