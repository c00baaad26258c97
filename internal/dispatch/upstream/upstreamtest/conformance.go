package upstreamtest

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
)

// Target is a relayer to test.
type Target struct {
	URL, Key string
	// To is an address that receives transactions.
	To common.Address
	// Idempotent reports that the relayer has an idempotency scope.
	Idempotent bool
}

// Conformance tests a client on a relayer. The relayer must be usable, and have no chain that confirms transactions within a
// second.
func Conformance(t *testing.T, target Target) {
	open := func(t *testing.T, change ...func(*upstream.Config)) *upstream.Client {
		t.Helper()
		cfg := upstream.Config{URL: target.URL, Key: target.Key}
		for _, c := range change {
			c(&cfg)
		}
		c, err := upstream.New(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	client := open(t)
	info, err := client.Discover(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, info.RelayerID)
	require.True(t, info.Usable())
	require.Equal(t, target.Idempotent, info.Scope != "")
	submission := func() upstream.Submission {
		return upstream.Submission{
			RelayerID: info.RelayerID, Scope: info.Scope, IdempotencyKey: uuid.NewString(), To: &target.To,
			Value: big.NewInt(9_007_199_254_740_993), GasLimit: 100_000, Speed: "average", Data: []byte{0xde, 0xad},
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		}
	}
	accepted := func(t *testing.T, s upstream.Submission) upstream.Transaction {
		t.Helper()
		r := client.Submit(t.Context(), s)
		require.Equal(t, upstream.Accepted, r.Outcome, "%+v", r)
		require.False(t, r.Fault || r.Stale)
		require.NotEmpty(t, r.Transaction.ID)
		require.Contains(t, []dispatch.Status{dispatch.Submitted, dispatch.Mined, dispatch.Confirmed}, r.Transaction.Status)
		return r.Transaction
	}

	t.Run("discover by id", func(t *testing.T) {
		byID, err := open(t, func(c *upstream.Config) { c.RelayerID = info.RelayerID }).Discover(t.Context())
		require.NoError(t, err)
		require.Equal(t, info, byID)
		_, err = open(t, func(c *upstream.Config) { c.RelayerID = "no-such-relayer" }).Discover(t.Context())
		require.ErrorIs(t, err, upstream.ErrNoRelayer)
	})
	t.Run("submit and read", func(t *testing.T) {
		began := time.Now().Add(-time.Minute)
		s := submission()
		tx := accepted(t, s)
		got, err := client.Get(t.Context(), info.Ref(), tx.ID)
		require.NoError(t, err)
		require.Equal(t, tx.ID, got.ID)
		require.Equal(t, s.Value, got.Value)
		require.Equal(t, s.Data, got.Data)
		require.Equal(t, s.To, got.To)
		require.False(t, got.IsCanceled)
		require.WithinDuration(t, time.Now(), got.CreatedAt, time.Minute)

		found, err := client.Lookup(t.Context(), info.Ref(), upstream.Match{To: s.To, Data: s.Data, Value: s.Value, Since: began})
		require.NoError(t, err)
		require.Condition(t, func() bool {
			for _, f := range found {
				if f.ID == tx.ID {
					return true
				}
			}
			return false
		})
		found, err = client.Lookup(t.Context(), info.Ref(), upstream.Match{To: s.To, Data: []byte{1}, Value: s.Value, Since: began})
		require.NoError(t, err)
		require.Empty(t, found)
		load, err := client.Load(t.Context(), info.Ref())
		require.NoError(t, err)
		require.False(t, load.Paused || load.Disabled)
	})
	t.Run("two transactions", func(t *testing.T) {
		require.NotEqual(t, accepted(t, submission()).ID, accepted(t, submission()).ID)
	})
	t.Run("cancel", func(t *testing.T) {
		tx := accepted(t, submission())
		canceled, err := client.Cancel(t.Context(), info.Ref(), tx.ID)
		require.NoError(t, err)
		require.Equal(t, tx.ID, canceled.ID)
		require.True(t, canceled.IsCanceled)
		_, err = client.Cancel(t.Context(), info.Ref(), uuid.NewString())
		require.ErrorIs(t, err, upstream.ErrNotFound)
	})
	t.Run("invalid request", func(t *testing.T) {
		for _, change := range []func(*upstream.Submission){
			func(s *upstream.Submission) { s.GasLimit = 20_999 },
			func(s *upstream.Submission) { s.To, s.Data = nil, nil },
		} {
			s := submission()
			change(&s)
			r := client.Submit(t.Context(), s)
			require.Equal(t, upstream.Rejected, r.Outcome, "%+v", r)
			require.Equal(t, 400, r.Code)
			require.NotEmpty(t, r.Reason)
			require.False(t, r.Fault)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		wrong := open(t, func(c *upstream.Config) { c.Key = "another-key-0123456789abcdef0123456789" })
		r := wrong.Submit(t.Context(), submission())
		require.Equal(t, upstream.NotDone, r.Outcome)
		require.Equal(t, 401, r.Code)
		require.True(t, r.Fault)
		_, err := wrong.Discover(t.Context())
		failed := new(upstream.Error)
		require.ErrorAs(t, err, &failed)
		require.Equal(t, 401, failed.Code)
	})
	t.Run("unknown ids", func(t *testing.T) {
		_, err := client.Get(t.Context(), info.Ref(), uuid.NewString())
		require.ErrorIs(t, err, upstream.ErrNotFound)
		gone := upstream.Ref{ID: "no-such-relayer", Scope: info.Scope}
		_, err = client.Get(t.Context(), gone, uuid.NewString())
		require.ErrorIs(t, err, upstream.ErrNoRelayer)
		_, err = client.Load(t.Context(), gone)
		require.ErrorIs(t, err, upstream.ErrNoRelayer)
		_, err = client.Lookup(t.Context(), gone, upstream.Match{})
		require.ErrorIs(t, err, upstream.ErrNoRelayer)
		s := submission()
		s.RelayerID = gone.ID
		r := client.Submit(t.Context(), s)
		require.Equal(t, upstream.NotDone, r.Outcome)
		require.True(t, r.Stale)
	})
	t.Run("repeated key", func(t *testing.T) {
		s := submission()
		first := accepted(t, s)
		require.Equal(t, target.Idempotent, first.ID == accepted(t, s).ID)
		if !target.Idempotent {
			return
		}
		s.Traceparent = "" // not part of the request
		require.Equal(t, first.ID, accepted(t, s).ID)
		s.Value = big.NewInt(1)
		r := client.Submit(t.Context(), s)
		require.Equal(t, upstream.Unknown, r.Outcome)
		require.True(t, r.KeyReused)
		require.False(t, r.Fault)
	})
	t.Run("another scope", func(t *testing.T) {
		if !target.Idempotent {
			return
		}
		s := submission()
		s.Scope = "0123456789abcdef"
		r := client.Submit(t.Context(), s)
		require.Equal(t, upstream.NotDone, r.Outcome, "%+v", r)
		require.Equal(t, 412, r.Code)
		require.True(t, r.Stale)
		require.False(t, r.Fault)
		other := upstream.Ref{ID: info.RelayerID, Scope: s.Scope}
		_, err := client.Get(t.Context(), other, uuid.NewString())
		require.ErrorIs(t, err, upstream.ErrOtherScope)
		_, err = client.Lookup(t.Context(), other, upstream.Match{})
		require.ErrorIs(t, err, upstream.ErrOtherScope)
	})
}
