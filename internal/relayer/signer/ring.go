package signer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/ethereum/go-ethereum/common"
)

// MaxKeys is the maximum number of keys in a ring.
const MaxKeys = 1000

// ErrNoKeys means that a ring would be empty.
var ErrNoKeys = errors.New("no keys")

// Ring holds signers by address. It never changes, and is safe for concurrent use.
type Ring struct {
	signers   map[common.Address]Signer
	addresses []common.Address // sorted
}

// New returns a ring of existing signers: those of a KMS, or of a test. It fails with [ErrNoKeys], for more than
// [MaxKeys], and for two signers of one address.
func New(signers ...Signer) (*Ring, error) {
	if len(signers) == 0 {
		return nil, ErrNoKeys
	}
	if len(signers) > MaxKeys {
		return nil, fmt.Errorf("%d signers are more than %d", len(signers), MaxKeys)
	}
	r := &Ring{signers: make(map[common.Address]Signer, len(signers))}
	for i, s := range signers {
		if s == nil {
			return nil, fmt.Errorf("signer %d is nil", i)
		}
		address := s.Address()
		if _, ok := r.signers[address]; ok {
			return nil, fmt.Errorf("two signers of %s", address)
		}
		r.signers[address] = s
		r.addresses = append(r.addresses, address)
	}
	slices.SortFunc(r.addresses, compareAddresses)
	return r, nil
}

func compareAddresses(a, b common.Address) int { return bytes.Compare(a[:], b[:]) }

// Len returns the number of keys, at least one.
func (r *Ring) Len() int { return len(r.addresses) }

// Addresses returns the addresses of all keys, in ascending order. The caller owns the slice.
func (r *Ring) Addresses() []common.Address { return slices.Clone(r.addresses) }

// Signer returns the signer of an address, and whether the ring has one.
func (r *Ring) Signer(address common.Address) (Signer, bool) {
	s, ok := r.signers[address]
	return s, ok
}

// String returns the number of keys. All print and format methods of a ring return this text, because the output of
// signers of other packages is unknown.
func (r *Ring) String() string { return fmt.Sprintf("keyring of %d", len(r.addresses)) }

// GoString returns the text of String.
func (r *Ring) GoString() string { return r.String() }

// Format writes the text of String for every verb.
func (r *Ring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// LogValue returns the text of String.
func (r *Ring) LogValue() slog.Value { return slog.StringValue(r.String()) }

// MarshalText returns the text of String.
func (r *Ring) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
