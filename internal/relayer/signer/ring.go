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

// MaxKeys is how many keys a ring may hold.
const MaxKeys = 1000

// ErrNoKeys is a ring that would be empty.
var ErrNoKeys = errors.New("no keys")

// Ring holds signers by address. It never changes, and is safe for concurrent use.
type Ring struct {
	signers   map[common.Address]Signer
	addresses []common.Address // sorted
}

// New makes a ring of signers that exist already: those of a KMS, or a test's. It fails with [ErrNoKeys], for more than
// [MaxKeys], and for two of one address.
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

// Len is how many keys there are, at least one.
func (r *Ring) Len() int { return len(r.addresses) }

// Addresses of all keys, in ascending order. The slice is the caller's.
func (r *Ring) Addresses() []common.Address { return slices.Clone(r.addresses) }

// Signer of an address, if the ring has its key.
func (r *Ring) Signer(address common.Address) (Signer, bool) {
	s, ok := r.signers[address]
	return s, ok
}

// String says how many keys there are. Whatever prints a ring prints that: what a signer of another package shows of
// itself isn't known.
func (r *Ring) String() string { return fmt.Sprintf("keyring of %d", len(r.addresses)) }

// GoString is String.
func (r *Ring) GoString() string { return r.String() }

// Format prints String for every verb.
func (r *Ring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// LogValue is String.
func (r *Ring) LogValue() slog.Value { return slog.StringValue(r.String()) }

// MarshalText is String.
func (r *Ring) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
