package erc2771

import (
	"context"
	"crypto/ecdsa"
	_ "embed"
	"fmt"
	"math/big"
	"slices"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
)

// Name is the name in the EIP-712 domain of forwarders that the development cluster creates. Their version is "1".
const Name = "Rollcall Forwarder"

// readMax is how many counts one call reads.
const readMax = 1_000

var (
	//go:embed Forwarder.bin
	forwarderHex []byte
	//go:embed Forwarder.abi.json
	forwarderJSON []byte
	//go:embed Recipient.bin
	recipientHex []byte
	//go:embed Recipient.abi.json
	recipientJSON []byte

	forwarderABI = contract.MustABI(forwarderJSON)
	recipientABI = contract.MustABI(recipientJSON)
)

// ForwarderABI returns the interface of the Forwarder. The caller must not change its maps.
func ForwarderABI() abi.ABI { return forwarderABI }

// ForwarderCode returns the data of a transaction without receiver that creates a Forwarder with the name.
func ForwarderCode(name string) []byte { return contract.Creation(forwarderHex, forwarderABI, name) }

// RecipientCode returns the data of a transaction without receiver that creates a Recipient which trusts the forwarder.
func RecipientCode(forwarder common.Address) []byte {
	return contract.Creation(recipientHex, recipientABI, forwarder)
}

// Deployer returns the key that creates the contracts of a development chain, where their addresses are then always the same.
// Everybody knows it.
func Deployer() *ecdsa.PrivateKey {
	key, err := crypto.ToECDSA(crypto.Keccak256([]byte("rollcall development chain, deployer")))
	if err != nil {
		panic(err) // the seed is constant
	}
	return key
}

// Addresses returns the addresses of the contracts that Deploy creates on a new chain.
func Addresses() (forwarder, recipient common.Address) {
	from := crypto.PubkeyToAddress(Deployer().PublicKey)
	return crypto.CreateAddress(from, 0), crypto.CreateAddress(from, 1)
}

// Deploy creates a Forwarder and a Recipient at Addresses, on a chain where the Deployer has ether and has sent nothing.
func Deploy(ctx context.Context, chain contract.Backend) error {
	forwarder, err := DeployForwarder(ctx, chain, Deployer(), Name)
	if err == nil {
		_, err = DeployRecipient(ctx, chain, Deployer(), forwarder)
	}
	return err
}

// DeployForwarder creates a Forwarder and returns its address once the transaction is mined. The key must have ether. After
// an error the transaction may still be mined; then another call creates a second contract.
func DeployForwarder(ctx context.Context, chain contract.Backend, key *ecdsa.PrivateKey, name string) (common.Address, error) {
	address, err := contract.Deploy(ctx, chain, key, ForwarderCode(name))
	if err != nil {
		return common.Address{}, fmt.Errorf("deploy forwarder: %w", err)
	}
	return address, nil
}

// DeployRecipient creates a Recipient that trusts the forwarder, like DeployForwarder.
func DeployRecipient(ctx context.Context, chain contract.Backend, key *ecdsa.PrivateKey, forwarder common.Address) (common.Address, error) {
	address, err := contract.Deploy(ctx, chain, key, RecipientCode(forwarder))
	if err != nil {
		return common.Address{}, fmt.Errorf("deploy recipient: %w", err)
	}
	return address, nil
}

// Calls of a Recipient, as the data of a transaction or of a forward request.

// Record counts one call with the id, and records its sender.
func Record(id common.Hash) []byte { return call("record", id) }

// RecordAndBurn is Record, and uses gas until no more than left is left. With a left of 100 the call succeeds, and uses all
// but less than 100 of its gas.
func RecordAndBurn(id common.Hash, left uint64) []byte {
	return call("recordAndBurn", id, new(big.Int).SetUint64(left))
}

// Fail reverts with a reason.
func Fail(reason string) []byte { return call("fail", reason) }

// Counts reads how often each id was recorded as of a block, nil for the latest, 1,000 ids per call. More ids are consistent
// with each other only if the block is given.
func Counts(
	ctx context.Context, chain ethereum.ContractCaller, recipient common.Address, block *big.Int, ids ...common.Hash,
) ([]uint64, error) {
	counts := make([]uint64, 0, len(ids))
	for chunk := range slices.Chunk(ids, readMax) {
		var read []*big.Int
		if err := get(ctx, chain, recipient, block, &read, "counts", chunk); err != nil {
			return nil, err
		}
		for _, n := range read {
			counts = append(counts, n.Uint64())
		}
	}
	return counts, nil
}

// Total reads how often any id was recorded, as of a block, nil for the latest.
func Total(ctx context.Context, chain ethereum.ContractCaller, recipient common.Address, block *big.Int) (uint64, error) {
	var n *big.Int
	if err := get(ctx, chain, recipient, block, &n, "total"); err != nil {
		return 0, err
	}
	return n.Uint64(), nil
}

// SenderOf reads the sender of the last call with the id, as of a block, nil for the latest. It is the zero address if there
// is none.
func SenderOf(
	ctx context.Context, chain ethereum.ContractCaller, recipient common.Address, block *big.Int, id common.Hash,
) (common.Address, error) {
	var sender common.Address
	err := get(ctx, chain, recipient, block, &sender, "senderOf", id)
	return sender, err
}

// LastSender reads the sender of the last recorded call, as of a block, nil for the latest.
func LastSender(
	ctx context.Context, chain ethereum.ContractCaller, recipient common.Address, block *big.Int,
) (common.Address, error) {
	var sender common.Address
	err := get(ctx, chain, recipient, block, &sender, "lastSender")
	return sender, err
}

func get(
	ctx context.Context, chain ethereum.ContractCaller, recipient common.Address, block *big.Int, result any, method string, args ...any,
) error {
	answer, err := chain.CallContract(ctx, ethereum.CallMsg{To: &recipient, Data: call(method, args...)}, block)
	if err == nil {
		err = recipientABI.UnpackIntoInterface(result, method, answer)
	}
	if err != nil {
		return fmt.Errorf("read %s of recipient %v: %w", method, recipient, err)
	}
	return nil
}

// RecordedEvent is the event that a recorded call logs.
type RecordedEvent struct {
	ID     common.Hash
	Sender common.Address
	Count  uint64
	Value  *big.Int
}

// ParseRecorded parses a recorded call from a log; false if the log is another event.
func ParseRecorded(l *types.Log) (RecordedEvent, bool) {
	if len(l.Topics) != 3 || l.Topics[0] != recipientABI.Events["Recorded"].ID || len(l.Data) != 64 {
		return RecordedEvent{}, false
	}
	return RecordedEvent{
		ID: l.Topics[1], Sender: common.BytesToAddress(l.Topics[2][:]),
		Count: new(big.Int).SetBytes(l.Data[:32]).Uint64(), Value: new(big.Int).SetBytes(l.Data[32:]),
	}, true
}

// ExecutedEvent is the event that the Forwarder logs for an executed request.
type ExecutedEvent struct {
	Signer common.Address
	Nonce  *big.Int
}

// ParseExecuted parses an executed request from a log; false if the log is another event.
func ParseExecuted(l *types.Log) (ExecutedEvent, bool) {
	if len(l.Topics) != 2 || l.Topics[0] != forwarderABI.Events["ExecutedForwardRequest"].ID || len(l.Data) != 64 {
		return ExecutedEvent{}, false
	}
	return ExecutedEvent{Signer: common.BytesToAddress(l.Topics[1][:]), Nonce: new(big.Int).SetBytes(l.Data[:32])}, true
}

// call panics if arguments do not match the method, because all of them are from this file.
func call(method string, args ...any) []byte { return contract.Call(recipientABI, method, args...) }
