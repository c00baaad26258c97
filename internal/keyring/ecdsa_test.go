package keyring

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/big"
	"strings"
	"testing"

	decred "github.com/decred/dcrd/dcrec/secp256k1/v4"
	decredecdsa "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

// reference is the signature by another implementation.
func reference(key []byte, digest [32]byte) (signature [65]byte) {
	compact := decredecdsa.SignCompact(decred.PrivKeyFromBytes(key), digest[:], false)
	copy(signature[:], compact[1:])
	signature[64] = compact[0] - 27
	return signature
}

func requireLikeReference(t *testing.T, key []byte, digest [32]byte) {
	t.Helper()
	k := newSecret(key)
	require.NotNil(t, k)
	require.Equal(t, reference(key, digest), k.sign(&digest), "digest %x", digest)
	private, err := crypto.ToECDSA(key)
	require.NoError(t, err)
	require.Equal(t, crypto.PubkeyToAddress(private.PublicKey), k.address())
}

func hexKey(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Repeat("0", max(0, 64-len(text))) + text)
	require.NoError(t, err)
	return b
}

const order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"

func TestSignaturesEqualAnotherImplementations(t *testing.T) {
	t.Parallel()
	n, _ := new(big.Int).SetString(order, 16)
	ends := [][]byte{
		hexKey(t, "1"), hexKey(t, "2"), hexKey(t, "ff"), hexKey(t, "100"), hexKey(t, "1"+strings.Repeat("0", 62)),
		new(big.Int).Sub(n, big.NewInt(1)).Bytes(), new(big.Int).Rsh(n, 1).Bytes(),
		new(big.Int).Add(new(big.Int).Rsh(n, 1), big.NewInt(1)).Bytes(),
	}
	digests := [][32]byte{{}, {31: 1}, [32]byte(hexKey(t, order)), [32]byte(bytes.Repeat([]byte{255}, 32)), sha256.Sum256(nil)}
	for _, key := range ends {
		for _, digest := range digests {
			requireLikeReference(t, key, digest)
		}
	}
	for i := range uint64(1000) {
		key := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("key"), i))
		requireLikeReference(t, key[:], sha256.Sum256(binary.BigEndian.AppendUint64(nil, i)))
	}
}

func TestVectorOfRFC6979ForSecp256k1(t *testing.T) {
	t.Parallel()
	// The vector that implementations of this curve share: key 1, SHA-256 of "Satoshi Nakamoto".
	digest := sha256.Sum256([]byte("Satoshi Nakamoto"))
	signature := newSecret(hexKey(t, "1")).sign(&digest)
	require.Equal(t, "934b1ea10a4b3c1757e2b0c017d0b6143ce3c9a7e6a4a49860d7a6ab210ee3d8"+
		"2442ce9d2b916064108014783e923ec36b49743e2ffa1c4496f01a512aafd9e5", hex.EncodeToString(signature[:64]))
}

func TestMultiplesOfTheGeneratorAreRight(t *testing.T) {
	t.Parallel()
	for i := range 32 {
		for _, b := range []byte{1, 2, 127, 255} {
			var scalar [32]byte
			scalar[i] = b
			if i == 0 && b == 255 {
				scalar[0] = 254 // below the order either way; the other end of the window
			}
			var want decred.JacobianPoint
			var k decred.ModNScalar
			k.SetBytes(&scalar)
			decred.ScalarBaseMultNonConst(&k, &want)
			want.ToAffine()
			got := generator().times(&scalar)
			x, y := got.X.Bytes(), got.Y.Bytes()
			require.Equal(t, want.X.Bytes()[:], x[:])
			require.Equal(t, want.Y.Bytes()[:], y[:])
		}
	}
}

func TestOutOfRangeIsNoKey(t *testing.T) {
	t.Parallel()
	for _, key := range [][]byte{nil, {1}, make([]byte, 32), hexKey(t, order), bytes.Repeat([]byte{255}, 32), make([]byte, 33)} {
		_, err := NewLocal(key)
		require.ErrorIs(t, err, ErrMalformed)
	}
}

// FuzzSign compares with another implementation.
func FuzzSign(f *testing.F) {
	f.Add(bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{255}, 32))
	f.Fuzz(func(t *testing.T, key, digest []byte) {
		key, digest = append(key, make([]byte, 32)...)[:32], append(digest, make([]byte, 32)...)[:32]
		if newSecret(key) != nil {
			requireLikeReference(t, key, [32]byte(digest))
		}
	})
}

func BenchmarkSign(b *testing.B) {
	key := hexKey(b, "8f3b2a1c9d4e5f60718293a4b5c6d7e8f9011223344556677889900aabbccdde")
	digest := sha256.Sum256(nil)
	b.Run("ours", func(b *testing.B) {
		k := newSecret(key)
		b.ReportAllocs()
		for b.Loop() {
			k.sign(&digest)
		}
	})
	b.Run("go-ethereum", func(b *testing.B) {
		private, err := crypto.ToECDSA(key)
		require.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			_, err := crypto.Sign(digest[:], private)
			require.NoError(b, err)
		}
	})
	b.Run("decred", func(b *testing.B) {
		private := decred.PrivKeyFromBytes(key)
		b.ReportAllocs()
		for b.Loop() {
			decredecdsa.SignCompact(private, digest[:], false)
		}
	})
	b.Run("recover", func(b *testing.B) {
		k := newSecret(key)
		address, signature := k.address(), k.sign(&digest)
		for b.Loop() {
			require.NoError(b, check(address, digest, signature))
		}
	})
	b.Run("table", func(b *testing.B) {
		for b.Loop() {
			makeMultiples()
		}
	})
}
