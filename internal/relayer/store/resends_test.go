package store

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func TestUnsent_RefusedAttempts_WaitForTheirPause(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	txs := accept(t, s, limits, newTxs(s, 3)...)
	var attempts []*relayer.Attempt
	for _, tx := range txs {
		attempts = append(attempts, attempt(tx, 1, relayer.PurposeSend))
	}
	_, err := s.StoreAttempts(t.Context(), attempts)
	require.NoError(t, err)
	refuse := func(i int, reason string) {
		a := attempts[i]
		require.NoError(t, s.RecordBroadcasts(t.Context(), []Broadcast{{
			TxID: a.TxID, Number: 1, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Allocated, Error: reason,
			Pause: time.Minute, MaxPause: time.Hour,
		}}))
	}
	nonces := func(r Resends) (found []uint64) {
		unsent, err := s.Unsent(t.Context(), all(limits), -time.Minute, r, 10)
		require.NoError(t, err)
		for _, a := range unsent {
			found = append(found, a.Nonce)
		}
		return found
	}
	// elapse moves all pauses into the past by d.
	elapse := func(d time.Duration) {
		_, err := s.db.Exec(t.Context(), `UPDATE relayer_attempts SET next_send_at = next_send_at - $1::interval`, d)
		require.NoError(t, err)
	}
	next := func(i int) time.Duration {
		var seconds float64
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT extract(epoch FROM next_send_at - now()) FROM relayer_attempts WHERE tx_id = $1`,
			attempts[i].TxID).Scan(&seconds))
		return time.Duration(seconds * float64(time.Second)).Round(time.Minute)
	}

	require.Equal(t, []uint64{0, 1, 2}, nonces(Resends{}), "none was sent yet")
	for i := range 3 {
		refuse(i, "poor")
	}
	require.Empty(t, nonces(Resends{}))
	key := Resends{AtOnce: []common.Address{limits.Held[0]}, LowestOnly: []string{"poor"}}
	require.Equal(t, []uint64{0, 1, 2}, nonces(key))
	elapse(2 * time.Minute)
	require.Equal(t, []uint64{0, 1, 2}, nonces(Resends{}))
	require.Equal(t, []uint64{0}, nonces(Resends{LowestOnly: []string{"poor"}}))
	refuse(0, "poor")
	require.Empty(t, nonces(Resends{LowestOnly: []string{"poor"}}), "only the lowest is sent again, and it is paused")
	require.Equal(t, 2*time.Minute, next(0))
	for range 10 {
		refuse(0, "poor")
	}
	require.Equal(t, time.Hour, next(0))
	elapse(4 * time.Hour)
	refuse(0, "poor")
	require.Equal(t, time.Minute, next(0), "a pause that ended long ago does not count")

	first, err := s.FirstUnsent(t.Context(), all(limits))
	require.NoError(t, err)
	require.Equal(t, map[common.Address]uint64{limits.Held[0]: 0}, first)
	accepted(t, s, attempts[0])
	first, err = s.FirstUnsent(t.Context(), all(limits))
	require.NoError(t, err)
	require.Equal(t, map[common.Address]uint64{limits.Held[0]: 1}, first)
	require.Equal(t, []uint64{1}, nonces(Resends{LowestOnly: []string{"poor"}}))
}

func TestRecordBroadcasts_AcceptedWithinThePause_RestartsIt(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1)
	a := attempt(accept(t, s, limits, newTxs(s, 1)...)[0], 1, relayer.PurposeSend)
	_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{a})
	require.NoError(t, err)
	accepted(t, s, a)
	unmined := func(atOnce ...common.Address) int {
		attempts, err := s.ListUnconfirmed(t.Context(), all(limits), -time.Minute, atOnce, 10)
		require.NoError(t, err)
		return len(attempts)
	}
	require.Equal(t, 1, unmined())

	resend := func(reason string) (pause time.Duration) {
		require.NoError(t, s.RecordBroadcasts(t.Context(), []Broadcast{{
			TxID: a.TxID, Number: 1, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Broadcasted, Error: reason,
			Pause: time.Minute, MaxPause: time.Hour,
		}}))
		var seconds float64
		require.NoError(t, s.db.QueryRow(t.Context(), `SELECT extract(epoch FROM next_send_at - now()) FROM relayer_attempts WHERE tx_id = $1`,
			a.TxID).Scan(&seconds))
		return time.Duration(seconds * float64(time.Second)).Round(time.Minute)
	}
	elapse := func(d time.Duration) {
		_, err := s.db.Exec(t.Context(), `UPDATE relayer_attempts SET next_send_at = next_send_at - $1::interval`, d)
		require.NoError(t, err)
	}
	require.Equal(t, time.Minute, resend(""))
	require.Zero(t, unmined())
	require.Equal(t, 1, unmined(limits.Held[0]))
	elapse(2 * time.Minute)
	require.Equal(t, 2*time.Minute, resend(""))
	require.Equal(t, 4*time.Minute, resend("pool is full"), "a refused attempt")
	require.Equal(t, time.Minute, resend(""))
	elapse(2 * time.Minute)
	require.Equal(t, 2*time.Minute, resend(""))
}
