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
	l, terms := setup(t, 1)
	d := draft(l)
	d.Value = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	d.MaxFee, d.MaxPriorityFee, d.ValidUntil = big.NewInt(5), big.NewInt(3), time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	tx := accept(t, l, terms, d)[0]
	got := read(t, l, tx)
	require.WithinDuration(t, tx.ValidUntil, got.ValidUntil, 0)
	require.WithinDuration(t, tx.CreatedAt, got.CreatedAt, 0)
	tx.ValidUntil, tx.CreatedAt, tx.UpdatedAt = got.ValidUntil, got.CreatedAt, got.UpdatedAt
	require.Equal(t, tx, got)
	require.Equal(t, uint64(0), *got.Nonce)
	byNonce, err := l.TransactionByNonce(t.Context(), tx.From, 0)
	require.NoError(t, err)
	require.Equal(t, got, byNonce)
}

// Concurrent processes spread pending transactions evenly over the keys, and no nonce is used twice or skipped.
func TestAccept_Concurrent_SpreadsNoncesWithoutGaps(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 4)
	terms.Cap = 1000
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				verdicts, err := l.Accept(t.Context(), terms, drafts(l, 5))
				if err != nil || verdicts[0].Err != nil {
					t.Error(err, verdicts)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, []int{100, 100, 100, 100}, pending(t, l))
	for _, key := range terms.Held {
		txs, total, err := l.Transactions(t.Context(), Filter{Key: key}, 0, 1000)
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
	l, terms := setup(t, 2)
	terms.Cap, terms.Queue = 2, 3
	verdicts, err := l.Accept(t.Context(), terms, drafts(l, 8))
	require.NoError(t, err)
	for i, v := range verdicts {
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
	terms.Cap = 3
	late := draft(l)
	_, err = l.Accept(t.Context(), AllocationLimits{Held: terms.Held, Cap: 3, Queue: 100}, []*NewTransaction{late})
	require.NoError(t, err)
	seated, err := l.Dispatch(t.Context(), terms, 100)
	require.NoError(t, err)
	require.Len(t, seated, 2)
	require.Equal(t, verdicts[4].Tx.ID, seated[0].ID)
	require.Equal(t, verdicts[5].Tx.ID, seated[1].ID)
	require.Equal(t, []int{3, 3}, pending(t, l))
	n, err := l.Queued(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func TestDispatch_LongQueueOfOneKey_DoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 2)
	terms.Cap = 1
	for range 30 {
		d := draft(l)
		d.Key, d.Target = terms.Held[0], hexAddress(terms.Held[0])
		accept(t, l, terms, d)
	}
	accept(t, l, terms, drafts(l, 2)...)
	terms.Cap = 2
	seated, err := l.Dispatch(t.Context(), terms, 5)
	require.NoError(t, err)
	require.Len(t, seated, 2)
	require.Equal(t, []int{2, 2}, pending(t, l))
}

func TestAccept_NoKeyAvailable(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 3)
	change := func(i int, c KeyChange) {
		_, err := l.ChangeKey(t.Context(), terms.Held[i], c)
		require.NoError(t, err)
	}
	change(0, KeyChange{Paused: new(true)})
	change(1, KeyChange{Stuck: new(true)})
	for _, tx := range accept(t, l, terms, drafts(l, 5)...) {
		require.Equal(t, terms.Held[2], tx.From)
	}
	refuse := func(key common.Address) error {
		d := draft(l)
		d.Key, d.Target, d.IdempotencyKey = key, hexAddress(key), "same"
		verdicts, err := l.Accept(t.Context(), terms, []*NewTransaction{d})
		require.NoError(t, err)
		return verdicts[0].Err
	}
	require.ErrorIs(t, refuse(terms.Held[0]), relayer.ErrPaused)
	change(2, KeyChange{Enabled: new(false), DisabledReason: new("low balance")})
	require.ErrorIs(t, refuse(terms.Held[2]), relayer.ErrDisabled)
	require.ErrorContains(t, refuse(terms.Held[2]), "low balance")
	change(1, KeyChange{Enabled: new(false)})
	require.ErrorIs(t, refuse(common.Address{}), relayer.ErrUnavailable)
	change(2, KeyChange{Enabled: new(true)})
	// A rejected draft uses up neither its idempotency key nor a nonce.
	require.NoError(t, refuse(terms.Held[2]))
	for i := range terms.Held {
		change(i, KeyChange{Enabled: new(true), Paused: new(true)})
	}
	verdicts, err := l.Accept(t.Context(), terms, drafts(l, 1))
	require.NoError(t, err)
	require.ErrorIs(t, verdicts[0].Err, relayer.ErrPaused)
}

func TestAccept_ConcurrentWithOneIdempotencyKey_StoresOne(t *testing.T) {
	t.Parallel()
	l, terms := setup(t, 2)
	terms.Cap = 1000
	const processes, each = 10, 20
	var mu sync.Mutex
	ids := map[uuid.UUID]int{}
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			var ds []*NewTransaction
			for i := range each {
				d := draft(l)
				d.IdempotencyKey = []string{"a", "b"}[i%2]
				ds = append(ds, d)
			}
			verdicts, err := l.Accept(t.Context(), terms, ds)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, v := range verdicts {
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
	require.Equal(t, []int{1, 1}, pending(t, l))

	other := draft(l)
	other.IdempotencyKey, other.BodyHash = "a", [32]byte{1}
	verdicts, err := l.Accept(t.Context(), terms, []*NewTransaction{other})
	require.NoError(t, err)
	require.ErrorIs(t, verdicts[0].Err, relayer.ErrKeyReused)
	stranger := draft(l)
	stranger.IdempotencyKey, stranger.BodyHash, stranger.Caller = "a", [32]byte{1}, "stranger"
	require.NotContains(t, ids, accept(t, l, terms, stranger)[0].ID)
}
