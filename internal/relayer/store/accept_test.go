package store

import (
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func TestAccept_IsReadBack(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	d := newTx(s)
	d.Value = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	d.MaxFee, d.MaxPriorityFee, d.ValidUntil = big.NewInt(5), big.NewInt(3), time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	tx := accept(t, s, limits, d)[0]
	got := read(t, s, tx)
	require.WithinDuration(t, tx.ValidUntil, got.ValidUntil, 0)
	require.WithinDuration(t, tx.CreatedAt, got.CreatedAt, 0)
	tx.ValidUntil, tx.CreatedAt, tx.UpdatedAt = got.ValidUntil, got.CreatedAt, got.UpdatedAt
	require.Equal(t, tx, got)
	require.Equal(t, uint64(0), *got.Nonce)
	byNonce, err := s.TransactionByNonce(t.Context(), tx.From, 0)
	require.NoError(t, err)
	require.Equal(t, got, byNonce)
}

// Concurrent processes spread pending transactions evenly over the keys, and no nonce is used twice or skipped.
func TestAccept_Concurrent_SpreadsNoncesWithoutGaps(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 4)
	limits.Cap = 1000
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				results, err := s.Accept(t.Context(), limits, newTxs(s, 5))
				if err != nil || results[0].Err != nil {
					t.Error(err, results)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, []int{100, 100, 100, 100}, pending(t, s))
	for _, key := range limits.Held {
		txs, total, err := s.Transactions(t.Context(), Filter{Key: key}, 0, 1000)
		require.NoError(t, err)
		require.Equal(t, 100, total)
		var nonces []int
		for _, tx := range txs {
			nonces = append(nonces, int(*tx.Nonce))
		}
		slices.Sort(nonces)
		for i, nonce := range nonces {
			require.Equal(t, i, nonce)
		}
	}
}

func TestAccept_KeysFull_QueuesThenRejects(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap, limits.Queue = 2, 3
	results, err := s.Accept(t.Context(), limits, newTxs(s, 8))
	require.NoError(t, err)
	for i, v := range results {
		switch {
		case i < 4:
			require.NotNil(t, v.Tx.Nonce)
		case i < 7:
			require.Nil(t, v.Tx.Nonce)
		default:
			var limit *relayer.LimitError
			require.ErrorAs(t, v.Err, &limit)
			require.Positive(t, limit.After)
		}
	}
	// A later transaction is queued behind the queued ones, even if there is room.
	limits.Cap = 3
	late := newTx(s)
	_, err = s.Accept(t.Context(), AllocationLimits{Held: limits.Held, Cap: 3, Queue: 100}, []*NewTransaction{late})
	require.NoError(t, err)
	dispatched, err := s.Dispatch(t.Context(), limits, 100)
	require.NoError(t, err)
	require.Len(t, dispatched, 2)
	require.Equal(t, results[4].Tx.ID, dispatched[0].ID)
	require.Equal(t, results[5].Tx.ID, dispatched[1].ID)
	require.Equal(t, []int{3, 3}, pending(t, s))
	n, err := s.Queued(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func TestDispatch_LongQueueOfOneKey_DoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap = 1
	for range 30 {
		d := newTx(s)
		d.Key, d.Target = limits.Held[0], hexAddress(limits.Held[0])
		accept(t, s, limits, d)
	}
	accept(t, s, limits, newTxs(s, 2)...)
	limits.Cap = 2
	dispatched, err := s.Dispatch(t.Context(), limits, 5)
	require.NoError(t, err)
	require.Len(t, dispatched, 2)
	require.Equal(t, []int{2, 2}, pending(t, s))
}

func TestAccept_NoKeyAvailable(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 3)
	change := func(i int, c KeyChange) {
		_, err := s.ChangeKey(t.Context(), limits.Held[i], c)
		require.NoError(t, err)
	}
	change(0, KeyChange{Paused: new(true)})
	change(1, KeyChange{Stuck: new(true)})
	for _, tx := range accept(t, s, limits, newTxs(s, 5)...) {
		require.Equal(t, limits.Held[2], tx.From)
	}
	refuse := func(key common.Address) error {
		d := newTx(s)
		d.Key, d.Target, d.IdempotencyKey = key, hexAddress(key), "same"
		results, err := s.Accept(t.Context(), limits, []*NewTransaction{d})
		require.NoError(t, err)
		return results[0].Err
	}
	require.ErrorIs(t, refuse(limits.Held[0]), relayer.ErrPaused)
	change(2, KeyChange{Enabled: new(false), DisabledReason: new("low balance")})
	require.ErrorIs(t, refuse(limits.Held[2]), relayer.ErrDisabled)
	require.ErrorContains(t, refuse(limits.Held[2]), "low balance")
	change(1, KeyChange{Enabled: new(false)})
	require.ErrorIs(t, refuse(common.Address{}), relayer.ErrUnavailable)
	change(2, KeyChange{Enabled: new(true)})
	// A rejected new transaction uses up neither its idempotency key nor a nonce.
	require.NoError(t, refuse(limits.Held[2]))
	for i := range limits.Held {
		change(i, KeyChange{Enabled: new(true), Paused: new(true)})
	}
	results, err := s.Accept(t.Context(), limits, newTxs(s, 1))
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, relayer.ErrPaused)
}

func TestAccept_ConcurrentWithOneIdempotencyKey_StoresOne(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap = 1000
	const processes, each = 10, 20
	var mu sync.Mutex
	ids := map[uuid.UUID]int{}
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			var ds []*NewTransaction
			for i := range each {
				d := newTx(s)
				d.IdempotencyKey = []string{"a", "b"}[i%2]
				ds = append(ds, d)
			}
			results, err := s.Accept(t.Context(), limits, ds)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, v := range results {
				if v.Err != nil {
					t.Error(v.Err)
					continue
				}
				ids[v.Tx.ID]++
			}
		})
	}
	all.Wait()
	require.Len(t, ids, 2)
	for _, n := range ids {
		require.Equal(t, processes*each/2, n)
	}
	require.Equal(t, []int{1, 1}, pending(t, s))

	other := newTx(s)
	other.IdempotencyKey, other.BodyHash = "a", [32]byte{1}
	results, err := s.Accept(t.Context(), limits, []*NewTransaction{other})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, relayer.ErrKeyReused)
	stranger := newTx(s)
	stranger.IdempotencyKey, stranger.BodyHash, stranger.Caller = "a", [32]byte{1}, "stranger"
	require.NotContains(t, ids, accept(t, s, limits, stranger)[0].ID)
}
