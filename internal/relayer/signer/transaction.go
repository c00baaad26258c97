package signer

import (
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
)

// ErrTransaction means that no signer can sign the transaction: its type, chain id, or an amount is out of range.
var ErrTransaction = errors.New("the transaction cannot be signed")

// Signed is a transaction ready to be broadcast and stored.
type Signed struct {
	Raw  []byte // the parameter of eth_sendRawTransaction; owned by the caller
	Hash common.Hash
}

// SignRaw is SignTx for callers that need the encoded transaction.
func SignRaw(ctx context.Context, s Signer, tx *types.Transaction, chainID *big.Int) (Signed, error) {
	signed, err := SignTx(ctx, s, tx, chainID)
	if err != nil {
		return Signed{}, err
	}
	raw, err := signed.MarshalBinary()
	if err != nil {
		return Signed{}, fmt.Errorf("%w: %w", ErrTransaction, err)
	}
	return Signed{Raw: raw, Hash: crypto.Keccak256Hash(raw)}, nil // Transaction.Hash would encode it again
}

// SignTx signs a transaction (EIP-1559, EIP-2930, or legacy with EIP-155) for a chain. A transaction of a type with a
// chain id must have this one, or none yet. A signature in tx is ignored.
//
// Its errors are [ErrTransaction], [ErrSignature], and the signer's own. After each of them no signed transaction
// exists.
func SignTx(ctx context.Context, s Signer, tx *types.Transaction, chainID *big.Int) (*types.Transaction, error) {
	if err := checkTransaction(tx, chainID); err != nil {
		return nil, err
	}
	forChain := types.NewLondonSigner(chainID)
	signature, err := Sign(ctx, s, forChain.Hash(tx))
	if err != nil {
		return nil, err
	}
	signed, err := tx.WithSignature(forChain, signature[:])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTransaction, err)
	}
	return signed, nil
}

// checkTransaction checks the values for which go-ethereum would panic, or sign the hash of a part of the transaction.
func checkTransaction(tx *types.Transaction, chainID *big.Int) error {
	if chainID == nil || chainID.Sign() <= 0 || chainID.BitLen() > 256 {
		return fmt.Errorf("%w: there is no chain id", ErrTransaction)
	}
	switch tx.Type() {
	case types.DynamicFeeTxType, types.AccessListTxType:
		if own := tx.ChainId(); own.Sign() != 0 && own.Cmp(chainID) != 0 {
			return fmt.Errorf("%w: it is for chain %s, not %s", ErrTransaction, own, chainID)
		}
	case types.LegacyTxType: // its chain id is part of its signature, which is ignored
	default:
		return fmt.Errorf("%w: it is of type %d", ErrTransaction, tx.Type())
	}
	// The tip cap and fee cap of the older types are their gas price.
	for _, amount := range []*big.Int{tx.GasTipCap(), tx.GasFeeCap(), tx.Value()} {
		if amount.Sign() < 0 || amount.BitLen() > 256 {
			return fmt.Errorf("%w: an amount is not from 0 to 2^256-1", ErrTransaction)
		}
	}
	return nil
}
