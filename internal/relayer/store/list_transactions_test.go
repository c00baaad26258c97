package store

import (
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// history stores this many transactions, nearly all of them confirmed.
func history(t *testing.T, s *Store, n int) {
	t.Helper()
	_, err := s.db.Exec(t.Context(), `INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, relayer_address, nonce, status, open,
			method, orderbook, trader, request_id, trace_id)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 1337, 'pool', 'pool', 'me', 'transaction', '0x' || lpad(to_hex(i % 16 + 1), 40, '0'), i / 16,
			CASE WHEN i % 1000 = 1 THEN 'failed' WHEN i % 1000 = 2 THEN 'mined' ELSE 'confirmed' END, i % 1000 = 2,
			CASE WHEN i % 1000 = 3 THEN 'rare' ELSE 'fill' END, CASE WHEN i % 1000 = 4 THEN 'rare' ELSE 'book' END, 'trader ' || i % 1000, 'r-' || i, 't-' || i
		FROM generate_series(1, $1::int) AS i`, n)
	require.NoError(t, err)
	_, err = s.db.Exec(t.Context(), `VACUUM ANALYZE relayer_txs`)
	require.NoError(t, err)
}

// requireIndexed requires a query to read only the rows of the history that it needs.
func requireIndexed(t *testing.T, s *Store, name, query string, args []any) {
	t.Helper()
	rows, err := s.db.Query(t.Context(), `EXPLAIN `+query, args...)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	plan := strings.Join(lines, "\n")
	require.NotContains(t, plan, "Seq Scan on relayer_txs", name)
	require.NotContains(t, plan, "relayer_txs_pkey", name)
}

// The cost of listing few transactions does not depend on the length of the history.
func TestTransactions_LongHistory_ReadsByIndex(t *testing.T) {
	t.Parallel()
	s, _ := setup(t, 1)
	const n = 20_000
	history(t, s, n)
	for name, c := range map[string]struct {
		filter Filter
		total  int
	}{
		"open":       {Filter{Statuses: []relayer.Status{relayer.Allocated, relayer.Broadcasted, relayer.Mined}}, n / 1000},
		"unsigned":   {Filter{Statuses: []relayer.Status{relayer.Allocated}, Signed: new(false)}, 0},
		"failed":     {Filter{Statuses: []relayer.Status{relayer.Failed, relayer.Reverted}}, n / 1000},
		"not final":  {Filter{Statuses: []relayer.Status{relayer.Mined, relayer.Failed}}, n / 500},
		"method":     {Filter{Metadata: relayer.Metadata{Method: "rare"}}, n / 1000},
		"orderbook":  {Filter{Metadata: relayer.Metadata{Orderbook: "rare"}}, n / 1000},
		"trader":     {Filter{Metadata: relayer.Metadata{Trader: "trader 9"}}, n / 1000},
		"request id": {Filter{Metadata: relayer.Metadata{RequestID: "r-7"}}, 1},
		"trace id":   {Filter{Metadata: relayer.Metadata{TraceID: "t-7"}}, 1},
	} {
		_, total, err := s.Transactions(t.Context(), c.filter, 0, 20)
		require.NoError(t, err)
		require.Equal(t, c.total, total, name)
		where, args := c.filter.where(s)
		for _, query := range []string{page(where, 0, 20), `SELECT count(*) FROM relayer_txs` + where} {
			requireIndexed(t, s, name, query, args)
		}
	}
	// Totals are capped.
	for _, f := range []Filter{{}, {Statuses: []relayer.Status{relayer.Confirmed}}} {
		txs, total, err := s.Transactions(t.Context(), f, 40, 20)
		require.NoError(t, err)
		require.Len(t, txs, 20)
		require.Equal(t, 60+CountLimit, total)
	}
	_, total, err := s.Transactions(t.Context(), Filter{}, n-100, 20)
	require.NoError(t, err)
	require.Equal(t, n, total)
}

// A key's list includes transactions queued for that key, and those canceled while queued for it. It excludes those queued
// for the pool.
func TestTransactions_QueuedForAKey_AreListedUnderIt(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2)
	limits.Cap = 1
	key := limits.Held[0]
	const n = 20_000
	for _, key := range limits.Held {
		require.NoError(t, onlyErr(s.AdvanceNonce(t.Context(), key, known(t, s).Generation, n))) // the history has the lower nonces
	}
	own := func() *NewTransaction {
		d := newTx(s)
		d.Key, d.Target = key, hexAddress(key)
		return d
	}
	sent := accept(t, s, limits, own(), newTx(s))
	require.Equal(t, key, sent[0].From)
	waiting := accept(t, s, limits, own(), newTx(s), own())
	require.Nil(t, waiting[0].Nonce)
	_, err := s.SetIntent(t.Context(), waiting[0].ID, relayer.IntentCancel, "no")
	require.NoError(t, err)
	list := func(f Filter) []uuid.UUID {
		f.Key = key
		txs, total, err := s.Transactions(t.Context(), f, 0, 10)
		require.NoError(t, err)
		require.Len(t, txs, total)
		return ids(txs)
	}
	require.Equal(t, []uuid.UUID{waiting[2].ID, waiting[0].ID, sent[0].ID}, list(Filter{}))
	require.Equal(t, []uuid.UUID{waiting[2].ID, sent[0].ID}, list(Filter{Statuses: []relayer.Status{relayer.Allocated}}))
	require.Equal(t, []uuid.UUID{waiting[0].ID}, list(Filter{Statuses: []relayer.Status{relayer.Canceled}}))

	// A key with few transactions does not need the other keys' history for that either.
	history(t, s, n)
	_, err = s.db.Exec(t.Context(), `UPDATE relayer_txs SET relayer_address = $1 WHERE relayer_address = $2 AND nonce BETWEEN 4 AND $3`,
		hexAddress(common.HexToAddress("0x63")), hexAddress(key), n-1)
	require.NoError(t, err)
	_, err = s.db.Exec(t.Context(), `VACUUM ANALYZE relayer_txs`)
	require.NoError(t, err)
	f := Filter{Key: key}
	where, args := f.where(s)
	for _, query := range []string{page(where, 0, 20), `SELECT count(*) FROM relayer_txs` + where} {
		requireIndexed(t, s, "key", query, args)
	}
}

// A cancellation of everything, in parts, cancels all pending transactions of the pool's or a key's callers, and no others.
func TestCancelPending(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 2, "target")
	s.Budgets = Budgets{Caller: big.NewInt(1000)}
	limits.Cap = 3
	ofKey := func() *NewTransaction {
		d := costly(s, 5, "a", "")
		d.Key, d.Target = limits.Held[0], hexAddress(limits.Held[0])
		return d
	}
	var own []*relayer.Transaction
	for range 4 {
		own = append(own, accept(t, s, limits, ofKey())...)
	}
	require.Nil(t, own[3].Nonce)
	others := accept(t, s, limits, costly(s, 5, "a", ""), costly(s, 5, "a", ""), costly(s, 5, "a", ""), costly(s, 5, "a", ""))
	require.Nil(t, others[3].Nonce)
	broadcast(t, s, own[:3]...)
	require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(own[0], 1, relayer.PurposeSend, 3)}))
	_, err := s.SetIntent(t.Context(), own[1].ID, relayer.IntentExpire, "late")
	require.NoError(t, err)
	_, err = s.AdvanceNonce(t.Context(), limits.Held[0], known(t, s).Generation, 4)
	require.NoError(t, err)
	noop, err := s.FillNonceGaps(t.Context(), limits.Held[0], known(t, s).Generation, 0, 0)
	require.NoError(t, err)
	require.Len(t, noop, 1)
	require.EqualValues(t, 40, spent(t, s, scopeCaller, "a"))

	by, err := s.Now(t.Context())
	require.NoError(t, err)
	var canceled []uuid.UUID
	for _, want := range []int{1, 1, 0} {
		some, err := s.CancelPending(t.Context(), limits.Held[0], by, "all of the key", 1)
		require.NoError(t, err)
		require.Len(t, some, want)
		canceled = append(canceled, some...)
	}
	require.ElementsMatch(t, []uuid.UUID{own[2].ID, own[3].ID}, canceled)
	require.Equal(t, relayer.Canceled, read(t, s, own[3]).Status)
	require.Equal(t, "all of the key", read(t, s, own[3]).StatusReason)
	require.Equal(t, relayer.IntentCancel, read(t, s, own[2]).Intent)
	require.Equal(t, relayer.IntentSend, read(t, s, own[0]).Intent)
	require.Equal(t, relayer.IntentExpire, read(t, s, own[1]).Intent)
	require.Equal(t, relayer.IntentSend, read(t, s, noop[0]).Intent)
	require.EqualValues(t, 35, spent(t, s, scopeCaller, "a"))

	later := accept(t, s, limits, costly(s, 5, "a", ""))
	canceled, err = s.CancelPending(t.Context(), common.Address{}, by, "everything", 100)
	require.NoError(t, err)
	require.ElementsMatch(t, ids(others), canceled)
	require.Equal(t, relayer.IntentSend, read(t, s, later[0]).Intent, "later transactions are not canceled")
	var deliveries int
	require.NoError(t, s.db.QueryRow(t.Context(), `SELECT count(*) FROM relayer_webhooks WHERE status = 'canceled'`).Scan(&deliveries))
	require.Equal(t, 2, deliveries)
}
