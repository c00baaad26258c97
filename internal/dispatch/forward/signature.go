package forward

import (
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/crypto"
)

// Verify checks that the signature of a request is that of its From over the request and the domain. Errors: *FieldError,
// *SignatureError, *SignerError. It does not check the deadline, nor whether the nonce is the next one.
func Verify(d Domain, r *Request) error {
	hash, err := Hash(d, r)
	if err != nil {
		return err
	}
	signature, err := parseSignature(r.Signature)
	if err != nil {
		return err
	}
	key, err := crypto.SigToPub(hash[:], signature[:])
	if err != nil {
		return &SignatureError{Problem: "recovers to no account"} // r is not on the curve
	}
	if recovered := crypto.PubkeyToAddress(*key); recovered != r.From {
		return &SignerError{From: r.From, Recovered: recovered}
	}
	return nil
}

// parseSignature returns r, s and the parity of y (0 or 1). It rejects values that no key produces, and the higher s of the
// two that are valid for a hash, because the contract rejects it.
func parseSignature(signature []byte) (parsed [crypto.SignatureLength]byte, err error) {
	switch len(signature) {
	case crypto.SignatureLength:
		copy(parsed[:], signature)
		switch v := signature[64]; v {
		case 0, 1:
		case 27, 28:
			parsed[64] = v - 27
		default:
			return parsed, &SignatureError{Problem: fmt.Sprintf("has v %d, not 27, 28, 0 or 1", v)}
		}
	case crypto.SignatureLength - 1: // EIP-2098: the highest bit of s is the parity
		copy(parsed[:], signature)
		parsed[64] = parsed[32] >> 7
		parsed[32] &= 0x7f
	default:
		return parsed, &SignatureError{Problem: fmt.Sprintf("has %d bytes, not 65 or 64", len(signature))}
	}
	r, s := new(big.Int).SetBytes(parsed[:32]), new(big.Int).SetBytes(parsed[32:64])
	if !crypto.ValidateSignatureValues(parsed[64], r, s, false) {
		return parsed, &SignatureError{Problem: "has r or s out of range"}
	}
	if !crypto.ValidateSignatureValues(parsed[64], r, s, true) {
		return parsed, &SignatureError{Problem: "has an s in the upper half of the range, which the forwarder rejects"}
	}
	return parsed, nil
}
