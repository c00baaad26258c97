package signer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"math/bits"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rlp"
)

// ErrTransaction means that no signer can sign the transaction: its type, chain id, or an amount is out of range.
var ErrTransaction = errors.New("the transaction cannot be signed")

// Signed is a transaction ready to be broadcast and stored.
type Signed struct {
	Raw       []byte // the parameter of eth_sendRawTransaction; owned by the caller
	Hash      common.Hash
	Signature [65]byte // r, s, and v as 0 or 1 for every type
}

// SignRaw signs a transaction (EIP-1559, EIP-2930, or legacy with EIP-155) for a chain and encodes it. The fields are
// encoded once, for the digest and for the result. A transaction of a type with a chain id must have this one, or none
// yet. A signature in tx is ignored.
//
// Its errors are [ErrTransaction], [ErrSignature], and the signer's own. After each of them no signed transaction
// exists.
func SignRaw(ctx context.Context, s Signer, tx *types.Transaction, chainID *big.Int) (Signed, error) {
	d, err := newDraft(tx, chainID)
	if err != nil {
		return Signed{}, err
	}
	signature, err := Sign(ctx, s, d.digest())
	if err != nil {
		return Signed{}, err
	}
	raw := d.signed(&signature)
	return Signed{Raw: raw, Hash: crypto.Keccak256Hash(raw), Signature: signature}, nil
}

// SignTx is SignRaw for callers that need go-ethereum's transaction instead of the bytes.
func SignTx(ctx context.Context, s Signer, tx *types.Transaction, chainID *big.Int) (*types.Transaction, error) {
	d, err := newDraft(tx, chainID)
	if err != nil {
		return nil, err
	}
	signature, err := Sign(ctx, s, d.digest())
	if err != nil {
		return nil, err
	}
	signed, err := tx.WithSignature(types.NewLondonSigner(chainID), signature[:])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTransaction, err)
	}
	return signed, nil
}

// headroom is the maximum length of a type and a list header.
const headroom = 1 + 9

// draft is a transaction's fields as RLP. The list to sign and the list to send both begin with them, so they are
// encoded once, with room before them for either header.
type draft struct {
	kind    byte
	chainID *big.Int
	buffer  []byte // headroom, then the fields
}

func newDraft(tx *types.Transaction, chainID *big.Int) (*draft, error) {
	if chainID == nil || chainID.Sign() <= 0 || chainID.BitLen() > 256 {
		return nil, fmt.Errorf("%w: there is no chain id", ErrTransaction)
	}
	d := &draft{kind: tx.Type(), chainID: chainID}
	// The chain id of a legacy transaction is part of its signature, which is ignored.
	if own := tx.ChainId(); d.kind != types.LegacyTxType && own.Sign() != 0 && own.Cmp(chainID) != 0 {
		return nil, fmt.Errorf("%w: it is for chain %s, not %s", ErrTransaction, own, chainID)
	}
	var amounts []*big.Int // the fields before the gas limit
	switch d.kind {
	case types.DynamicFeeTxType:
		amounts = []*big.Int{tx.GasTipCap(), tx.GasFeeCap()}
	case types.AccessListTxType, types.LegacyTxType:
		amounts = []*big.Int{tx.GasPrice()}
	default:
		return nil, fmt.Errorf("%w: it is of type %d", ErrTransaction, d.kind)
	}
	value := tx.Value()
	for _, amount := range append(amounts, value) {
		if amount.Sign() < 0 || amount.BitLen() > 256 {
			return nil, fmt.Errorf("%w: an amount is not from 0 to 2^256-1", ErrTransaction)
		}
	}
	w := rlp.NewEncoderBuffer(nil)
	if d.kind != types.LegacyTxType {
		w.WriteBigInt(chainID)
	}
	w.WriteUint64(tx.Nonce())
	for _, amount := range amounts {
		w.WriteBigInt(amount)
	}
	w.WriteUint64(tx.Gas())
	if to := tx.To(); to != nil {
		w.WriteBytes(to[:])
	} else {
		w.WriteBytes(nil)
	}
	w.WriteBigInt(value)
	w.WriteBytes(tx.Data())
	if d.kind != types.LegacyTxType {
		if err := rlp.Encode(w, tx.AccessList()); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrTransaction, err)
		}
	}
	// Room for the signature too: r and s of 33 bytes each, v of up to 33.
	d.buffer = w.AppendToBytes(make([]byte, headroom, headroom+len(tx.Data())+512))
	return d, w.Flush()
}

// digest returns the hash to sign.
func (d *draft) digest() [32]byte {
	all := d.buffer
	if d.kind == types.LegacyTxType {
		all = appendInteger(all, d.chainID.Bytes())
		all = append(all, 0x80, 0x80)
	}
	return [32]byte(crypto.Keccak256(d.list(all)))
}

// signed returns the encoded transaction with its signature.
func (d *draft) signed(signature *[65]byte) []byte {
	all := d.buffer
	v := []byte{signature[64]}
	if d.kind == types.LegacyTxType {
		// EIP-155: 35 + 2·chain id + v
		sum := new(big.Int).Lsh(d.chainID, 1)
		v = sum.Add(sum, big.NewInt(35+int64(signature[64]))).Bytes()
	}
	for _, number := range [][]byte{v, signature[:32], signature[32:64]} {
		all = appendInteger(all, number)
	}
	return d.list(all)
}

// list writes the type and the list header before the fields, into the headroom.
func (d *draft) list(all []byte) []byte {
	size := len(all) - headroom
	start := headroom - 1
	if size <= 55 {
		all[start] = 0xc0 + byte(size)
	} else {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(size))
		n := (bits.Len(uint(size)) + 7) / 8
		start = headroom - 1 - n
		all[start] = 0xf7 + byte(n)
		copy(all[start+1:headroom], length[8-n:])
	}
	if d.kind != types.LegacyTxType {
		start--
		all[start] = d.kind
	}
	return all[start:]
}

// appendInteger appends a big-endian number of at most 55 bytes as RLP.
func appendInteger(to, number []byte) []byte {
	number = bytes.TrimLeft(number, "\x00")
	if len(number) == 1 && number[0] < 0x80 {
		return append(to, number[0])
	}
	return append(append(to, 0x80+byte(len(number))), number...)
}
