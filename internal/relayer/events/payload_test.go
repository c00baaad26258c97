package events_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// accepted stores a transaction like a relayer with the webhook target "here".
func accepted(t *testing.T, s *store.Store, request relayer.Request) *relayer.Transaction {
	t.Helper()
	key := common.HexToAddress("0x01")
	_, err := s.InitChain(t.Context(), common.HexToHash("0x01"))
	require.NoError(t, err)
	require.NoError(t, s.Register(t.Context(), []store.Registration{{Address: key}}))
	results, err := s.Accept(t.Context(), store.AllocationLimits{Held: []common.Address{key}, Cap: 16}, []*store.NewTransaction{{
		ID: newTx(t), Target: pool.ID, Caller: "alice", Kind: relayer.KindTransaction, Request: request,
	}})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	return results[0].Tx
}

// signed returns an attempt with made-up bytes for a transaction.
func signed(tx *relayer.Transaction, number int, purpose relayer.Purpose) *relayer.Attempt {
	return &relayer.Attempt{
		TxID: tx.ID, Number: number, From: tx.From, Nonce: *tx.Nonce, Purpose: purpose, Hash: common.BigToHash(big.NewInt(int64(number))),
		Raw: []byte("raw"), MaxFee: big.NewInt(int64(20 * number)), MaxPriorityFee: big.NewInt(int64(number)),
	}
}

// sent records that nodes have an attempt.
func sent(t *testing.T, s *store.Store, a *relayer.Attempt) {
	t.Helper()
	require.NoError(t, s.RecordBroadcasts(t.Context(), []store.Broadcast{{
		TxID: a.TxID, Number: a.Number, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Broadcasted,
	}}))
}

// payload holds the fields of a transaction that receivers read.
type payload struct {
	Hash  string  `json:"hash"`
	To    string  `json:"to"`
	Value string  `json:"value"`
	Data  *string `json:"data"`
	Price *string `json:"gas_price"`
	Fee   *string `json:"max_fee_per_gas"`
	Tip   *string `json:"max_priority_fee_per_gas"`
}

// payloads delivers the webhooks that are due, n of them, and returns their payloads in their order.
func payloads(t *testing.T, db *pgxpool.Pool, n int) (all []payload) {
	t.Helper()
	for _, body := range deliver(t, db, n) {
		var got struct {
			Payload payload `json:"payload"`
		}
		require.NoError(t, json.Unmarshal(body, &got))
		all = append(all, got.Payload)
	}
	return all
}

func TestBody_Transaction_AmountsAreExact(t *testing.T) {
	t.Parallel()
	db := database(t)
	id := newTx(t)
	_, err := db.Exec(t.Context(), `
		WITH changed AS (
			INSERT INTO relayer_txs (id, chain_id, pool_id, target, caller, kind, relayer_address, nonce, tx_hash, status,
				status_reason, revision, attempts, to_address, value_wei, data, gas_limit, speed, max_fee, max_priority, trader,
				created_at, sent_at, confirmed_at)
			VALUES ($1, $2, $3, 'pool-1', 'alice', 'transaction', '0x00000000000000000000000000000000000000bb',
				9223372036854775807, '0x' || repeat('c', 64), 'reverted', 'Łódź 東京 "é" </script> & 🦊', 7, 2,
				'0x00000000000000000000000000000000000000aa', 2::numeric ^ 256 - 1, '\xdeadbeef', 9007199254740993, 'fast',
				115792089237316195423570985008687907853269984665640564039457584007913129639935, 1000000007, '東京',
				'2026-11-22 10:00:00.123456+00', '2026-11-22 12:00:01+02', NULL) RETURNING *)
		INSERT INTO relayer_webhooks (id, lane, subject, about, revision, status, status_reason, tx_attempts, relayer_address,
			nonce, tx_hash, sent_at)
		SELECT '0199f000-0000-4000-8000-000000000001', c.chain_id || '/' || c.pool_id || '/here', c.id || '/here', c.id,
			c.revision, c.status, c.status_reason, c.attempts,
			decode(substr(c.relayer_address, 3), 'hex'), c.nonce, decode(substr(c.tx_hash, 3), 'hex'), c.sent_at
		FROM changed c`, id, pool.ChainID, pool.ID)
	require.NoError(t, err)
	// Later changes are not part of this delivery.
	_, err = db.Exec(t.Context(), "UPDATE relayer_txs SET status = 'confirmed', status_reason = '', nonce = 1, tx_hash = NULL, confirmed_at = now()")
	require.NoError(t, err)
	body := deliver(t, db, 1)[0]
	var envelope struct {
		Timestamp string `json:"timestamp"`
	}
	require.NoError(t, json.Unmarshal(body, &envelope))
	require.JSONEq(t, `{
		"id": "0199f000-0000-4000-8000-000000000001", "event": "transaction_update", "timestamp": "`+envelope.Timestamp+`",
		"payload": {
			"payload_type": "transaction", "id": "`+id.String()+`", "hash": "0x`+strings.Repeat("c", 64)+`", "status": "failed",
			"status_reason": "Łódź 東京 \"é\" </script> & 🦊", "created_at": "2026-11-22T10:00:00.123456Z",
			"sent_at": "2026-11-22T10:00:01.000000Z", "confirmed_at": null, "gas_price": null, "gas_limit": 9007199254740993,
			"nonce": 9223372036854775807, "value": "0x`+strings.Repeat("f", 64)+`",
			"from": "0x00000000000000000000000000000000000000bb", "to": "0x00000000000000000000000000000000000000AA",
			"relayer_id": "pool-1", "data": "0xdeadbeef",
			"max_fee_per_gas": "115792089237316195423570985008687907853269984665640564039457584007913129639935",
			"max_priority_fee_per_gas": "1000000007", "signature": null, "speed": "fast", "is_canceled": false, "revision": 7,
			"metadata": {"trader": "東京"}
		}}`, string(body))
	// JSONEq reads numbers as floats.
	require.Contains(t, string(body), `"gas_limit":9007199254740993,`)
	require.Contains(t, string(body), `"nonce":9223372036854775807,`)
	require.Contains(t, string(body), `</script> & 🦊`)
}

func TestBody_ReplacedLater_HasContentsOfTheChange(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := openStore(db)
	contents := func(to, value string, data ...byte) relayer.Request {
		n, _ := new(big.Int).SetString(value, 0)
		return relayer.Request{To: new(common.HexToAddress(to)), Value: n, Data: data, GasLimit: 21_000, Speed: relayer.Fast}
	}
	a, b := contents("0x0a", "0xa", 0xaa), contents("0x0b", "0xb", 0xbb)
	tx := accepted(t, s, a)
	_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 1, relayer.PurposeSend)})
	require.NoError(t, err)
	sent(t, s, signed(tx, 1, relayer.PurposeSend))
	require.NoError(t, s.Replace(t.Context(), &store.Replacement{ID: tx.ID, Request: b, Attempt: signed(tx, 2, relayer.PurposeReplace)}))
	sent(t, s, signed(tx, 2, relayer.PurposeReplace))
	require.NoError(t, s.SetMinedPayload(t.Context(), tx.ID, &a)) // the first bytes were mined after all
	require.NoError(t, s.RecordMined(t.Context(), []store.Mined{{
		TxID: tx.ID, Hash: signed(tx, 1, relayer.PurposeSend).Hash, BlockNumber: 3, BlockHash: common.HexToHash("0x03"), BlockTime: time.Unix(1, 0),
		Succeeded: true, GasUsed: 21_000, GasPrice: big.NewInt(7),
	}}))

	var delivered []string
	of := func(p payload) string {
		require.NotNil(t, p.Data)
		return strings.ToLower(p.To[40:]) + " " + p.Value + " " + *p.Data
	}
	for _, p := range payloads(t, db, 4) {
		delivered = append(delivered, of(p))
	}
	was, is := "0a 0xa 0xaa", "0b 0xb 0xbb"
	require.Equal(t, []string{was, is, is, was}, delivered)

	var ids []string
	letters, err := deadletter.New(db, pool.Letters())
	require.NoError(t, err)
	list, err := letters.List(t.Context(), deadletter.Filter{})
	require.NoError(t, err)
	for _, one := range list {
		ids = append(ids, one.ID)
	}
	n, err := letters.Replay(t.Context(), deadletter.Filter{IDs: ids})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	delivered = nil
	for _, p := range payloads(t, db, 4) {
		delivered = append(delivered, of(p))
	}
	require.Equal(t, []string{was, is, is, was}, delivered)
}

// Fees without a value in the request are delivered as they were offered at that change.
func TestBody_RequestWithoutFees_HasOfferedFees(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := openStore(db)
	request := relayer.Request{To: new(common.HexToAddress("0x0a")), Value: new(big.Int), GasLimit: 21_000, Speed: relayer.Fast}
	tx := accepted(t, s, request)
	_, err := s.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "canceled") // before any attempt is signed
	require.NoError(t, err)
	legacy := signed(tx, 1, relayer.PurposeNoop)
	legacy.MaxPriorityFee = nil
	for _, a := range []*relayer.Attempt{legacy, signed(tx, 2, relayer.PurposeNoop)} {
		_, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{a})
		require.NoError(t, err)
		sent(t, s, a)
	}
	_, err = s.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 3, relayer.PurposeNoop)})
	require.NoError(t, err)
	require.NoError(t, s.RecordMined(t.Context(), []store.Mined{{
		TxID: tx.ID, Hash: legacy.Hash, BlockNumber: 3, BlockHash: common.HexToHash("0x03"), BlockTime: time.Unix(1, 0),
		Succeeded: true, GasUsed: 21_000, GasPrice: big.NewInt(7),
	}}))
	var delivered [][3]string
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	for _, p := range payloads(t, db, 4) {
		delivered = append(delivered, [3]string{text(p.Price), text(p.Fee), text(p.Tip)})
	}
	require.Equal(t, [][3]string{{}, {"20", "", ""}, {"", "40", "2"}, {"20", "", ""}}, delivered)
}

func TestReplay_Delivered_HasTheFirstBody(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := openStore(db)
	tx := accepted(t, s, relayer.Request{To: new(common.HexToAddress("0x0a")), Value: big.NewInt(3), Data: []byte{7}, GasLimit: 21_000, Speed: relayer.Fast})
	_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 1, relayer.PurposeSend)})
	require.NoError(t, err)
	sent(t, s, signed(tx, 1, relayer.PurposeSend))
	deliverOne := func() string {
		var got struct {
			ID      string          `json:"id"`
			Payload json.RawMessage `json:"payload"`
		}
		require.NoError(t, json.Unmarshal(deliver(t, db, 1)[0], &got))
		return got.ID + " " + string(got.Payload)
	}
	first := deliverOne()
	require.Contains(t, first, `"nonce":0`)
	// Another sender's transaction uses the nonce, and the row returns to the queue.
	displaced, err := s.RecordNonceConflicts(t.Context(), tx.ID, tx.From, 0, 0, common.HexToHash("0xf0"), store.Block{Number: 3, Hash: common.HexToHash("0x03")})
	require.NoError(t, err)
	require.True(t, displaced)
	require.Contains(t, deliverOne(), `"nonce":null`)

	letters, err := deadletter.New(db, pool.Letters())
	require.NoError(t, err)
	list, err := letters.List(t.Context(), deadletter.Filter{Transaction: tx.ID})
	require.NoError(t, err)
	require.Len(t, list, 2)
	n, err := letters.Replay(t.Context(), deadletter.Filter{IDs: []string{list[0].ID}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, first, deliverOne())
}

func TestSource_UnreadableRow_IsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	db := database(t)
	s := openStore(db)
	request := relayer.Request{To: new(common.HexToAddress("0x0a")), Value: new(big.Int), GasLimit: 21_000, Speed: relayer.Fast}
	send := func() uuid.UUID {
		tx := accepted(t, s, request)
		_, err := s.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 1, relayer.PurposeSend)})
		require.NoError(t, err)
		sent(t, s, signed(tx, 1, relayer.PurposeSend))
		return tx.ID
	}
	for range 5 {
		send()
	}
	_, err := db.Exec(t.Context(), `UPDATE relayer_webhooks SET contents = '{"gasLimit": -1}'`)
	require.NoError(t, err)
	deleted := send()
	_, err = db.Exec(t.Context(), `DELETE FROM relayer_txs WHERE id = $1`, deleted)
	require.NoError(t, err)
	good := send()
	target, got := receiver(t)
	_, stop := start(t, db, webhook.Config{Targets: []webhook.Target{target}})
	defer stop()
	require.Contains(t, string(next(t, got)), good.String())
	letters, err := deadletter.New(db, pool.Letters())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		list, err := letters.List(t.Context(), deadletter.Filter{State: outbox.Dead})
		return err == nil && len(list) == 6
	}, patience, 10*time.Millisecond)
	list, err := letters.List(t.Context(), deadletter.Filter{Transaction: deleted})
	require.NoError(t, err)
	require.Contains(t, list[0].Reason, "its transaction was deleted")
}
