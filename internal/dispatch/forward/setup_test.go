package forward_test

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/log"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/dispatch/forward"
	"github.com/rollcall-dev/rollcall/internal/evm"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated nodes
	goleak.VerifyTestMain(m, testchain.Leftovers()...)
}

// patient limits what a healthy chain does in less than a second.
const patient = 2 * time.Minute

// setup is a chain with a Forwarder, a Recipient that trusts it, and an account that pays.
type setup struct {
	t         *testing.T
	client    *ethclient.Client
	url       string
	nodes     *evm.Client
	payer     testchain.Account
	seal      func() // makes a block if the chain makes none by itself
	address   common.Address
	recipient common.Address
	forwarder *forward.Forwarder
	domain    forward.Domain
}

func simulated(t *testing.T) *setup {
	t.Helper()
	c := testchain.Simulated(t, testchain.SimulatedOptions{})
	return start(t, c.Client(), c.URL(), c.Accounts[0], func() { c.Commit() })
}

func geth(t *testing.T) *setup {
	t.Helper()
	n := testchain.Geth(t, testchain.GethOptions{})
	return start(t, n.Client(), n.URL(), n.Accounts[0], func() {})
}

func start(t *testing.T, client *ethclient.Client, url string, payer testchain.Account, seal func()) *setup {
	t.Helper()
	s := &setup{t: t, client: client, url: url, payer: payer, seal: seal}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	var err error
	backend := contract.Sealing{Client: client, Seal: seal}
	s.address, err = erc2771.DeployForwarder(ctx, backend, payer.Key, erc2771.Name)
	require.NoError(t, err)
	s.recipient, err = erc2771.DeployRecipient(ctx, backend, payer.Key, s.address)
	require.NoError(t, err)
	s.nodes = openNodes(t, url)
	s.forwarder = s.open(forward.Config{})
	s.domain = forward.Domain{Name: erc2771.Name, Version: "1", ChainID: testchain.ChainID, VerifyingContract: s.address}
	return s
}

func openNodes(t *testing.T, urls ...string) *evm.Client {
	t.Helper()
	nodes, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: urls, Timeout: patient})
	require.NoError(t, err)
	t.Cleanup(nodes.Close)
	return nodes
}

// open returns a Forwarder with the defaults of tests.
func (s *setup) open(cfg forward.Config) *forward.Forwarder {
	s.t.Helper()
	if cfg.Nodes == nil {
		cfg.Nodes = s.nodes
	}
	if cfg.Address == (common.Address{}) {
		cfg.Address = s.address
	}
	if cfg.NodeTimeout == 0 {
		cfg.NodeTimeout = patient
	}
	f, err := forward.New(cfg)
	require.NoError(s.t, err)
	return f
}

// request returns a request that records the id, without a signature.
func (s *setup) request(from common.Address, id common.Hash) *forward.Request {
	return &forward.Request{
		From: from, To: s.recipient, Value: new(big.Int), Gas: 500_000, Nonce: new(big.Int),
		Deadline: uint64(time.Now().Add(time.Hour).Unix()), Data: erc2771.Record(id),
	}
}

// typedData returns the request as wallets receive it.
func typedData(d forward.Domain, r *forward.Request) apitypes.TypedData {
	number := func(n *big.Int) *math.HexOrDecimal256 { return (*math.HexOrDecimal256)(n) }
	return apitypes.TypedData{
		Types: apitypes.Types{
			"EIP712Domain": {
				{Name: "name", Type: "string"}, {Name: "version", Type: "string"}, {Name: "chainId", Type: "uint256"},
				{Name: "verifyingContract", Type: "address"},
			},
			"ForwardRequest": {
				{Name: "from", Type: "address"}, {Name: "to", Type: "address"}, {Name: "value", Type: "uint256"},
				{Name: "gas", Type: "uint256"}, {Name: "nonce", Type: "uint256"}, {Name: "deadline", Type: "uint48"},
				{Name: "data", Type: "bytes"},
			},
		},
		PrimaryType: "ForwardRequest",
		Domain: apitypes.TypedDataDomain{
			Name: d.Name, Version: d.Version, ChainId: number(new(big.Int).SetUint64(d.ChainID)),
			VerifyingContract: d.VerifyingContract.Hex(),
		},
		Message: apitypes.TypedDataMessage{
			"from": r.From.Hex(), "to": r.To.Hex(), "value": number(r.Value), "gas": number(new(big.Int).SetUint64(r.Gas)),
			"nonce": number(r.Nonce), "deadline": number(new(big.Int).SetUint64(r.Deadline)), "data": hexutil.Bytes(r.Data),
		},
	}
}

// sign signs the request as a wallet does, with go-ethereum's implementation of EIP-712.
func sign(t testing.TB, key *ecdsa.PrivateKey, d forward.Domain, r *forward.Request) {
	t.Helper()
	hash, _, err := apitypes.TypedDataAndHash(typedData(d, r))
	require.NoError(t, err)
	r.Signature, err = crypto.Sign(hash, key)
	require.NoError(t, err)
	r.Signature[64] += 27
}

// signed returns a request of a new account, changed before it is signed.
func (s *setup) signed(id common.Hash, change ...func(*forward.Request)) (*forward.Request, testchain.Account) {
	s.t.Helper()
	signer := testchain.NewAccount(s.t)
	r := s.request(signer.Address, id)
	for _, f := range change {
		f(r)
	}
	sign(s.t, signer.Key, s.domain, r)
	return r, signer
}

// send sends a transaction and waits for its receipt.
func (s *setup) send(tx forward.Transaction) *types.Receipt {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patient)
	defer cancel()
	head, err := s.client.HeaderByNumber(ctx, nil)
	require.NoError(s.t, err)
	nonce, err := s.client.PendingNonceAt(ctx, s.payer.Address)
	require.NoError(s.t, err)
	chainID := big.NewInt(testchain.ChainID)
	signed, err := types.SignNewTx(s.payer.Key, types.LatestSignerForChainID(chainID), &types.DynamicFeeTx{
		ChainID: chainID, Nonce: nonce, To: &tx.To, Data: tx.Data, Value: tx.Value, Gas: tx.Gas,
		GasTipCap: big.NewInt(params.GWei), GasFeeCap: new(big.Int).Add(big.NewInt(params.GWei), new(big.Int).Lsh(head.BaseFee, 1)),
	})
	require.NoError(s.t, err)
	require.NoError(s.t, s.client.SendTransaction(ctx, signed))
	s.seal()
	var receipt *types.Receipt
	require.Eventually(s.t, func() bool {
		receipt, err = s.client.TransactionReceipt(ctx, signed.Hash())
		return err == nil
	}, patient, 10*time.Millisecond)
	return receipt
}

// execute sends the transaction of a request.
func (s *setup) execute(r *forward.Request) *types.Receipt {
	s.t.Helper()
	tx, err := s.forwarder.Transaction(r)
	require.NoError(s.t, err)
	return s.send(tx)
}

// try simulates a transaction and returns the contract's error and its arguments; empty if it succeeds.
func (s *setup) try(tx forward.Transaction) (string, []any) {
	s.t.Helper()
	err := s.call(ethereum.CallMsg{From: s.payer.Address, To: &tx.To, Data: tx.Data, Value: tx.Value, Gas: tx.Gas})
	if err == nil {
		return "", nil
	}
	data, ok := errors.AsType[rpc.DataError](err)
	require.True(s.t, ok, "%v", err)
	text, ok := data.ErrorData().(string)
	require.True(s.t, ok, "%v has no data", err)
	reason, err := hexutil.Decode(text)
	require.NoError(s.t, err)
	contract := erc2771.ForwarderABI()
	for _, name := range slices.Sorted(maps.Keys(contract.Errors)) {
		if known := contract.Errors[name]; len(reason) >= 4 && [4]byte(reason) == [4]byte(known.ID[:4]) {
			args, err := known.Inputs.Unpack(reason[4:])
			require.NoError(s.t, err)
			return name, args
		}
	}
	s.t.Fatalf("the contract returned the unknown error %x", reason)
	return "", nil
}

// call simulates a call and returns the error of its execution. A node on a busy machine aborts executions after 5 s; they
// are repeated.
func (s *setup) call(m ethereum.CallMsg) error {
	s.t.Helper()
	for deadline := time.Now().Add(patient); ; {
		_, err := s.client.CallContract(s.t.Context(), m, nil)
		if err == nil || !strings.Contains(err.Error(), "execution aborted") {
			return err
		}
		require.True(s.t, time.Now().Before(deadline), "%v", err)
	}
}

// nonce reads the signer's next nonce from the contract.
func (s *setup) nonce(signer common.Address) uint64 {
	s.t.Helper()
	n, err := s.forwarder.Nonce(s.t.Context(), signer, evm.LatestState)
	require.NoError(s.t, err)
	return n.Uint64()
}
