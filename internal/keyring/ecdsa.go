package keyring

import (
	"sync"

	"github.com/consensys/gnark-crypto/ecc/secp256k1"
	"github.com/consensys/gnark-crypto/ecc/secp256k1/fr"
	decred "github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// ECDSA over secp256k1 as SEC 1 and RFC 6979 have it. The order of the curve is n, its generator G.

// multiples of the generator: element j-1 of window i is j·256^i·G. With them a scalar times G is one addition for each
// of its bytes that is not zero, and no doubling.
type multiples [32][255]secp256k1.G1Affine

var generator = sync.OnceValue(makeMultiples)

func makeMultiples() *multiples {
	step, _ := secp256k1.Generators()
	points := make([]secp256k1.G1Jac, 0, 32*255)
	for range 32 {
		sum := step
		for range 255 {
			points = append(points, sum)
			sum.AddAssign(&step)
		}
		step = sum // 256 times what it was
	}
	table := new(multiples)
	for i, p := range secp256k1.BatchJacobianToAffineG1(points) {
		table[i/255][i%255] = p
	}
	return table
}

// times returns scalar·G; the scalar, big-endian, is neither 0 nor n or above.
func (m *multiples) times(scalar *[32]byte) secp256k1.G1Affine {
	var sum secp256k1.G1Jac // Z = 0, the neutral element
	for i := range m {
		if b := scalar[31-i]; b != 0 {
			sum.AddMixed(&m[i][b-1])
		}
	}
	var p secp256k1.G1Affine
	p.FromJacobian(&sum)
	return p
}

// secret is a private key in the two forms that signing takes. It is only ever passed by pointer, since the trace of a
// panic prints arguments.
type secret struct {
	bytes  [32]byte
	scalar fr.Element
	table  *multiples
}

// newSecret returns nil for what is not a key.
func newSecret(key []byte) *secret {
	k := &secret{table: generator()}
	if len(key) != len(k.bytes) {
		return nil
	}
	copy(k.bytes[:], key)
	if k.scalar.SetBytesCanonical(key) != nil || k.scalar.IsZero() {
		return nil
	}
	return k
}

func (k *secret) address() common.Address {
	public := k.table.times(&k.bytes)
	x, y := public.X.Bytes(), public.Y.Bytes()
	return common.Address(crypto.Keccak256(x[:], y[:])[12:])
}

// sign returns r, s and v.
func (k *secret) sign(digest *[32]byte) (signature [65]byte) {
	e := reduce(digest)
	for iteration := uint32(0); ; iteration++ {
		nonce := decred.NonceRFC6979(k.bytes[:], digest[:], nil, nil, iteration)
		once := nonce.Bytes()
		nonce.Zero()
		point := k.table.times(&once)
		x := point.X.Bytes()
		r := reduce(&x)

		var s fr.Element
		inverse := reduce(&once)
		inverse.Inverse(&inverse)
		s.Mul(&r, &k.scalar).Add(&s, &e).Mul(&s, &inverse)
		clear(once[:])
		inverse.SetZero()
		if r.IsZero() || s.IsZero() {
			continue // once in 2^255 signatures; RFC 6979 has a next nonce
		}
		copy(signature[:32], x[:])
		if canonical := r.Bytes(); canonical != x {
			// x is n or above, so that r isn't x: once in 2^127 signatures. Ethereum's v cannot tell.
			continue
		}
		y := point.Y.Bytes()
		signature[64] = y[31] & 1
		if s.LexicographicallyLargest() {
			s.Neg(&s) // as if it were the negated nonce's, whose point has the other y
			signature[64] ^= 1
		}
		lower := s.Bytes()
		copy(signature[32:64], lower[:])
		return signature
	}
}

// reduce is a big-endian number modulo n.
func reduce(b *[32]byte) fr.Element {
	e, err := fr.BigEndian.Element(b)
	if err != nil {
		e.SetBytes(b[:])
	}
	return e
}
