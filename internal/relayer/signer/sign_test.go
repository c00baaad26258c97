package signer_test

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/holiman/uint256"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

func TestSigner_Conformance(t *testing.T) {
	t.Parallel()
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		signertest.RunSigner(t, func(t *testing.T) signer.Signer { return signertest.Keys(t, "suite", 1)[0].Signer })
	})
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		signertest.RunSigner(t, func(t *testing.T) signer.Signer {
			return signertest.NewFake(signertest.Keys(t, "suite", 1)[0].Signer)
		})
	})
}

func local(t testing.TB) (signer.Signer, signertest.Key) {
	k := signertest.Keys(t, "sign", 1)[0]
	return k.Signer, k
}

// transactions returns transactions of every supported type, with fields at the limits of their ranges and random ones
// between.
func transactions(chainID *big.Int) []*types.Transaction {
	most := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	random := rand.New(rand.NewPCG(1, 2))
	var list []*types.Transaction
	for _, data := range [][]byte{nil, {0}, {0x7f}, {0x80}, make([]byte, 10), make([]byte, 55), make([]byte, 56), make([]byte, 300), make([]byte, 70000)} {
		for _, amount := range []*big.Int{nil, big.NewInt(0), big.NewInt(127), big.NewInt(128), big.NewInt(math.MaxInt64), most} {
			var to *common.Address
			if random.IntN(3) > 0 {
				to = &common.Address{byte(random.Uint32()), 19: 1}
			}
			nonce, gas := random.Uint64()>>random.IntN(64), random.Uint64()>>random.IntN(64)
			access := types.AccessList{{Address: common.Address{1}, StorageKeys: []common.Hash{{2}, {}}}, {}}[:random.IntN(3)]
			list = append(list,
				types.NewTx(&types.DynamicFeeTx{ChainID: chainID, Nonce: nonce, GasTipCap: amount, GasFeeCap: big.NewInt(7), Gas: gas, To: to, Value: amount, Data: data, AccessList: access}),
				types.NewTx(&types.DynamicFeeTx{Nonce: nonce, Gas: gas, To: to, Value: amount, Data: data}),
				types.NewTx(&types.AccessListTx{ChainID: chainID, Nonce: nonce, GasPrice: amount, Gas: gas, To: to, Value: amount, Data: data, AccessList: access}),
				types.NewTx(&types.LegacyTx{Nonce: nonce, GasPrice: amount, Gas: gas, To: to, Value: amount, Data: data}),
			)
		}
	}
	return list
}

func TestSignTx_EqualsGoEthereums(t *testing.T) {
	t.Parallel()
	s, k := local(t)
	private, err := crypto.ToECDSA(k.Bytes)
	require.NoError(t, err)
	fake := signertest.NewFake(s)
	huge := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	for _, chainID := range []*big.Int{big.NewInt(1), big.NewInt(1337), big.NewInt(math.MaxInt64), huge} {
		for i, tx := range transactions(chainID) {
			want, err := types.SignTx(tx, types.LatestSignerForChainID(chainID), private)
			require.NoError(t, err)
			raw, err := want.MarshalBinary()
			require.NoError(t, err)

			got, err := signer.SignRaw(t.Context(), s, tx, chainID)
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(raw), hex.EncodeToString(got.Raw))
			require.Equal(t, want.Hash(), got.Hash)

			if i%10 == 0 {
				signed, err := signer.SignTx(t.Context(), fake, want, chainID) // a signed transaction is signed again
				require.NoError(t, err)
				require.Equal(t, want.Hash(), signed.Hash())
			}
		}
	}
}

func TestSignTx_Invalid_Fails(t *testing.T) {
	t.Parallel()
	s, _ := local(t)
	fake := signertest.NewFake(s)
	one := big.NewInt(1)
	for name, c := range map[string]struct {
		tx      types.TxData
		chainID *big.Int
		want    string
	}{
		"no chain id":       {&types.LegacyTx{}, nil, "there is no chain id"},
		"chain id 0":        {&types.LegacyTx{}, new(big.Int), "there is no chain id"},
		"negative chain id": {&types.LegacyTx{}, big.NewInt(-1), "there is no chain id"},
		"another chain":     {&types.DynamicFeeTx{ChainID: big.NewInt(2)}, one, "it is for chain 2, not 1"},
		"another chain's":   {&types.AccessListTx{ChainID: big.NewInt(2)}, one, "it is for chain 2, not 1"},
		"blobs":             {&types.BlobTx{ChainID: uint256.NewInt(1)}, one, "it is of type 3"},
		"delegations":       {&types.SetCodeTx{ChainID: uint256.NewInt(1)}, one, "it is of type 4"},
		"negative value":    {&types.DynamicFeeTx{Value: big.NewInt(-1)}, one, "an amount is not from 0 to 2^256-1"},
		"value too large":   {&types.LegacyTx{Value: new(big.Int).Lsh(one, 256)}, one, "an amount is not from 0 to 2^256-1"},
		"negative fee":      {&types.DynamicFeeTx{GasFeeCap: big.NewInt(-1)}, one, "an amount is not from 0 to 2^256-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			signed, err := signer.SignRaw(t.Context(), fake, types.NewTx(c.tx), c.chainID)
			require.ErrorIs(t, err, signer.ErrTransaction)
			require.EqualError(t, err, "the transaction cannot be signed: "+c.want)
			require.Zero(t, signed)
			_, err = signer.SignTx(t.Context(), fake, types.NewTx(c.tx), c.chainID)
			require.ErrorIs(t, err, signer.ErrTransaction)
		})
	}
	require.Zero(t, fake.Signed())
}

func TestSign_RemoteSignatureIsWrong_IsRejected(t *testing.T) {
	t.Parallel()
	keys := signertest.Keys(t, "remote", 2)
	n, _ := new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)
	own := errors.New("the service is away")
	for name, c := range map[string]struct {
		after func([65]byte) ([65]byte, error)
		want  string
		is    error
	}{
		"v of 27": {func(s [65]byte) ([65]byte, error) { s[64] += 27; return s, nil }, "the signer returned a wrong signature: v is neither 0 nor 1", signer.ErrSignature},
		"high s": {func(s [65]byte) ([65]byte, error) {
			new(big.Int).Sub(n, new(big.Int).SetBytes(s[32:64])).FillBytes(s[32:64])
			s[64] ^= 1
			return s, nil
		}, "the signer returned a wrong signature: s is not in the lower half", signer.ErrSignature},
		"nothing":   {func([65]byte) ([65]byte, error) { return [65]byte{}, nil }, "the signer returned a wrong signature: it recovers to no key", signer.ErrSignature},
		"another v": {func(s [65]byte) ([65]byte, error) { s[64] ^= 1; return s, nil }, "the signer returned a wrong signature: it is another key's, or over something else", signer.ErrSignature},
		"another key's": {func([65]byte) ([65]byte, error) {
			return keys[1].Signer.Sign(context.Background(), [32]byte{1})
		}, "the signer returned a wrong signature: it is another key's, or over something else", signer.ErrSignature},
		"its own error": {func(s [65]byte) ([65]byte, error) { return s, own }, "the service is away", own},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := signertest.NewFake(keys[0].Signer)
			fake.After(c.after)
			want := "sign with " + keys[0].Address.Hex() + ": " + c.want
			tx := types.NewTx(&types.DynamicFeeTx{})
			signed, err := signer.SignRaw(t.Context(), fake, tx, big.NewInt(1))
			require.EqualError(t, err, want)
			require.ErrorIs(t, err, c.is)
			require.Zero(t, signed)
			_, err = signer.SignTx(t.Context(), fake, tx, big.NewInt(1))
			require.EqualError(t, err, want)
			_, err = signer.Sign(t.Context(), fake, [32]byte{})
			require.EqualError(t, err, want)
		})
	}
}

func TestFake_BlocksFailsAndDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := local(t)
		fake := signertest.NewFake(s)
		arrived, release := fake.Block()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := fake.Sign(t.Context(), [32]byte{1})
			assert.NoError(t, err)
		})
		require.Equal(t, [32]byte{1}, <-arrived)
		synctest.Wait()
		require.Zero(t, fake.Signed())
		release()
		release()
		wg.Wait()
		require.Equal(t, 1, fake.Signed())

		_, release = fake.Block()
		defer release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := fake.Sign(ctx, [32]byte{})
		require.ErrorIs(t, err, context.DeadlineExceeded)

		down := errors.New("down")
		fake.Fail(down)
		_, err = fake.Sign(t.Context(), [32]byte{})
		require.ErrorIs(t, err, down)
		fake.Before(nil)
		_, err = fake.Sign(t.Context(), [32]byte{})
		require.NoError(t, err)
	})
}

func TestSignTx_Concurrent(t *testing.T) {
	t.Parallel()
	ring := signertest.Ring(t, "many", 4)
	chainID := big.NewInt(1337)
	tx := types.NewTx(&types.DynamicFeeTx{To: &common.Address{1}, Data: make([]byte, 100)})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, address := range ring.Addresses() {
				s, _ := ring.Signer(address)
				signed, err := signer.SignRaw(t.Context(), s, tx, chainID)
				assert.NoError(t, err)
				var back types.Transaction
				assert.NoError(t, back.UnmarshalBinary(signed.Raw))
				sender, err := types.Sender(types.LatestSignerForChainID(chainID), &back)
				assert.NoError(t, err)
				assert.Equal(t, address, sender)
			}
		})
	}
	wg.Wait()
}

func BenchmarkSignTx(b *testing.B) {
	s, k := local(b)
	private, err := crypto.ToECDSA(k.Bytes)
	require.NoError(b, err)
	chainID := big.NewInt(1337)
	tx := types.NewTx(&types.DynamicFeeTx{
		ChainID: chainID, Nonce: 7, GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(3e10), Gas: 100_000,
		To: &common.Address{1}, Value: big.NewInt(1e18), Data: make([]byte, 68),
	})
	ours := func(b *testing.B, s signer.Signer) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := signer.SignRaw(b.Context(), s, tx, chainID)
			require.NoError(b, err)
		}
	}
	b.Run("raw", func(b *testing.B) { ours(b, s) })
	b.Run("raw, verified as a remote signer's", func(b *testing.B) { ours(b, signertest.NewFake(s)) })
	b.Run("go-ethereum", func(b *testing.B) {
		b.ReportAllocs()
		signer := types.LatestSignerForChainID(chainID)
		for b.Loop() {
			signed, err := types.SignTx(tx, signer, private)
			require.NoError(b, err)
			_, err = signed.MarshalBinary()
			require.NoError(b, err)
			signed.Hash()
		}
	})
}
