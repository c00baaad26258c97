package store

import (
	"context"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// next returns a key's next nonce.
func next(t *testing.T, s *Store) uint64 {
	t.Helper()
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	return keys[0].NextNonce
}

// A gap of 2^40 nonces is found at once, and filled within the hourly limit.
func TestFill_HugeGap_IsBounded(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	accept(t, s, limits, newTx(s), newTx(s))
	_, err := s.db.Exec(t.Context(), `UPDATE relayer_keys SET next_nonce = 1::bigint << 40`)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	filled, err := s.FillNonceGaps(ctx, key, 0, 0, 5)
	require.ErrorIs(t, err, ErrFillLimit)
	require.Len(t, filled, 5)
	require.Equal(t, uint64(2), *filled[0].Nonce)
	require.Equal(t, []int{7}, pending(t, s))
	filled, err = s.FillNonceGaps(ctx, key, 0, 0, 5)
	require.ErrorIs(t, err, ErrFillLimit)
	require.Empty(t, filled)
	missing, err := s.Gap(ctx, key, 0, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(1)<<40-7, missing)

	_, err = s.db.Exec(ctx, `UPDATE relayer_keys SET filled_hour = filled_hour - interval '1 hour'`)
	require.NoError(t, err)
	filled, err = s.FillNonceGaps(ctx, key, 0, 0, 5)
	require.ErrorIs(t, err, ErrFillLimit)
	require.Len(t, filled, 5)
	filled, err = s.FillNonceGaps(ctx, key, 0, 0, 0) // an operator
	require.NoError(t, err)
	require.Len(t, filled, fillLimit)
}

// Gaps between rows and above them are found; used nonces are not gaps.
func TestFill_SeveralGaps(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	for _, n := range []uint64{2, 5, 9} {
		require.NoError(t, onlyErr(s.AdvanceNonce(t.Context(), key, 0, n)))
		accept(t, s, limits, newTx(s))
	}
	require.NoError(t, onlyErr(s.AdvanceNonce(t.Context(), key, 0, 12)))
	filled, err := s.FillNonceGaps(t.Context(), key, 0, 4, 100)
	require.NoError(t, err)
	var nonces []uint64
	for _, tx := range filled {
		nonces = append(nonces, *tx.Nonce)
	}
	require.Equal(t, []uint64{4, 6, 7, 8, 10, 11}, nonces)
	filled, err = s.FillNonceGaps(t.Context(), key, 0, 12, 100)
	require.NoError(t, err)
	require.Empty(t, filled)
	filled, err = s.FillNonceGaps(t.Context(), key, 0, 1<<40, 100)
	require.NoError(t, err)
	require.Empty(t, filled)
}

// A key's next nonce can be lowered to nonces that nothing was signed for, and no further.
func TestSetNonce_LowersToUnsignedNoncesOnly(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	sent := accept(t, s, limits, newTx(s))[0]
	broadcast(t, s, sent)
	require.NoError(t, onlyErr(s.AdvanceNonce(t.Context(), key, 0, 1<<40)))
	waiting := accept(t, s, limits, newTx(s))[0]
	require.Equal(t, uint64(1)<<40, *waiting.Nonce)

	var used *NonceUsedError
	_, err := s.SetNonce(t.Context(), key, 0, 0)
	require.ErrorAs(t, err, &used)
	require.Equal(t, uint64(0), used.Nonce)
	require.ErrorContains(t, err, "give 1 or more")
	_, err = s.SetNonce(t.Context(), key, 7, 1)
	require.ErrorIs(t, err, ErrChainChanged)
	_, err = s.SetNonce(t.Context(), key, 0, 1<<60)
	require.ErrorContains(t, err, "is above")

	was, err := s.SetNonce(t.Context(), key, 0, 1)
	require.NoError(t, err)
	require.Equal(t, uint64(1)<<40+1, was)
	require.Equal(t, uint64(1), next(t, s))
	require.Equal(t, []int{1}, pending(t, s))
	require.Nil(t, read(t, s, waiting).Nonce)
	stored, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{attempt(waiting, 1, relayer.PurposeSend)})
	require.NoError(t, err)
	require.Equal(t, []bool{false}, stored, "its signer was late")
	dispatched, err := s.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, dispatched, 1)
	require.Equal(t, uint64(1), *dispatched[0].Nonce)

	broadcast(t, s, dispatched[0])
	_, err = s.SetNonce(t.Context(), key, 0, 1)
	require.ErrorAs(t, err, &used)
	was, err = s.SetNonce(t.Context(), key, 0, 4)
	require.NoError(t, err)
	require.Equal(t, uint64(2), was)
	require.Equal(t, uint64(4), next(t, s))
}

func TestSetNonce_BelowForeign_IsRefused(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	tx := accept(t, s, limits, newTx(s))[0]
	require.NoError(t, onlyErr(s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), Block{Number: 3, Hash: blockHash(3)})))
	var used *NonceUsedError
	_, err := s.SetNonce(t.Context(), limits.Held[0], 0, 0)
	require.ErrorAs(t, err, &used)
	require.Equal(t, uint64(1), next(t, s))
}

// After a registration no nonce is allocated before a later comparison. Requests are queued meanwhile.
func TestAccept_KeyNotCompared_Queues(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	first, err := s.Keys(t.Context())
	require.NoError(t, err)
	again := New(s.db, s.Config)
	again.RequireComparison()
	require.False(t, again.Trusts(first[0]))
	waiting := accept(t, again, limits, newTx(s))[0]
	require.Nil(t, waiting.Nonce, "before the registration")
	require.NoError(t, again.Compared(t.Context(), limits.Held, 0, first[0].ReadAt))
	require.NoError(t, again.Register(t.Context(), []Registration{{Address: key}}))
	require.Nil(t, accept(t, again, limits, newTx(s))[0].Nonce, "after a comparison that is older")
	dispatched, err := again.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Empty(t, dispatched)
	keys, err := again.Keys(t.Context())
	require.NoError(t, err)
	require.False(t, keys[0].Compared)

	require.NoError(t, again.Compared(t.Context(), limits.Held, 1, keys[0].ReadAt))
	dispatched, err = again.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Empty(t, dispatched, "compared with another chain")
	require.NoError(t, again.Compared(t.Context(), limits.Held, 0, keys[0].ReadAt))
	dispatched, err = again.Dispatch(t.Context(), limits, 10)
	require.NoError(t, err)
	require.Len(t, dispatched, 2)
	keys, err = again.Keys(t.Context())
	require.NoError(t, err)
	require.True(t, keys[0].Compared)
	require.True(t, again.Trusts(keys[0]))
}

// A key far below the nodes' count is stopped until an operator acts.
func TestStopJump_CountFarAhead_DisablesKey(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	key := limits.Held[0]
	stop := func(known int, count uint64, is bool) {
		t.Helper()
		stopped, err := s.StopJump(t.Context(), key, known, count, 64)
		require.NoError(t, err)
		require.Equal(t, is, stopped)
	}
	stop(0, 64, false)
	stop(1, 65, false)
	stop(0, 1<<63, true)
	stop(0, 1<<63, false)
	keys, err := s.Keys(t.Context())
	require.NoError(t, err)
	require.False(t, keys[0].Usable())
	require.Equal(t, "nonce jump: nodes count 9007199254740992 transactions, and the next nonce is 0", keys[0].DisabledReason)
	require.ErrorIs(t, result(t, s, limits, newTx(s)).Err, relayer.ErrUnavailable)
	ended, err := s.EndJump(t.Context(), key)
	require.NoError(t, err)
	require.True(t, ended)
	ended, err = s.EndJump(t.Context(), key)
	require.NoError(t, err)
	require.False(t, ended)
	accept(t, s, limits, newTx(s))
}
