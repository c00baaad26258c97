package forward_test

import (
	"bytes"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/dispatch/forward"
	"github.com/rollcall-dev/rollcall/internal/evm"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// maxUint256 is 2^256-1.
var maxUint256 = new(big.Int).Sub(new(big.Int).Lsh(common.Big1, 256), common.Big1)

// requireRecorded checks that a transaction executed the request: its target received the signer as sender, and the value.
func (s *setup) requireRecorded(r *types.Receipt, want erc2771.RecordedEvent, nonce uint64) {
	s.t.Helper()
	require.EqualValues(s.t, 1, r.Status, "%d gas used", r.GasUsed)
	require.Len(s.t, r.Logs, 2)
	got, ok := erc2771.ParseRecorded(r.Logs[0])
	require.True(s.t, ok)
	require.Equal(s.t, s.recipient, r.Logs[0].Address)
	require.Zero(s.t, want.Value.Cmp(got.Value), "value %v", got.Value)
	got.Value = want.Value
	require.Equal(s.t, want, got)
	executed, ok := erc2771.ParseExecuted(r.Logs[1])
	require.True(s.t, ok)
	require.Equal(s.t, s.address, r.Logs[1].Address)
	require.Equal(s.t, want.Sender, executed.Signer)
	require.EqualValues(s.t, nonce, executed.Nonce.Uint64())
}

func TestTransaction_SignedByWallet_TargetSeesSigner(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *setup{"simulated": simulated, "geth": geth} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			if name == "geth" {
				// Its dev chain has prices of rules that no network has.
				s.forwarder = s.open(forward.Config{BaseGas: 1_000_000})
			}
			domain, err := s.forwarder.Domain(t.Context())
			require.NoError(t, err)
			require.Equal(t, s.domain, domain)

			id := common.Hash{1}
			signer := testchain.NewAccount(t)
			for n := range uint64(2) {
				r := s.request(signer.Address, id)
				r.Nonce.SetUint64(n)
				r.Value.SetUint64(n * 12345)
				r.Gas = 1_000_000
				sign(t, signer.Key, s.domain, r)
				require.NoError(t, s.forwarder.Verify(t.Context(), r, s.domain))
				require.NoError(t, s.forwarder.CheckTarget(t.Context(), r.To))
				s.requireRecorded(s.execute(r), erc2771.RecordedEvent{ID: id, Sender: signer.Address, Count: n + 1, Value: r.Value}, n)
				require.Equal(t, n+1, s.nonce(signer.Address))
			}
			sender, err := erc2771.SenderOf(t.Context(), s.client, s.recipient, nil, id)
			require.NoError(t, err)
			require.Equal(t, signer.Address, sender)
			counts, err := erc2771.Counts(t.Context(), s.client, s.recipient, nil, id, common.Hash{2})
			require.NoError(t, err)
			require.Equal(t, []uint64{2, 0}, counts)
			balance, err := s.client.BalanceAt(t.Context(), s.recipient, nil)
			require.NoError(t, err)
			require.EqualValues(t, 12345, balance.Int64())
			spent, err := s.client.BalanceAt(t.Context(), signer.Address, nil)
			require.NoError(t, err)
			require.Zero(t, spent.Sign(), "the signer has no ether and needs none")
		})
	}
}

// Each reason is refused before acceptance with an error of its own, and by the contract.
func TestVerify_InvalidRequest_RefusedAsByTheContract(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	mallory := testchain.NewAccount(t)
	none := func(*setup, *forward.Request, testchain.Account) {}
	for name, test := range map[string]struct {
		change   func(*forward.Request)                                       // before it is signed
		tamper   func(s *setup, r *forward.Request, signer testchain.Account) // after it is signed
		declared func(*forward.Domain)
		want     any // a pointer to the error's type
		is       func(t *testing.T, err error)
		contract string // its error
	}{
		"wrong signer": {
			tamper: func(s *setup, r *forward.Request, _ testchain.Account) { sign(s.t, mallory.Key, s.domain, r) },
			want:   new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
			is: func(t *testing.T, err error) {
				e, _ := errors.AsType[*forward.SignerError](err)
				require.Equal(t, mallory.Address, e.Recovered)
				require.NotEqual(t, mallory.Address, e.From)
			},
		},
		"another sender named": {
			tamper: func(_ *setup, r *forward.Request, _ testchain.Account) { r.From = mallory.Address },
			want:   new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"replayed nonce": {
			tamper: func(s *setup, r *forward.Request, _ testchain.Account) {
				require.EqualValues(s.t, 1, s.execute(r).Status)
			},
			want: new(*forward.NonceError), contract: "ERC2771ForwarderInvalidSigner",
			is: func(t *testing.T, err error) {
				e, _ := errors.AsType[*forward.NonceError](err)
				require.True(t, e.Used())
				require.EqualValues(t, 1, e.Next.Int64())
				require.Zero(t, e.Nonce.Sign())
			},
		},
		"nonce after the next": {
			change: func(r *forward.Request) { r.Nonce = big.NewInt(1) }, tamper: none,
			want: new(*forward.NonceError), contract: "ERC2771ForwarderInvalidSigner",
			is: func(t *testing.T, err error) {
				e, _ := errors.AsType[*forward.NonceError](err)
				require.False(t, e.Used())
			},
		},
		"expired deadline": {
			change: func(r *forward.Request) { r.Deadline = uint64(time.Now().Add(-time.Minute).Unix()) }, tamper: none,
			want: new(*forward.ExpiredError), contract: "ERC2771ForwarderExpiredRequest",
		},
		"deadline within the margin": { // the contract would still execute it
			change: func(r *forward.Request) { r.Deadline = uint64(time.Now().Add(50 * time.Second).Unix()) }, tamper: none,
			want: new(*forward.ExpiredError),
		},
		"wrong chain": {
			tamper: func(s *setup, r *forward.Request, signer testchain.Account) {
				d := s.domain
				d.ChainID++
				sign(s.t, signer.Key, d, r)
			},
			declared: func(d *forward.Domain) { d.ChainID++ },
			want:     new(*forward.DomainError), contract: "ERC2771ForwarderInvalidSigner",
			is: func(t *testing.T, err error) {
				e, _ := errors.AsType[*forward.DomainError](err)
				require.Equal(t, forward.DomainError{Field: "chainId", Want: "1337", Have: "1338"}, *e)
			},
		},
		"wrong chain, not stated": {
			tamper: func(s *setup, r *forward.Request, signer testchain.Account) {
				d := s.domain
				d.ChainID++
				sign(s.t, signer.Key, d, r)
			},
			declared: func(d *forward.Domain) { *d = forward.Domain{} },
			want:     new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"wrong forwarder": {
			tamper: func(s *setup, r *forward.Request, signer testchain.Account) {
				d := s.domain
				d.VerifyingContract = s.recipient
				sign(s.t, signer.Key, d, r)
			},
			declared: func(d *forward.Domain) { d.VerifyingContract = s.recipient },
			want:     new(*forward.DomainError), contract: "ERC2771ForwarderInvalidSigner",
			is: func(t *testing.T, err error) {
				e, _ := errors.AsType[*forward.DomainError](err)
				require.Equal(t, forward.DomainError{Field: "verifyingContract", Want: s.address.Hex(), Have: s.recipient.Hex()}, *e)
			},
		},
		"wrong forwarder, not stated": {
			tamper: func(s *setup, r *forward.Request, signer testchain.Account) {
				d := s.domain
				d.VerifyingContract = s.recipient
				sign(s.t, signer.Key, d, r)
			},
			declared: func(d *forward.Domain) { *d = forward.Domain{} },
			want:     new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"wrong name": {
			tamper:   none,
			declared: func(d *forward.Domain) { d.Name = "Other" },
			want:     new(*forward.DomainError),
		},
		"wrong version": {
			tamper:   none,
			declared: func(d *forward.Domain) { d.Version = "2" },
			want:     new(*forward.DomainError),
		},
		"changed data": {
			tamper: func(_ *setup, r *forward.Request, _ testchain.Account) { r.Data = erc2771.Record(common.Hash{66}) },
			want:   new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"changed target": {
			tamper: func(s *setup, r *forward.Request, _ testchain.Account) {
				var err error
				r.To, err = erc2771.DeployRecipient(s.t.Context(), contract.Sealing{Client: s.client, Seal: s.seal}, s.payer.Key, s.address)
				require.NoError(s.t, err)
			},
			want: new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"changed value": {
			tamper: func(_ *setup, r *forward.Request, _ testchain.Account) { r.Value = big.NewInt(1) },
			want:   new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"changed gas": {
			tamper: func(_ *setup, r *forward.Request, _ testchain.Account) { r.Gas++ },
			want:   new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
		"changed deadline": {
			tamper: func(_ *setup, r *forward.Request, _ testchain.Account) { r.Deadline++ },
			want:   new(*forward.SignerError), contract: "ERC2771ForwarderInvalidSigner",
		},
	} {
		t.Run(name, func(t *testing.T) { // not parallel: they share the payer
			s := *s
			s.t = t
			change := []func(*forward.Request){}
			if test.change != nil {
				change = append(change, test.change)
			}
			r, signer := s.signed(crypto.Keccak256Hash([]byte(name)), change...)
			test.tamper(&s, r, signer)
			declared := s.domain
			if test.declared != nil {
				test.declared(&declared)
			}
			err := s.forwarder.Verify(t.Context(), r, declared)
			require.ErrorIs(t, err, forward.ErrRefused)
			require.ErrorAs(t, err, test.want)
			if test.is != nil {
				test.is(t, err)
			}
			tx, err := s.forwarder.Transaction(r)
			require.NoError(t, err)
			name, _ := s.try(tx)
			require.Equal(t, test.contract, name)
			require.Equal(t, test.contract == "", s.contractVerifies(r))
		})
	}
}

// contractVerifies returns the result of the contract's verify.
func (s *setup) contractVerifies(r *forward.Request) bool {
	s.t.Helper()
	execute, err := forward.Calldata(r)
	require.NoError(s.t, err)
	data := bytes.Join([][]byte{erc2771.ForwarderABI().Methods["verify"].ID, execute[4:]}, nil)
	answer, err := s.client.CallContract(s.t.Context(), ethereum.CallMsg{To: &s.address, Data: data}, nil)
	require.NoError(s.t, err)
	require.Len(s.t, answer, 32)
	return answer[31] == 1
}

func TestTransaction_ContractRefusesWhatItsCallerChanges(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	r, signer := s.signed(common.Hash{1}, func(r *forward.Request) { r.Value = big.NewInt(5) })
	tx, err := s.forwarder.Transaction(r)
	require.NoError(t, err)
	require.True(t, s.contractVerifies(r))
	tx.Value = big.NewInt(4)
	name, args := s.try(tx)
	require.Equal(t, "ERC2771ForwarderMismatchedValue", name)
	require.Equal(t, []any{big.NewInt(5), big.NewInt(4)}, args)
	require.EqualValues(t, 0, s.send(tx).Status)
	require.Zero(t, s.nonce(signer.Address))
}

// 2^256-1 and 2^53+1 wei arrive at the contract unchanged. No account has the former, so the contract's error shows it.
func TestTransaction_LargeValue_Unchanged(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	for _, value := range []*big.Int{maxUint256, big.NewInt(1<<53 + 1)} {
		r, _ := s.signed(common.Hash{1}, func(r *forward.Request) { r.Value = value })
		require.NoError(t, s.forwarder.Verify(t.Context(), r, s.domain))
		tx, err := s.forwarder.Transaction(r)
		require.NoError(t, err)
		require.Equal(t, value, tx.Value)
		tx.Value = new(big.Int)
		name, args := s.try(tx)
		require.Equal(t, "ERC2771ForwarderMismatchedValue", name)
		require.Zero(t, value.Cmp(args[0].(*big.Int)), "%v", args[0])
	}
	r, signer := s.signed(common.Hash{2}, func(r *forward.Request) { r.Value = big.NewInt(1<<53 + 1) })
	s.requireRecorded(s.execute(r), erc2771.RecordedEvent{ID: common.Hash{2}, Sender: signer.Address, Count: 1, Value: r.Value}, 0)
}

func TestTransaction_EachFormOfSignature_Executed(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	forms := map[string]func(sig []byte) []byte{
		"27 or 28": func(sig []byte) []byte { return sig },
		"0 or 1": func(sig []byte) []byte {
			sig[64] -= 27
			return sig
		},
		"EIP-2098": func(sig []byte) []byte {
			sig[32] |= (sig[64] - 27) << 7
			return sig[:64]
		},
	}
	for name, form := range forms {
		for range 4 { // both values of v, most likely
			r, signer := s.signed(common.Hash{1})
			r.Signature = form(r.Signature)
			before := bytes.Clone(r.Signature)
			require.NoError(t, s.forwarder.Verify(t.Context(), r, s.domain), name)
			require.EqualValues(t, 1, s.execute(r).Status, name)
			require.EqualValues(t, 1, s.nonce(signer.Address))
			require.Equal(t, before, r.Signature)
		}
	}
}

// The other signature of the same request, with the higher s, is refused here and by the contract.
func TestVerify_HighS_RefusedAsByTheContract(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	r, _ := s.signed(common.Hash{1})
	good, err := s.forwarder.Transaction(r)
	require.NoError(t, err)
	low := bytes.Clone(r.Signature)
	high := new(big.Int).Sub(crypto.S256().Params().N, new(big.Int).SetBytes(low[32:64]))
	high.FillBytes(r.Signature[32:64])
	r.Signature[64] ^= 27 ^ 28
	err = forward.Verify(s.domain, r)
	require.ErrorAs(t, err, new(*forward.SignatureError))
	require.ErrorContains(t, err, "upper half")
	_, err = forward.Calldata(r)
	require.ErrorAs(t, err, new(*forward.SignatureError))

	name, _ := s.try(good)
	require.Empty(t, name)
	require.Equal(t, 1, bytes.Count(good.Data, low))
	good.Data = bytes.Replace(good.Data, low, r.Signature, 1)
	name, args := s.try(good)
	require.Equal(t, "ERC2771ForwarderInvalidSigner", name)
	require.Equal(t, []any{common.Address{}, r.From}, args)
}

func TestCheckTarget_TargetDistrustsForwarder(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	other, err := erc2771.DeployRecipient(t.Context(), contract.Sealing{Client: s.client, Seal: s.seal}, s.payer.Key, s.payer.Address)
	require.NoError(t, err)
	require.NoError(t, s.forwarder.CheckTarget(t.Context(), s.recipient))
	for name, target := range map[string]common.Address{
		"trusts another": other, "account without code": s.payer.Address, "reverts": s.address,
	} {
		r, _ := s.signed(common.Hash{1}, func(r *forward.Request) { r.To = target })
		err := s.forwarder.CheckTarget(t.Context(), target)
		require.ErrorIs(t, err, forward.ErrRefused, name)
		require.Equal(t, &forward.TargetError{Target: target, Forwarder: s.address}, err)
		tx, err := s.forwarder.Transaction(r)
		require.NoError(t, err)
		contract, args := s.try(tx)
		require.Equal(t, "ERC2771UntrustfulTarget", contract, name)
		require.Equal(t, []any{target, s.address}, args)
		require.False(t, s.contractVerifies(r))
	}
}

// A node reports a target's revert as an internal error, in words of its own. It is an answer: the target does not trust the
// forwarder.
func TestCheckTarget_RevertInNodesOwnWords_Refused(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	node, err := proxy.Open(proxy.Config{HTTP: s.url})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	node.SetRules(proxy.Rule{Name: "reverts", Methods: []string{"eth_call"}, Fault: proxy.Fault{
		Kind: proxy.Refuse, Code: -32603, Message: "Error: Transaction reverted: function selector was not recognized and there's no fallback function",
	}})
	forwarder := s.open(forward.Config{Nodes: openNodes(t, node.URL())})
	for range 2 {
		err = forwarder.CheckTarget(t.Context(), s.recipient)
		require.Equal(t, &forward.TargetError{Target: s.recipient, Forwarder: s.address}, err)
	}
}

// A target that reverts reverts everything, and the request can be executed later.
func TestTransaction_TargetReverts_NonceStaysUnused(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	r, signer := s.signed(common.Hash{1}, func(r *forward.Request) { r.Data = erc2771.Fail("no"); r.Value = big.NewInt(7) })
	require.NoError(t, s.forwarder.Verify(t.Context(), r, s.domain))
	tx, err := s.forwarder.Transaction(r)
	require.NoError(t, err)
	name, _ := s.try(tx)
	require.Equal(t, "FailedCall", name)
	require.EqualValues(t, 0, s.send(tx).Status)
	require.Zero(t, s.nonce(signer.Address))
	balance, err := s.client.BalanceAt(t.Context(), s.recipient, nil)
	require.NoError(t, err)
	require.Zero(t, balance.Sign())
}

// A call that is not from the forwarder has its caller as sender, whatever its data end with.
func TestRecipient_CallNotForwarded_SenderIsCaller(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	data := append(erc2771.Record(common.Hash{1}), bytes.Repeat([]byte{0xee}, 20)...)
	require.EqualValues(t, 1, s.send(forward.Transaction{To: s.recipient, Data: data, Value: new(big.Int), Gas: 500_000}).Status)
	sender, err := erc2771.LastSender(t.Context(), s.client, s.recipient, nil)
	require.NoError(t, err)
	require.Equal(t, s.payer.Address, sender)
	total, err := erc2771.Total(t.Context(), s.client, s.recipient, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1, total)
}

// The gas limit is enough for targets that use almost all of the requested gas, and for each part of the overhead. Less gas
// for the target than requested fails the whole transaction, and leaves the request as it was.
func TestGas_TargetUsesAlmostAll_Executed(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	// unused is the gas that the target leaves over. The forwarder's check finds missing gas of 64 times as much, because it
	// can only look at the gas that is left afterwards.
	const unused = 100
	for i, test := range []struct {
		gas     uint64
		value   int64
		padding int
	}{
		{gas: 200_000},
		{gas: 200_000, value: 1},
		{gas: 1_000_000, padding: 60 << 10}, // less gas would be below the floor for the data
		{gas: 15_000_000},                   // with the overhead, almost the limit of a transaction (EIP-7825)
	} {
		id := common.Hash{byte(i)}
		r, signer := s.signed(id, func(r *forward.Request) {
			r.Gas, r.Value = test.gas, big.NewInt(test.value)
			r.Data = append(erc2771.RecordAndBurn(id, unused), make([]byte, test.padding)...)
		})
		tx, err := s.forwarder.Transaction(r)
		require.NoError(t, err)

		short := tx
		if test.gas <= 1_000_000 { // a simulation of more takes long
			fails, suffices := s.baseGas(r)
			t.Logf("gas %d, value %d, %d bytes: limit %d, base of %d suffices", test.gas, test.value, len(r.Data), tx.Gas, suffices)
			require.LessOrEqual(t, suffices+64*unused, uint64(58_000), "doc.go states this, and the default allows for it")
			short.Gas = tx.Gas - forward.DefaultBaseGas + fails
		} else {
			short.Gas = tx.Gas - forward.DefaultBaseGas
		}
		receipt := s.send(short)
		require.Zero(t, receipt.Status)
		require.Equal(t, short.Gas, receipt.GasUsed, "it fails with all its gas")
		require.Zero(t, s.nonce(signer.Address))

		receipt = s.send(tx)
		s.requireRecorded(receipt, erc2771.RecordedEvent{ID: id, Sender: signer.Address, Count: 1, Value: r.Value}, 0)
		require.Greater(t, receipt.GasUsed, test.gas-unused, "the target used almost all")
	}
}

// baseGas returns two values of BaseGas that are close together: with the first, the request is not executed with all of its
// gas; with the second, it is.
func (s *setup) baseGas(r *forward.Request) (fails, suffices uint64) {
	s.t.Helper()
	data, err := forward.Calldata(r)
	require.NoError(s.t, err)
	fails, suffices = 0, forward.DefaultBaseGas
	for suffices-fails > 64 {
		base := (fails + suffices) / 2
		gas, err := forward.Gas(r, data, base)
		require.NoError(s.t, err)
		if s.call(ethereum.CallMsg{From: s.payer.Address, To: &s.address, Data: data, Value: r.Value, Gas: gas}) == nil {
			suffices = base
		} else {
			fails = base
		}
	}
	return fails, suffices
}

// A request in a node's pool counts as executed in the pending state.
func TestNonce_Pending(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	s.seal = func() {}
	c := s.client
	r, signer := s.signed(common.Hash{1})
	tx, err := s.forwarder.Transaction(r)
	require.NoError(t, err)
	nonce, err := c.PendingNonceAt(t.Context(), s.payer.Address)
	require.NoError(t, err)
	signed, err := types.SignNewTx(s.payer.Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)), &types.DynamicFeeTx{
		ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, To: &tx.To, Data: tx.Data, Value: tx.Value, Gas: tx.Gas,
		GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(1e10),
	})
	require.NoError(t, err)
	require.NoError(t, c.SendTransaction(t.Context(), signed))
	require.Eventually(t, func() bool { // the pending block follows the pool later
		n, err := s.forwarder.Nonce(t.Context(), signer.Address, evm.PendingState)
		return err == nil && n.Uint64() == 1
	}, patient, 50*time.Millisecond)
	require.Zero(t, s.nonce(signer.Address))
}

// With three nodes, one that lags or fails lets no replay pass, and refuses no valid request.
func TestForwarderVerify_OneFalseNode_DecidesNothing(t *testing.T) {
	t.Parallel()
	s := simulated(t)
	lagging, err := proxy.Open(proxy.Config{HTTP: s.url})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lagging.Close()) })
	executed, signer := s.signed(common.Hash{1})
	require.EqualValues(t, 1, s.execute(executed).Status)
	next := s.request(signer.Address, common.Hash{2})
	next.Nonce.SetUint64(1)
	sign(t, signer.Key, s.domain, next)

	for name, set := range map[string]func(){
		"lags before the request":  func() { lagging.SetLag(1) },
		"lags before the contract": func() { lagging.SetLag(3) },
		"has only the first block": func() { lagging.SetLag(1 << 40) },
		"is down":                  func() { lagging.SetDown(true) },
	} {
		lagging.SetDown(false)
		lagging.SetLag(0)
		set()
		f := s.open(forward.Config{Nodes: openNodes(t, lagging.URL(), s.url, s.url)})
		require.NoError(t, f.Verify(t.Context(), next, s.domain), name)
		err := f.Verify(t.Context(), executed, s.domain)
		require.ErrorAs(t, err, new(*forward.NonceError), name)
		require.NoError(t, f.CheckTarget(t.Context(), s.recipient), name)
	}
	lagging.SetDown(false)
	lagging.SetLag(1)
	f := s.open(forward.Config{Nodes: openNodes(t, lagging.URL())})
	require.NoError(t, f.Verify(t.Context(), executed, s.domain), "the lagging node alone has no other opinion")
}
