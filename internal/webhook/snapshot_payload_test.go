package webhook

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// accepted stores a transaction like a relayer with the webhook target "here".
func accepted(t *testing.T, l *store.Store, request relayer.Request) *relayer.Transaction {
	t.Helper()
	key := common.HexToAddress("0x01")
	_, err := l.InitChain(t.Context(), common.HexToHash("0x01"))
	require.NoError(t, err)
	require.NoError(t, l.Register(t.Context(), []store.Registration{{Address: key}}))
	verdicts, err := l.Accept(t.Context(), store.AllocationLimits{Held: []common.Address{key}, Cap: 16}, []*store.NewTransaction{{
		ID: newTx(t), Target: testPool, Caller: "alice", Kind: relayer.KindTransaction, Request: request,
	}})
	require.NoError(t, err)
	require.NoError(t, verdicts[0].Err)
	return verdicts[0].Tx
}

// signed returns an attempt with made-up bytes for a transaction.
func signed(tx *relayer.Transaction, number int, purpose relayer.Purpose) *relayer.Attempt {
	return &relayer.Attempt{
		TxID: tx.ID, Number: number, From: tx.From, Nonce: *tx.Nonce, Purpose: purpose, Hash: common.BigToHash(big.NewInt(int64(number))),
		Raw: []byte("raw"), MaxFee: big.NewInt(int64(20 * number)), MaxPriorityFee: big.NewInt(int64(number)),
	}
}

// sent records that nodes have an attempt.
func sent(t *testing.T, l *store.Store, a *relayer.Attempt) {
	t.Helper()
	require.NoError(t, l.RecordBroadcasts(t.Context(), []store.Broadcast{{
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

// payloads returns the payloads of all due deliveries, in their order.
func payloads(t *testing.T, d *Deliverer) (all []payload) {
	t.Helper()
	var settled []deliveryResult
	for {
		claims := claimAll(t, d, settled...)
		if len(claims) == 0 {
			return all
		}
		settled = nil
		for _, c := range claims {
			body, err := c.body(time.Now())
			require.NoError(t, err)
			var got struct {
				Payload payload `json:"payload"`
			}
			require.NoError(t, json.Unmarshal(body, &got))
			all = append(all, got.Payload)
			settled = append(settled, deliveryResult{claim: c, verdict: delivered})
		}
	}
}

// A late or replayed delivery has the data that the transaction had at the change, not later data.
func TestReplacedContentsAreToldAsTheyWere(t *testing.T) {
	t.Parallel()
	db := database(t)
	l := store.New(db, store.Config{ChainID: testChain, Pool: testPool, Targets: []string{"here"}})
	contents := func(to, value string, data ...byte) relayer.Request {
		n, _ := new(big.Int).SetString(value, 0)
		return relayer.Request{To: new(common.HexToAddress(to)), Value: n, Data: data, GasLimit: 21_000, Speed: relayer.Fast}
	}
	a, b := contents("0x0a", "0xa", 0xaa), contents("0x0b", "0xb", 0xbb)
	tx := accepted(t, l, a)
	_, err := l.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 1, relayer.PurposeSend)})
	require.NoError(t, err)
	sent(t, l, signed(tx, 1, relayer.PurposeSend))
	require.NoError(t, l.Replace(t.Context(), &store.Replacement{ID: tx.ID, Request: b, Attempt: signed(tx, 2, relayer.PurposeReplace)}))
	sent(t, l, signed(tx, 2, relayer.PurposeReplace))
	require.NoError(t, l.SetMinedPayload(t.Context(), tx.ID, &a)) // the first bytes were mined after all
	require.NoError(t, l.RecordMined(t.Context(), []store.Mined{{
		TxID: tx.ID, Hash: signed(tx, 1, relayer.PurposeSend).Hash, BlockNumber: 3, BlockHash: common.HexToHash("0x03"), BlockTime: time.Unix(1, 0),
		Succeeded: true, GasUsed: 21_000, GasPrice: big.NewInt(7),
	}}))

	d := claimer(t, db, nil)
	var told []string
	of := func(p payload) string {
		require.NotNil(t, p.Data)
		return strings.ToLower(p.To[40:]) + " " + p.Value + " " + *p.Data
	}
	for _, p := range payloads(t, d) {
		told = append(told, of(p))
	}
	was, is := "0a 0xa 0xaa", "0b 0xb 0xbb"
	require.Equal(t, []string{was, is, is, was}, told)

	var ids []uuid.UUID
	list, err := d.List(t.Context(), Filter{})
	require.NoError(t, err)
	for _, one := range list {
		ids = append(ids, one.ID)
	}
	n, err := d.Replay(t.Context(), Filter{IDs: ids})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	told = nil
	for _, p := range payloads(t, d) {
		told = append(told, of(p))
	}
	require.Equal(t, []string{was, is, is, was}, told)
}

// Fees without a value in the request are delivered as they were offered at that change.
func TestOfferedFeesAreTold(t *testing.T) {
	t.Parallel()
	db := database(t)
	l := store.New(db, store.Config{ChainID: testChain, Pool: testPool, Targets: []string{"here"}})
	request := relayer.Request{To: new(common.HexToAddress("0x0a")), Value: new(big.Int), GasLimit: 21_000, Speed: relayer.Fast}
	tx := accepted(t, l, request)
	_, err := l.SetIntent(t.Context(), tx.ID, relayer.IntentCancel, "canceled") // before any attempt is signed
	require.NoError(t, err)
	legacy := signed(tx, 1, relayer.PurposeNoop)
	legacy.MaxPriorityFee = nil
	for _, a := range []*relayer.Attempt{legacy, signed(tx, 2, relayer.PurposeNoop)} {
		_, err = l.StoreAttempts(t.Context(), []*relayer.Attempt{a})
		require.NoError(t, err)
		sent(t, l, a)
	}
	_, err = l.StoreAttempts(t.Context(), []*relayer.Attempt{signed(tx, 3, relayer.PurposeNoop)})
	require.NoError(t, err)
	require.NoError(t, l.RecordMined(t.Context(), []store.Mined{{
		TxID: tx.ID, Hash: legacy.Hash, BlockNumber: 3, BlockHash: common.HexToHash("0x03"), BlockTime: time.Unix(1, 0),
		Succeeded: true, GasUsed: 21_000, GasPrice: big.NewInt(7),
	}}))
	var told [][3]string
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	for _, p := range payloads(t, claimer(t, db, nil)) {
		told = append(told, [3]string{text(p.Price), text(p.Fee), text(p.Tip)})
	}
	require.Equal(t, [][3]string{{}, {"20", "", ""}, {"", "40", "2"}, {"20", "", ""}}, told)
}
