package openzeppelin

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
)

func TestFromTransaction_AbsentFields_AreNull(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	created := time.Date(2026, 11, 5, 10, 0, 0, 123_456_789, time.FixedZone("", 3600))
	got, err := json.Marshal(FromTransaction(&relayer.Transaction{
		ID: id, Status: relayer.Allocated, CreatedAt: created, Target: "pool-1",
		Request: relayer.Request{Value: new(big.Int), To: new(common.HexToAddress(to)), Speed: relayer.Fast},
	}))
	require.NoError(t, err)
	require.Equal(t, `{"id":"01890a5d-ac96-774b-bcce-b302099a8057","hash":null,"status":"pending","status_reason":null,`+
		`"created_at":"2026-11-05T09:00:00.123456Z","sent_at":null,"confirmed_at":null,"gas_price":null,"gas_limit":null,`+
		`"nonce":null,"value":"0x0","from":"","to":"`+to+`","relayer_id":"pool-1","data":null,"max_fee_per_gas":null,`+
		`"max_priority_fee_per_gas":null,"signature":null,"speed":"fast","is_canceled":false}`, string(got))

	got, err = json.Marshal(FromTransaction(&relayer.Transaction{
		ID: id, Status: relayer.Confirmed, StatusReason: "because", CreatedAt: created, SentAt: created, ConfirmedAt: created,
		Target: "pool-1", Intent: relayer.IntentCancel, Attempts: 2, Nonce: new(uint64(0)), From: common.HexToAddress(to),
		Hash: new(common.HexToHash("0xab")),
		Request: relayer.Request{
			Value: maxAmount, Data: []byte{1, 2}, GasLimit: 21000, GasPrice: maxAmount, MaxFee: big.NewInt(2), MaxPriorityFee: new(big.Int),
		},
	}))
	require.NoError(t, err)
	require.Equal(t, `{"id":"01890a5d-ac96-774b-bcce-b302099a8057",`+
		`"hash":"0x00000000000000000000000000000000000000000000000000000000000000ab","status":"confirmed","status_reason":"because",`+
		`"created_at":"2026-11-05T09:00:00.123456Z","sent_at":"2026-11-05T09:00:00.123456Z","confirmed_at":"2026-11-05T09:00:00.123456Z",`+
		`"gas_price":"`+maxText+`","gas_limit":21000,"nonce":0,`+
		`"value":"0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff","from":"`+to+`","to":null,"relayer_id":"pool-1",`+
		`"data":"0x0102","max_fee_per_gas":"2","max_priority_fee_per_gas":"0","signature":null,"speed":null,"is_canceled":true}`, string(got))
}

func TestFromTransaction_RequestWithoutFees_ShowsOfferedFees(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request           relayer.Request
		offered, tip      *big.Int
		price, fee, prior string
	}{
		"nothing yet":      {},
		"dynamic":          {offered: big.NewInt(20), tip: new(big.Int), fee: "20", prior: "0"},
		"legacy":           {offered: big.NewInt(20), price: "20"},
		"price was named":  {request: relayer.Request{GasPrice: big.NewInt(7)}, offered: big.NewInt(20), price: "7"},
		"fees were named":  {request: relayer.Request{MaxFee: big.NewInt(7), MaxPriorityFee: big.NewInt(1)}, offered: big.NewInt(20), tip: big.NewInt(2), fee: "7", prior: "1"},
		"speed was chosen": {request: relayer.Request{Speed: relayer.Fast}, offered: big.NewInt(20), tip: big.NewInt(2), fee: "20", prior: "2"},
	} {
		got := FromTransaction(&relayer.Transaction{Request: c.request, OfferedFee: c.offered, OfferedTip: c.tip})
		require.Equal(t, []*string{orNil(c.price), orNil(c.fee), orNil(c.prior)}, []*string{got.GasPrice, got.MaxFeePerGas, got.MaxPriorityFeePerGas}, name)
	}
}

// A transaction posted to a key is from that key; one posted to a pool has no from yet.
func TestTransaction_QueuedForAKey_IsFromIt(t *testing.T) {
	t.Parallel()
	key := common.HexToAddress(to)
	for _, c := range []struct {
		target string
		chosen common.Address
		want   string
	}{
		{"pool-1", common.Address{}, ""},
		{"pool-1", key, key.Hex()},
		{strings.ToLower(to), common.Address{}, key.Hex()},
		{strings.ToLower(to), key, key.Hex()},
	} {
		require.Equal(t, c.want, FromTransaction(&relayer.Transaction{Target: c.target, From: c.chosen}).From)
	}
}

func TestFromTransaction_SignedAllocated_IsSent(t *testing.T) {
	t.Parallel()
	for attempts, want := range []relayer.APIStatus{relayer.APIPending, relayer.APISent, relayer.APISent} {
		require.Equal(t, want, FromTransaction(&relayer.Transaction{Status: relayer.Allocated, Attempts: attempts}).Status)
	}
}

func TestNewSignature_IsSplit(t *testing.T) {
	t.Parallel()
	var sig [65]byte
	sig[0], sig[32], sig[64] = 1, 2, 1
	got := NewSignature(sig)
	require.Equal(t, uint8(28), got.V)
	require.Equal(t, got.R+got.S+"1c", got.Sig)
	require.Equal(t, "01", got.R[:2])
	require.Equal(t, "02", got.S[:2])
	sig[64] = 27
	require.Equal(t, uint8(27), NewSignature(sig).V)
}

// Metadata is returned as posted, with the defaults; a transaction without any has no such field.
func TestFromTransaction_ReturnsMetadata(t *testing.T) {
	t.Parallel()
	r, err := DecodeRequest([]byte(`{"to":"0x0000000000000000000000000000000000000001","value":0,"data":"0xaabbccdd",
		"metadata":{"orderbook":"main","trader":"t-1","request_id":"r-1"}}`))
	require.NoError(t, err)
	got, err := json.Marshal(FromTransaction(&relayer.Transaction{Request: r}))
	require.NoError(t, err)
	var fields struct {
		Metadata json.RawMessage `json:"metadata"`
	}
	require.NoError(t, json.Unmarshal(got, &fields))
	require.JSONEq(t, `{"method":"0xaabbccdd","orderbook":"main","trader":"t-1","request_id":"r-1"}`, string(fields.Metadata))

	got, err = json.Marshal(FromTransaction(&relayer.Transaction{}))
	require.NoError(t, err)
	require.NotContains(t, string(got), "metadata")
}
