package relayer

import (
	"encoding/json"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// at returns a time with more digits than JSON has.
func at(second int64) time.Time { return time.Unix(1_700_000_000+second, 123_456_789) }

var stored = Transaction{
	ID: uuid.MustParse("018bcfe5-6800-7000-8000-000000000001"), ChainID: 1337, Pool: "pool", Target: "pool", Caller: "alice", Kind: KindTransaction,
	Request: Request{
		To: new(common.HexToAddress("0xAbCdEf0000000000000000000000000000000001")), Value: big.NewInt(2), Data: []byte{3}, GasLimit: 4,
		GasPrice: big.NewInt(5), MaxFee: big.NewInt(6), MaxPriorityFee: big.NewInt(7), Speed: Fast, ValidUntil: at(8),
		Metadata: Metadata{Method: "fill", Orderbook: "book", Trader: "trader", RequestID: "r-1", TraceID: "t-1"}, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	},
	Status: Mined, StatusReason: "reason", Intent: IntentCancel, IntentReason: "why", Revision: 9, Reserve: big.NewInt(10),
	From: common.HexToAddress("0xaBcDeF0000000000000000000000000000000002"), Nonce: new(uint64(11)), Attempts: 12,
	Hash: new(common.HexToHash("0x13")), OfferedFee: big.NewInt(14), OfferedTip: big.NewInt(15), BlockNumber: 16,
	BlockHash: common.HexToHash("0x17"), GasUsed: 18, EffectiveGasPrice: big.NewInt(19),
	CreatedAt: at(20), UpdatedAt: at(21), SentAt: at(22), MinedAt: at(23), ConfirmedAt: at(24), BumpRequestedAt: at(25),
}

// requireFull requires each field of a struct to have a value, so that a test of the struct covers later fields too.
func requireFull(t *testing.T, v any) {
	t.Helper()
	of := reflect.ValueOf(v)
	for _, field := range reflect.VisibleFields(of.Type()) {
		require.False(t, of.FieldByIndex(field.Index).IsZero(), "the test does not cover %s", field.Name)
	}
}

func TestRow_ConvertedBack_IsTheSame(t *testing.T) {
	t.Parallel()
	requireFull(t, stored)
	requireFull(t, stored.Metadata)
	require.Equal(t, stored, *stored.Row().Transaction())
	require.Equal(t, Transaction{Request: Request{Value: new(big.Int), Data: []byte{}}}, *new(Transaction).Row().Transaction())
	a := Attempt{
		TxID: stored.ID, Number: 1, From: stored.From, Nonce: 2, Purpose: PurposeNoop, Hash: *stored.Hash, Raw: []byte{3}, MaxFee: big.NewInt(4),
		MaxPriorityFee: big.NewInt(5), CreatedAt: at(6), LastError: "no", Paused: true,
	}
	requireFull(t, a)
	require.Equal(t, a, *a.Row().Attempt())
}

// Operators' scripts read these names and formats.
func TestRow_AsJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(stored.Row())
	require.NoError(t, err)
	require.Equal(t, `{"id":"018bcfe5-6800-7000-8000-000000000001","status":"mined","statusReason":"reason","intent":"cancel","kind":"transaction",`+
		`"caller":"alice","target":"pool","key":"0xabcdef0000000000000000000000000000000002","nonce":11,`+
		`"hash":"0x0000000000000000000000000000000000000000000000000000000000000013","attempts":12,"revision":9,`+
		`"to":"0xabcdef0000000000000000000000000000000001","value":"2","data":"0x03","gasLimit":4,"speed":"fast","gasPrice":"5","maxFeePerGas":"6",`+
		`"maxPriorityFeePerGas":"7","validUntil":"2023-11-14T22:13:28.123Z","method":"fill","orderbook":"book","trader":"trader","requestId":"r-1",`+
		`"traceId":"t-1","blockNumber":16,"blockHash":"0x0000000000000000000000000000000000000000000000000000000000000017","gasUsed":18,`+
		`"effectiveGasPrice":"19","createdAt":"2023-11-14T22:13:40.123Z","updatedAt":"2023-11-14T22:13:41.123Z","sentAt":"2023-11-14T22:13:42.123Z",`+
		`"minedAt":"2023-11-14T22:13:43.123Z","confirmedAt":"2023-11-14T22:13:44.123Z"}`, string(text))
	text, err = json.Marshal((&Transaction{CreatedAt: at(0), UpdatedAt: at(1)}).Row())
	require.NoError(t, err)
	require.Equal(t, `{"id":"00000000-0000-0000-0000-000000000000","status":"","statusReason":"","intent":"","kind":"","caller":"","target":"",`+
		`"key":null,"nonce":null,"hash":null,"attempts":0,"revision":0,"to":null,"value":"0","data":"0x","gasLimit":0,"speed":"","gasPrice":null,`+
		`"maxFeePerGas":null,"maxPriorityFeePerGas":null,"validUntil":null,"method":"","orderbook":"","trader":"","requestId":"","traceId":"",`+
		`"blockNumber":null,"blockHash":null,"gasUsed":null,"effectiveGasPrice":null,"createdAt":"2023-11-14T22:13:20.123Z",`+
		`"updatedAt":"2023-11-14T22:13:21.123Z","sentAt":null,"minedAt":null,"confirmedAt":null}`, string(text))
}

// A copy of earlier contents replaces all of the contents, also by nothing.
func TestTimestamp_Null_ReplacesATime(t *testing.T) {
	t.Parallel()
	row := stored.Row()
	require.NoError(t, json.Unmarshal([]byte(`{"to": null, "value": "8", "validUntil": null, "createdAt": "2026-11-23T17:21:08.123456+00:00"}`), row))
	tx := row.Transaction()
	require.Nil(t, tx.To)
	require.Zero(t, tx.ValidUntil)
	require.Equal(t, big.NewInt(8), tx.Value)
	require.True(t, tx.CreatedAt.Equal(time.Date(2026, 11, 23, 17, 21, 8, 123_456_000, time.UTC)))
	require.EqualError(t, new(Timestamp).Scan("infinity"), "infinity is not a time")
}
