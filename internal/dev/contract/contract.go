// Package contract creates the contracts of development and tests on a chain, from the artifacts of their packages. It calls go-ethereum
// alone, and no product code links it.
package contract

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/params"
)

// DeployGas is enough for a transaction that creates any of the contracts, also on geth's dev chain, which needs more gas than any
// network.
const DeployGas = 10_000_000

// receiptInterval is how often Deploy asks for a receipt. A dev chain makes a block a second.
const receiptInterval = 50 * time.Millisecond

// Backend is the part of ethclient.Client that creates contracts.
type Backend interface {
	ChainID(ctx context.Context) (*big.Int, error)
	HeaderByNumber(ctx context.Context, number *big.Int) (*types.Header, error)
	PendingNonceAt(ctx context.Context, account common.Address) (uint64, error)
	SendTransaction(ctx context.Context, tx *types.Transaction) error
	TransactionReceipt(ctx context.Context, hash common.Hash) (*types.Receipt, error)
}

// Sealing is a client of a simulated chain: each transaction gets a block of its own.
type Sealing struct {
	*ethclient.Client
	Seal func() // seals a block
}

// SendTransaction sends a transaction and seals a block.
func (s Sealing) SendTransaction(ctx context.Context, tx *types.Transaction) error {
	err := s.Client.SendTransaction(ctx, tx)
	s.Seal()
	return err
}

// Deploy creates a contract and returns its address once the transaction is mined. The key must have ether. After an error the
// transaction may still be mined; then another call creates a second contract.
func Deploy(ctx context.Context, chain Backend, key *ecdsa.PrivateKey, creation []byte) (common.Address, error) {
	receipt, err := Send(ctx, chain, key, Transaction{Data: creation, Gas: DeployGas})
	if err != nil {
		return common.Address{}, err
	}
	return receipt.ContractAddress, nil
}

// Transaction is a transaction to send. Without a receiver it creates a contract.
type Transaction struct {
	To    *common.Address
	Value *big.Int
	Data  []byte
	Gas   uint64
}

// Send sends a transaction and returns its receipt once it is mined. It returns an error if the transaction failed. After another error
// the transaction may still be mined.
func Send(ctx context.Context, chain Backend, key *ecdsa.PrivateKey, t Transaction) (*types.Receipt, error) {
	chainID, err := chain.ChainID(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the chain id: %w", err)
	}
	head, err := chain.HeaderByNumber(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read the newest block: %w", err)
	}
	if head.BaseFee == nil {
		return nil, errors.New("the chain has no base fee (EIP-1559)")
	}
	nonce, err := chain.PendingNonceAt(ctx, crypto.PubkeyToAddress(key.PublicKey))
	if err != nil {
		return nil, fmt.Errorf("read the nonce: %w", err)
	}
	tip := big.NewInt(params.GWei)
	tx, err := types.SignNewTx(key, types.LatestSignerForChainID(chainID), &types.DynamicFeeTx{
		ChainID: chainID, Nonce: nonce, To: t.To, Value: t.Value, Data: t.Data, Gas: t.Gas, GasTipCap: tip,
		GasFeeCap: new(big.Int).Add(tip, new(big.Int).Lsh(head.BaseFee, 1)), // valid for the next few blocks
	})
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	if err := chain.SendTransaction(ctx, tx); err != nil {
		return nil, fmt.Errorf("send %s: %w", tx.Hash(), err)
	}
	receipt, err := await(ctx, chain, tx.Hash())
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", tx.Hash(), err)
	}
	if receipt.Status != types.ReceiptStatusSuccessful {
		return nil, fmt.Errorf("transaction %s failed with %d gas used", tx.Hash(), receipt.GasUsed)
	}
	return receipt, nil
}

// await returns the receipt once there is one. A young geth returns various errors until it has an index, so every error is
// retried until ctx ends.
func await(ctx context.Context, chain Backend, tx common.Hash) (*types.Receipt, error) {
	ticker := time.NewTicker(receiptInterval)
	defer ticker.Stop()
	for {
		receipt, err := chain.TransactionReceipt(ctx, tx)
		if err == nil {
			return receipt, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// Call returns the data of a call. It panics if the arguments do not match the method.
func Call(contract abi.ABI, method string, args ...any) []byte {
	data, err := contract.Pack(method, args...)
	if err != nil {
		panic(err)
	}
	return data
}

// Creation returns the data of a transaction without receiver that creates a contract of the code in hex. It panics if the arguments do
// not match the constructor.
func Creation(hexCode []byte, contract abi.ABI, args ...any) []byte {
	code, err := hex.DecodeString(string(bytes.TrimSpace(hexCode)))
	if err != nil {
		panic(err)
	}
	return append(code, Call(contract, "", args...)...)
}

// MustABI returns the interface of an artifact.
func MustABI(text []byte) abi.ABI {
	parsed, err := abi.JSON(bytes.NewReader(text))
	if err != nil {
		panic(err)
	}
	return parsed
}
