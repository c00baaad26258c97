package signer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func hexKey(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Repeat("0", max(0, 64-len(text))) + text)
	require.NoError(t, err)
	return b
}

const order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"

func TestSign_RFC6979Vector(t *testing.T) {
	t.Parallel()
	s, err := NewLocal(hexKey(t, "1"))
	require.NoError(t, err)
	// A test vector that implementations of this curve share: key 1, SHA-256 of "Satoshi Nakamoto".
	signature, err := s.Sign(t.Context(), sha256.Sum256([]byte("Satoshi Nakamoto")))
	require.NoError(t, err)
	require.Equal(t, "934b1ea10a4b3c1757e2b0c017d0b6143ce3c9a7e6a4a49860d7a6ab210ee3d8"+
		"2442ce9d2b916064108014783e923ec36b49743e2ffa1c4496f01a512aafd9e5", hex.EncodeToString(signature[:64]))
}

func TestNewLocal_OutOfRange_Malformed(t *testing.T) {
	t.Parallel()
	for _, key := range [][]byte{nil, {1}, make([]byte, 32), hexKey(t, order), bytes.Repeat([]byte{255}, 32), make([]byte, 33)} {
		_, err := NewLocal(key)
		require.ErrorIs(t, err, ErrMalformed)
	}
}
