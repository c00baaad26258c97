package signertest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// Key is a private key for tests.
type Key struct {
	Bytes   []byte // 32
	Address common.Address
	Signer  signer.Signer // local
}

// Hex returns the key as 0x and 64 digits.
func (k Key) Hex() string { return "0x" + hex.EncodeToString(k.Bytes) }

// Keys returns n keys, the same ones for the same seed, and the same first ones for any n.
func Keys(t testing.TB, seed string, n int) []Key {
	t.Helper()
	keys := make([]Key, 0, n)
	for i := range n {
		sum := sha256.Sum256(fmt.Appendf(nil, "rollcall key of a test, worth nothing: %s %d", seed, i))
		signer, err := signer.NewLocal(sum[:])
		if err != nil {
			t.Fatalf("key %d of seed %q: %v", i, seed, err)
		}
		keys = append(keys, Key{Bytes: sum[:], Address: signer.Address(), Signer: signer})
	}
	return keys
}

// Signers returns the signers of the keys.
func Signers(keys []Key) []signer.Signer {
	signers := make([]signer.Signer, 0, len(keys))
	for _, k := range keys {
		signers = append(signers, k.Signer)
	}
	return signers
}

// Ring returns a ring of n keys of the seed.
func Ring(t testing.TB, seed string, n int) *signer.Ring {
	t.Helper()
	ring, err := signer.New(Signers(Keys(t, seed, n))...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// WriteKeystore writes relayer-0.json and so on into the folder, at a cost of a millisecond each.
func WriteKeystore(t testing.TB, folder, password string, keys ...Key) {
	t.Helper()
	for i, k := range keys {
		sealed, err := keystore.EncryptDataV3(k.Bytes, []byte(password), 2, 1)
		if err != nil {
			t.Fatal(err)
		}
		content, err := json.Marshal(map[string]any{
			"version": 3, "id": fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
			"address": hex.EncodeToString(k.Address[:]), "crypto": sealed,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("relayer-%d.json", i)), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
