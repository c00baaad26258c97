package signertest

import (
	"context"
	"crypto/sha256"
	"errors"
	"math/big"
	"strconv"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// RunSigner tests that the result of open implements [signer.Signer] as documented.
func RunSigner(t *testing.T, open func(t *testing.T) signer.Signer) {
	digest := func(i int) [32]byte { return sha256.Sum256([]byte(strconv.Itoa(i))) }

	t.Run("signatures recover to the address, with low s and v of 0 or 1", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		seen := map[byte]bool{}
		for i := range 64 {
			requireSignature(t, s, digest(i), seen)
		}
		require.Equal(t, map[byte]bool{0: true, 1: true}, seen)
	})
	t.Run("digests at the ends of the range are signed", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		var highest [32]byte
		for i := range highest {
			highest[i] = 0xff
		}
		requireSignature(t, s, highest, map[byte]bool{})
		requireSignature(t, s, [32]byte{}, map[byte]bool{})
	})
	t.Run("the address stays the same, and is not zero", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		require.NotZero(t, s.Address())
		require.Equal(t, s.Address(), s.Address())
	})
	t.Run("an ended context ends signing, with its cause", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		signature, err := s.Sign(ctx, digest(0))
		require.ErrorIs(t, err, cause)
		require.Zero(t, signature)
	})
	t.Run("many sign at once", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				signature, err := s.Sign(t.Context(), digest(i))
				if assert.NoError(t, err) {
					public, err := crypto.SigToPub(digestSlice(digest(i)), signature[:])
					assert.NoError(t, err)
					assert.Equal(t, s.Address(), crypto.PubkeyToAddress(*public))
				}
			})
		}
		wg.Wait()
	})
	t.Run("transactions are its address's", func(t *testing.T) {
		t.Parallel()
		s := open(t)
		chainID := big.NewInt(1337)
		tx := types.NewTx(&types.DynamicFeeTx{
			ChainID: chainID, Nonce: 7, GasTipCap: big.NewInt(1), GasFeeCap: big.NewInt(2), Gas: 21000,
			To: &common.Address{1}, Value: big.NewInt(3),
		})
		signed, err := signer.SignTx(t.Context(), s, tx, chainID)
		require.NoError(t, err)
		sender, err := types.Sender(types.LatestSignerForChainID(chainID), signed)
		require.NoError(t, err)
		require.Equal(t, s.Address(), sender)
	})
}

func digestSlice(digest [32]byte) []byte { return digest[:] }

func requireSignature(t *testing.T, s signer.Signer, digest [32]byte, seen map[byte]bool) {
	t.Helper()
	signature, err := s.Sign(t.Context(), digest)
	require.NoError(t, err)
	seen[signature[64]] = true
	r, lower := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:64])
	require.True(t, crypto.ValidateSignatureValues(signature[64], r, lower, true))
	public, err := crypto.SigToPub(digest[:], signature[:])
	require.NoError(t, err)
	require.Equal(t, s.Address(), crypto.PubkeyToAddress(*public))
}
