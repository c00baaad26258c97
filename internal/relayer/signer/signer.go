package signer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Signer signs with one key, wherever that is kept. It is safe for concurrent use.
type Signer interface {
	// Address returns the address of the key. It is always the same, and the call never waits.
	Address() common.Address
	// Sign returns r, s and v over the digest, 32, 32 and 1 bytes: s is in the lower half, and v is 0 or 1. An error
	// means that there is no signature; it contains no key material. A remote signer may take long and stops when ctx
	// ends.
	Sign(ctx context.Context, digest [32]byte) ([65]byte, error)
}

// ErrMalformed means that a key is not 32 bytes within the range of the curve. It contains nothing of the input.
var ErrMalformed = errors.New("is not a private key: it takes 64 hex digits, with or without 0x, from 1 to the order of secp256k1")

// ErrSignature means that a signer's result is not a signature of its address over the digest.
var ErrSignature = errors.New("the signer returned a wrong signature")

// local holds its key in memory, accessible only from the closure.
type local struct {
	address common.Address
	sign    func(digest *[32]byte) ([]byte, error)
}

// NewLocal returns a signer for a key of 32 bytes, big-endian, and keeps no reference to them. Its error is
// [ErrMalformed], or that the signer failed its self-test.
func NewLocal(key []byte) (Signer, error) {
	private, err := crypto.ToECDSA(key)
	if err != nil {
		return nil, ErrMalformed // without the cause, which may reveal parts of the key
	}
	s := &local{
		address: crypto.PubkeyToAddress(private.PublicKey),
		sign:    func(digest *[32]byte) ([]byte, error) { return crypto.Sign(digest[:], private) },
	}
	digest := sha256.Sum256(s.address[:])
	signature, err := s.Sign(context.Background(), digest)
	if err == nil {
		err = check(s.address, digest, signature)
	}
	if err != nil {
		return nil, fmt.Errorf("self-test of the signer of %s: %w", s.address, err)
	}
	return s, nil
}

func (l *local) Address() common.Address { return l.address }

func (l *local) Sign(ctx context.Context, digest [32]byte) ([65]byte, error) {
	if ctx.Err() != nil {
		return [65]byte{}, context.Cause(ctx)
	}
	signature, err := l.sign(&digest)
	if err != nil {
		return [65]byte{}, err
	}
	return [65]byte(signature), nil
}

// The print and format methods of a local signer show its address. The closure would hide the key without them too.

func (l *local) String() string               { return "signer " + l.address.Hex() }
func (l *local) GoString() string             { return l.String() }
func (l *local) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, l.String()) }
func (l *local) LogValue() slog.Value         { return slog.StringValue(l.address.Hex()) }
func (l *local) MarshalText() ([]byte, error) { return []byte(l.address.Hex()), nil }

// Sign signs with a signer, and verifies the result of signers from outside of this package.
func Sign(ctx context.Context, s Signer, digest [32]byte) ([65]byte, error) {
	if l, ok := s.(*local); ok {
		return l.Sign(ctx, digest)
	}
	signature, err := s.Sign(ctx, digest)
	if err != nil {
		return [65]byte{}, fmt.Errorf("sign with %s: %w", s.Address(), err)
	}
	if err := check(s.Address(), digest, signature); err != nil {
		return [65]byte{}, fmt.Errorf("sign with %s: %w", s.Address(), err)
	}
	return signature, nil
}

// check verifies that the signature is the address's, in the one form that a chain accepts.
func check(address common.Address, digest [32]byte, signature [65]byte) error {
	var s secp256k1.ModNScalar
	if signature[64] > 1 {
		return fmt.Errorf("%w: v is neither 0 nor 1", ErrSignature)
	}
	if s.SetByteSlice(signature[32:64]) || s.IsOverHalfOrder() {
		return fmt.Errorf("%w: s is not in the lower half", ErrSignature)
	}
	public, err := crypto.Ecrecover(digest[:], signature[:])
	if err != nil {
		return fmt.Errorf("%w: it recovers to no key", ErrSignature)
	}
	if common.Address(crypto.Keccak256(public[1:])[12:]) != address {
		return fmt.Errorf("%w: it is another key's, or over something else", ErrSignature)
	}
	return nil
}
