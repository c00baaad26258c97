package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/log"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/forward"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// gasless is an API with a forwarder on a chain, and a signer without gas.
type gasless struct {
	*server
	chain     contract.Sealing
	payer     testchain.Account
	forwarder *forward.Forwarder
	recipient common.Address
	wallet    *testchain.Account
}

func startGasless(t *testing.T, edit ...func(*Config)) *gasless {
	t.Helper()
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated node
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	g := &gasless{chain: contract.Sealing{Client: chain.Client(), Seal: func() { chain.Commit() }}, payer: chain.Accounts[1]}
	address, err := erc2771.DeployForwarder(t.Context(), g.chain, chain.Accounts[0].Key, erc2771.Name)
	require.NoError(t, err)
	g.recipient, err = erc2771.DeployRecipient(t.Context(), g.chain, chain.Accounts[0].Key, address)
	require.NoError(t, err)
	nodes, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{chain.URL()}})
	require.NoError(t, err)
	t.Cleanup(nodes.Close)
	g.forwarder, err = forward.New(forward.Config{Nodes: nodes, Address: address, NodeTimeout: 20 * time.Second})
	require.NoError(t, err)
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	g.wallet = &testchain.Account{Key: key, Address: crypto.PubkeyToAddress(key.PublicKey)}
	g.server = start(t, func(c *Config) {
		for _, e := range edit {
			e(c)
		}
	}, g.forwarder)
	return g
}

// signed returns a body of the API, which a wallet library has signed. edit changes the typed data before.
func (g *gasless) signed(nonce int64, deadline time.Time, id common.Hash, edit func(*apitypes.TypedData)) string {
	g.t.Helper()
	number := func(n int64) *math.HexOrDecimal256 { return math.NewHexOrDecimal256(n) }
	data := apitypes.TypedData{
		Types: apitypes.Types{
			"EIP712Domain": {{Name: "name", Type: "string"}, {Name: "version", Type: "string"}, {Name: "chainId", Type: "uint256"}, {Name: "verifyingContract", Type: "address"}},
			"ForwardRequest": {
				{Name: "from", Type: "address"}, {Name: "to", Type: "address"}, {Name: "value", Type: "uint256"}, {Name: "gas", Type: "uint256"},
				{Name: "nonce", Type: "uint256"}, {Name: "deadline", Type: "uint48"}, {Name: "data", Type: "bytes"},
			},
		},
		PrimaryType: "ForwardRequest",
		Domain:      apitypes.TypedDataDomain{Name: erc2771.Name, Version: "1", ChainId: number(testchain.ChainID), VerifyingContract: g.forwarder.Address().Hex()},
		Message: apitypes.TypedDataMessage{
			"from": g.wallet.Address.Hex(), "to": g.recipient.Hex(), "value": number(0), "gas": number(500_000), "nonce": number(nonce),
			"deadline": number(deadline.Unix()), "data": hexutil.Encode(erc2771.Record(id)),
		},
	}
	if edit != nil {
		edit(&data)
	}
	hash, _, err := apitypes.TypedDataAndHash(data)
	require.NoError(g.t, err)
	sig, err := crypto.Sign(hash, g.wallet.Key)
	require.NoError(g.t, err)
	sig[64] += 27
	return fmt.Sprintf(`{"request": {"from": %q, "to": %q, "gas": 500000, "nonce": %d, "deadline": %d, "data": %q}, "signature": %q,
		"domain": {"chainId": %s, "verifyingContract": %q}}`, g.wallet.Address, data.Message["to"], nonce, deadline.Unix(), data.Message["data"], hexutil.Encode(sig),
		(*big.Int)(data.Domain.ChainId), data.Domain.VerifyingContract)
}

// A request that is refused, and the question for a nonce, cost calls of nodes: both count against the client's rate.
func TestGasless_CallsOfNodes_CountAgainstTheRate(t *testing.T) {
	g := startGasless(t, func(c *Config) { c.Client = ratelimit.Rate{PerSecond: 0.001, Burst: 2} })
	nonce := "/api/v1/relay/gasless/nonce/" + g.wallet.Address.Hex()
	status, _, _ := g.do(http.MethodGet, nonce, shopKey, "")
	require.Equal(t, http.StatusOK, status)
	replayed := g.signed(7, time.Now().Add(time.Hour), common.Hash{1}, nil) // the signer's next nonce is 0
	for _, want := range []int{http.StatusBadRequest, http.StatusTooManyRequests} {
		status, body, _ := g.do(http.MethodPost, "/api/v1/relay/gasless", shopKey, replayed)
		require.Equal(t, want, status, "%s", body)
	}
	status, _, _ = g.do(http.MethodGet, nonce, shopKey, "")
	require.Equal(t, http.StatusTooManyRequests, status)
}

// A request that a wallet has signed reaches the target with the signer as sender. The API's transaction is the one to send.
func TestGasless_Signed_ReachesTheTargetAsTheSigner(t *testing.T) {
	g := startGasless(t)
	status, body, _ := g.do(http.MethodGet, "/api/v1/relay/gasless/nonce/"+g.wallet.Address.Hex(), shopKey, "")
	require.Equal(t, http.StatusOK, status, "%s", body)
	var next nextNonce
	require.NoError(t, json.Unmarshal(body, &next))
	require.Equal(t, "0", next.Nonce)
	require.Equal(t, g.forwarder.Address().Hex(), next.Domain.VerifyingContract)

	id := common.Hash{9}
	request := g.signed(0, time.Now().Add(time.Hour), id, nil)
	status, body, _ = g.do(http.MethodPost, "/api/v1/relay/gasless", shopKey, request, "Idempotency-Key", "k")
	require.Equal(t, http.StatusAccepted, status, "%s", body)
	var a dispatch.Summary
	require.NoError(t, json.Unmarshal(body, &a))
	tx, err := g.store.Get(t.Context(), "shop", a.TransactionID)
	require.NoError(t, err)
	require.Equal(t, g.wallet.Address, tx.Forward.Signer)

	// Any account may send it.
	payer := g.payer
	nonce, err := g.chain.PendingNonceAt(t.Context(), payer.Address)
	require.NoError(t, err)
	raw, err := types.SignNewTx(payer.Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)), &types.DynamicFeeTx{
		ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(100e9), Gas: tx.GasLimit, To: &tx.To, Value: tx.Value, Data: tx.Data,
	})
	require.NoError(t, err)
	require.NoError(t, g.chain.SendTransaction(t.Context(), raw))
	receipt, err := g.chain.TransactionReceipt(t.Context(), raw.Hash())
	require.NoError(t, err)
	require.Equal(t, types.ReceiptStatusSuccessful, receipt.Status)
	sender, err := erc2771.SenderOf(t.Context(), g.chain, g.recipient, nil, id)
	require.NoError(t, err)
	require.Equal(t, g.wallet.Address, sender)

	status, again, _ := g.do(http.MethodPost, "/api/v1/relay/gasless", shopKey, request, "Idempotency-Key", "k")
	require.Equal(t, http.StatusAccepted, status, "a repeated request is the same transaction, also when its nonce is used: %s", again)
	require.JSONEq(t, string(body), string(again))
	g.refuses(http.StatusBadRequest, "invalid_request", "request.nonce", http.MethodPost, "/relay/gasless", shopKey, request)
}

// A request that the forwarder would refuse is refused before it is stored, with the reason.
func TestGasless_Invalid_IsRefused(t *testing.T) {
	g := startGasless(t)
	soon := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		body, field string
	}{
		"wrong signer":      {g.signed(0, soon, common.Hash{1}, func(d *apitypes.TypedData) { d.Message["gas"] = math.NewHexOrDecimal256(1) }), "signature"},
		"wrong nonce":       {g.signed(1, soon, common.Hash{1}, nil), "request.nonce"},
		"expired":           {g.signed(0, time.Now().Add(-time.Minute), common.Hash{1}, nil), "request.deadline"},
		"about to expire":   {g.signed(0, time.Now().Add(5*time.Second), common.Hash{1}, nil), "request.deadline"},
		"wrong chain":       {g.signed(0, soon, common.Hash{1}, func(d *apitypes.TypedData) { d.Domain.ChainId = math.NewHexOrDecimal256(1) }), "domain"},
		"wrong forwarder":   {g.signed(0, soon, common.Hash{1}, func(d *apitypes.TypedData) { d.Domain.VerifyingContract = g.recipient.Hex() }), "domain"},
		"untrusting target": {g.signed(0, soon, common.Hash{1}, func(d *apitypes.TypedData) { d.Message["to"] = g.forwarder.Address().Hex() }), "request.to"},
		"value":             {`{"request": {"from": ` + to + `, "to": ` + to + `, "gas": 1, "nonce": 0, "deadline": 1, "value": 1}, "signature": "0x"}`, "request.value"},
		"repeated":          {`{"request": {"from": ` + to + `, "from": ` + to + `}}`, "request.from"},
		"other case":        {`{"request": {"From": ` + to + `}}`, "request.From"},
		"unknown":           {`{"request": {"from": ` + to + `, "fees": 1}}`, "request.fees"},
		"no address":        {`{"request": {"to": "x"}}`, "request.to"},
		"signed amount":     {`{"request": {"nonce": "0x+5"}}`, "request.nonce"},
		"no object":         {`{"request": []}`, "request"},
		"unknown domain":    {`{"domain": {"salt": "0x"}}`, "domain.salt"},
		"no request":        {`{"signature": "0x"}`, "request"},
		"no deadline":       {`{"request": {"from": ` + to + `, "to": ` + to + `, "gas": 1, "nonce": 0}, "signature": "0x"}`, "request.deadline"},
		"no signature":      {`{"request": {"from": ` + to + `, "to": ` + to + `, "gas": 1, "nonce": 0, "deadline": 1}}`, "signature"},
	} {
		t.Log(name)
		g.refuses(http.StatusBadRequest, "invalid_request", c.field, http.MethodPost, "/relay/gasless", shopKey, c.body)
	}
	require.Zero(t, g.count(`SELECT count(*) FROM relay_transactions`))
	status, body, _ := g.do(http.MethodPost, "/relay/gasless", shopKey, g.signed(0, soon, common.Hash{1}, nil))
	require.Equal(t, http.StatusAccepted, status, "%s", body)
	g.refuses(http.StatusConflict, "nonce_taken", "", http.MethodPost, "/relay/gasless", otherKey, g.signed(0, soon, common.Hash{2}, nil))
}
