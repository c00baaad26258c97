package forward

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

const (
	// MaxDeadline is the highest deadline that fits in the contract's uint48.
	MaxDeadline = 1<<48 - 1
	// MaxData is the maximum length of a request's data. Nodes refuse transactions above 128 KiB; the rest of the
	// transaction needs less than 1 KiB.
	MaxData = 127 << 10
)

// Request is a forward request. Its signature covers all other fields and the domain.
type Request struct {
	From     common.Address
	To       common.Address
	Value    *big.Int // wei, at most 2^256-1; nil is 0
	Gas      uint64   // that the target may use
	Nonce    *big.Int // at most 2^256-1; nil is 0
	Deadline uint64   // the last second, in Unix time, in which the request may be executed; at most MaxDeadline
	Data     []byte   // at most MaxData bytes
	// Signature has 65 bytes, or 64 (EIP-2098).
	Signature []byte
}

// Domain is the EIP-712 domain of a forwarder.
type Domain struct {
	Name              string
	Version           string
	ChainID           uint64
	VerifyingContract common.Address
}

var (
	domainType = crypto.Keccak256Hash(
		[]byte("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"))
	requestType = crypto.Keccak256Hash([]byte(
		"ForwardRequest(address from,address to,uint256 value,uint256 gas,uint256 nonce,uint48 deadline,bytes data)"))
)

// Validate returns a *FieldError if a field is out of range. It does not look at the signature.
func (r *Request) Validate() error {
	for _, n := range []struct {
		field string
		value *big.Int
	}{{"value", r.Value}, {"nonce", r.Nonce}} {
		if n.value != nil && n.value.Sign() < 0 {
			return &FieldError{Field: n.field, Problem: "is negative"}
		}
		if n.value != nil && n.value.BitLen() > 256 {
			return &FieldError{Field: n.field, Problem: "is above 2^256-1"}
		}
	}
	if r.Deadline > MaxDeadline {
		return &FieldError{Field: "deadline", Problem: "is above 2^48-1"}
	}
	if len(r.Data) > MaxData {
		return &FieldError{Field: "data", Problem: fmt.Sprintf("has %d bytes, at most %d are allowed", len(r.Data), MaxData)}
	}
	return nil
}

// Hash returns the EIP-712 hash that the signer of a request signs. It returns a *FieldError if a field is out of range.
//
// go-ethereum's apitypes computes the same from JSON and reflection. The tests compare both.
func Hash(d Domain, r *Request) (common.Hash, error) {
	if err := r.Validate(); err != nil {
		return common.Hash{}, err
	}
	domain := crypto.Keccak256(
		domainType[:], crypto.Keccak256([]byte(d.Name)), crypto.Keccak256([]byte(d.Version)), uintWord(d.ChainID),
		addressWord(d.VerifyingContract),
	)
	request := crypto.Keccak256(
		requestType[:], addressWord(r.From), addressWord(r.To), bigWord(r.Value), uintWord(r.Gas), bigWord(r.Nonce),
		uintWord(r.Deadline), crypto.Keccak256(r.Data),
	)
	return crypto.Keccak256Hash([]byte{0x19, 0x01}, domain, request), nil
}

// CheckDeadline returns an *ExpiredError unless the deadline is at least the margin after now.
func CheckDeadline(r *Request, now time.Time, margin time.Duration) error {
	if r.Deadline > MaxDeadline {
		return &FieldError{Field: "deadline", Problem: "is above 2^48-1"}
	}
	if time.Unix(int64(r.Deadline), 0).Before(now.Add(margin)) {
		return &ExpiredError{Deadline: r.Deadline, Now: now, Margin: margin}
	}
	return nil
}

// CheckNonce returns a *NonceError unless the request's nonce is the next one of its signer.
func CheckNonce(r *Request, next *big.Int) error {
	nonce := r.Nonce
	if nonce == nil {
		nonce = new(big.Int)
	}
	if nonce.Cmp(next) != 0 {
		return &NonceError{From: r.From, Nonce: nonce, Next: next}
	}
	return nil
}

// CheckDomain returns a *DomainError if a field of the declared domain differs from d. Zero fields are not declared.
func CheckDomain(d, declared Domain) error {
	chainID := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	contract := func(a common.Address) string {
		if a == (common.Address{}) {
			return ""
		}
		return a.Hex()
	}
	for _, field := range []struct{ name, want, have string }{
		{"chainId", chainID(d.ChainID), chainID(declared.ChainID)},
		{"verifyingContract", contract(d.VerifyingContract), contract(declared.VerifyingContract)},
		{"name", d.Name, declared.Name},
		{"version", d.Version, declared.Version},
	} {
		if field.have != "" && field.have != field.want {
			return &DomainError{Field: field.name, Want: field.want, Have: field.have}
		}
	}
	return nil
}

// The functions below encode a value as a word of 32 bytes, as the ABI does.

func addressWord(a common.Address) []byte { return common.LeftPadBytes(a[:], 32) }

func uintWord(n uint64) []byte {
	word := make([]byte, 32)
	binary.BigEndian.PutUint64(word[24:], n)
	return word
}

// bigWord encodes a number that Validate accepts.
func bigWord(n *big.Int) []byte {
	word := make([]byte, 32)
	if n != nil {
		n.FillBytes(word)
	}
	return word
}
