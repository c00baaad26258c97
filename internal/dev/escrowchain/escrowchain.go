package escrowchain

import (
	"context"
	"crypto/ecdsa"
	_ "embed"
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
)

var (
	//go:embed Escrow.abi.json
	escrowJSON []byte
	//go:embed EscrowFactory.bin
	factoryHex []byte
	//go:embed EscrowFactory.abi.json
	factoryJSON []byte
	//go:embed Emitter.bin
	emitterHex []byte
	//go:embed Emitter.abi.json
	emitterJSON []byte

	escrowABI  = contract.MustABI(escrowJSON)
	factoryABI = contract.MustABI(factoryJSON)
	emitterABI = contract.MustABI(emitterJSON)
)

// EscrowABI returns the interface of an escrow. The caller must not change its maps.
func EscrowABI() abi.ABI { return escrowABI }

// FactoryABI returns the interface of the factory. The caller must not change its maps.
func FactoryABI() abi.ABI { return factoryABI }

// Deployer returns the key that creates the factory of a development chain, where its address is then always the same. Everybody
// knows it.
func Deployer() *ecdsa.PrivateKey {
	key, err := crypto.ToECDSA(crypto.Keccak256([]byte("rollcall development chain, escrows")))
	if err != nil {
		panic(err) // the seed is constant
	}
	return key
}

// FactoryAddress returns the address of the factory that the Deployer creates first on a new chain.
func FactoryAddress() common.Address {
	return crypto.CreateAddress(crypto.PubkeyToAddress(Deployer().PublicKey), 0)
}

// DeployFactory creates a factory, as [contract.Deploy] does.
func DeployFactory(ctx context.Context, chain contract.Backend, key *ecdsa.PrivateKey) (common.Address, error) {
	address, err := contract.Deploy(ctx, chain, key, contract.Creation(factoryHex, factoryABI))
	if err != nil {
		return common.Address{}, fmt.Errorf("deploy escrow factory: %w", err)
	}
	return address, nil
}

// DeployEmitter creates an emitter, as [contract.Deploy] does.
func DeployEmitter(ctx context.Context, chain contract.Backend, key *ecdsa.PrivateKey) (common.Address, error) {
	address, err := contract.Deploy(ctx, chain, key, contract.Creation(emitterHex, emitterABI))
	if err != nil {
		return common.Address{}, fmt.Errorf("deploy emitter: %w", err)
	}
	return address, nil
}

// Terms are the conditions of an escrow.
type Terms struct {
	Payee, Arbiter    common.Address
	ReleaseDelay      uint64 // seconds
	ApprovalsRequired uint8
}

// Calls, as the data of a transaction.

// Create creates an escrow of the sender, with the value of the transaction. It is for a factory.
func Create(t Terms) []byte {
	return contract.Call(factoryABI, "createEscrow", t.Payee, new(big.Int).SetUint64(t.ReleaseDelay), t.ApprovalsRequired, t.Arbiter)
}

// CreateDeterministic is Create, at an address that depends on the salt.
func CreateDeterministic(t Terms, salt common.Hash) []byte {
	return contract.Call(factoryABI, "createEscrowDeterministic", t.Payee, new(big.Int).SetUint64(t.ReleaseDelay), t.ApprovalsRequired, t.Arbiter, salt)
}

// Approve approves an escrow by the sender, which is its payer, payee or arbiter. The last approval that is required releases it.
func Approve() []byte { return contract.Call(escrowABI, "approve") }

// Release releases an escrow by its payee, after the release time.
func Release() []byte { return contract.Call(escrowABI, "release") }

// Refund refunds an escrow by its arbiter, or by its payer 30 days after the release time.
func Refund() []byte { return contract.Call(escrowABI, "refund") }

// Emit emits one log as often as given. It is for an emitter.
func Emit(topics []common.Hash, data []byte, times int) []byte {
	return contract.Call(emitterABI, "emitLog", topics, data, big.NewInt(int64(times)))
}

// EmitDeployed emits EscrowDeployed for n escrows that do not exist, at first and the addresses after it. It is for an emitter.
func EmitDeployed(first common.Address, n int) []byte {
	return contract.Call(emitterABI, "emitDeployed", first, big.NewInt(int64(n)))
}

// errNoEscrow means that a receipt is of no creation.
var errNoEscrow = errors.New("the transaction has created no escrow")

// Created returns the address of the escrow that a transaction has created.
func Created(r *types.Receipt) (common.Address, error) {
	for _, l := range r.Logs {
		if len(l.Topics) == 4 && l.Topics[0] == factoryABI.Events["EscrowDeployed"].ID {
			return common.BytesToAddress(l.Topics[1][:]), nil
		}
	}
	return common.Address{}, errNoEscrow
}

// Log returns the topics and the data of an event, as a contract of the interface emits it.
func Log(contract abi.ABI, event string, args ...any) (topics []common.Hash, data []byte, err error) {
	e := contract.Events[event]
	topics = []common.Hash{e.ID}
	var plain []any
	for i, in := range e.Inputs {
		if !in.Indexed {
			plain = append(plain, args[i])
			continue
		}
		indexed, err := abi.MakeTopics([]any{args[i]})
		if err != nil {
			return nil, nil, fmt.Errorf("argument %s: %w", in.Name, err)
		}
		topics = append(topics, indexed[0][0])
	}
	data, err = e.Inputs.NonIndexed().Pack(plain...)
	return topics, data, err
}
