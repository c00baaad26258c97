package openzeppelin

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	to      = "0x742d35Cc6634C0532925a3b844Bc454e4438f44e"
	maxText = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
)

var maxAmount, _ = new(big.Int).SetString(maxText, 10)

// body returns a request with the given fields, and the required ones.
func body(fields string) string {
	for _, need := range []string{`"to":"` + to + `"`, `"value":0`} {
		name, _, _ := strings.Cut(need, ":")
		if !strings.Contains(fields, name+":") && !strings.Contains(fields, name+" ") {
			fields = need + "," + fields
		}
	}
	return "{" + strings.TrimSuffix(fields, ",") + "}"
}

func TestDecodeRequest_AllFields(t *testing.T) {
	t.Parallel()
	r, err := DecodeRequest([]byte(` {
		"to": "` + to + `", "value": "0x10", "data": "0xa9059cbb00ff", "gas_limit": 50000,
		"max_fee_per_gas": "30000000000", "max_priority_fee_per_gas": 1000000000, "gas_price": null,
		"valid_until": "2030-01-02T15:04:05.5+02:00", "somebody_elses": [{"a": ["}", "\"]"]}],
		"metadata": {"orderbook": "0xbook", "trader": "z\u00fcrich", "request_id": "r-1", "trace_id": null}
	} `))
	require.NoError(t, err)
	require.Equal(t, relayer.Request{
		To: new(common.HexToAddress(to)), Value: big.NewInt(16), Data: common.FromHex("0xa9059cbb00ff"), GasLimit: 50000,
		MaxFee: big.NewInt(30_000_000_000), MaxPriorityFee: big.NewInt(1_000_000_000),
		ValidUntil: time.Date(2030, 1, 2, 13, 4, 5, 500_000_000, time.UTC),
		Metadata:   relayer.Metadata{Method: "0xa9059cbb", Orderbook: "0xbook", Trader: "zürich", RequestID: "r-1"},
	}, r)

	r, err = DecodeRequest([]byte(`{"value":0,"data":"6001"}`))
	require.NoError(t, err)
	require.Nil(t, r.To)
	require.Equal(t, relayer.Fast, r.Speed)
	require.Empty(t, r.Metadata.Method)

	r, err = DecodeReplacement([]byte(body(`"data":"0xa9059cbb00ff","metadata":{"trader":"t"}`)))
	require.NoError(t, err)
	require.Equal(t, relayer.Metadata{Trader: "t"}, r.Metadata, "a replacement gets no default metadata")
}

func TestDecodeRequest_Amounts_AreExact(t *testing.T) {
	t.Parallel()
	for literal, want := range map[string]string{
		"0": "0", `"0"`: "0", `"0x0"`: "0", `"0X00"`: "0", `"007"`: "7",
		"9007199254740993": "9007199254740993", "18446744073709551615": "18446744073709551615",
		"18446744073709551616": "18446744073709551616", "999999999999999999": "999999999999999999",
		`"0xffffffffffffffff"`: "18446744073709551615", `"0x10000000000000000"`: "18446744073709551616",
		maxText: maxText, `"` + maxText + `"`: maxText, `"0x` + strings.Repeat("f", 64) + `"`: maxText,
		`"0x0000` + strings.Repeat("F", 64) + `"`: maxText, `"` + strings.Repeat("0", 100) + `1"`: "1",
		`"\u0031"`: "1",
	} {
		for _, field := range []string{"value", "gas_price"} {
			r, err := DecodeRequest([]byte(body(`"` + field + `": ` + literal)))
			require.NoError(t, err, "%s %s", field, literal)
			got := r.Value
			if field == "gas_price" {
				got = r.GasPrice
			}
			require.Equal(t, want, got.String(), literal)
		}
	}
}

func TestDecodeRequest_Invalid_NamesField(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("9", 100_000)
	for _, c := range []struct{ body, field, problem string }{
		{body(`"value": 1e18`), "value", "without fraction or exponent"},
		{body(`"value": 1.0`), "value", "without fraction or exponent"},
		{body(`"value": "1e18"`), "value", "whole number"},
		{body(`"value": "1.0"`), "value", "whole number"},
		{body(`"value": -1`), "value", "negative"},
		{body(`"value": -0`), "value", "negative"},
		{body(`"value": "-1"`), "value", "negative"},
		{body(`"value": "+1"`), "value", "whole number"},
		{body(`"value": "1_000"`), "value", "whole number"},
		{body(`"value": "0x"`), "value", "whole number"},
		{body(`"value": "ff"`), "value", "whole number"},
		{body(`"value": "0xfg"`), "value", "whole number"},
		{body(`"value": "0x-1"`), "value", "whole number"},
		{body(`"value": ""`), "value", "whole number"},
		{body(`"value": " 1"`), "value", "whole number"},
		{body(`"value": "\u0000"`), "value", "NUL"},
		{body(`"value": true`), "value", "whole number"},
		{body(`"value": [1]`), "value", "whole number"},
		{body(`"value": {"a":1}`), "value", "whole number"},
		{body(`"value": 115792089237316195423570985008687907853269984665640564039457584007913129639936`), "value", "below 2^256"},
		{body(`"value": "0x1` + strings.Repeat("0", 64) + `"`), "value", "below 2^256"},
		{body(`"value": ` + long), "value", "below 2^256"},
		{body(`"value": "0x` + long + `"`), "value", "below 2^256"},
		{`{"to":"` + to + `"}`, "value", "missing"},
		{`{"to":"` + to + `","value":null}`, "value", "missing"},
		{`{"value":1}`, "to", "both missing"},
		{`{"value":1,"data":"0x","to":null}`, "to", "both missing"},
		{body(`"to": ""`), "to", "must be an address"},
		{body(`"to": 5`), "to", "must be a string"},
		{body(`"to": "0x742d35cc6634c0532925a3b844bc454e4438f44"`), "to", "must be an address"},
		{body(`"to": "0x742d35cc6634c0532925a3b844bc454e4438f44g"`), "to", "must be an address"},
		{body(`"to": "0x742D35Cc6634C0532925a3b844Bc454e4438f44e"`), "to", "checksum"},
		{body(`"data": "0x123"`), "data", "3 digits"},
		{body(`"data": "0xzz"`), "data", "must be hex"},
		{body(`"data": 1`), "data", "must be a string"},
		{body(`"gas_limit": 20999`), "gas_limit", "at least 21000"},
		{body(`"gas_limit": 0`), "gas_limit", "at least 21000"},
		{body(`"gas_limit": 18446744073709551616`), "gas_limit", "below 2^64"},
		{body(`"gas_limit": 30000.5`), "gas_limit", "whole number"},
		{body(`"speed": "slow"`), "speed", "must be one of [safeLow average fast fastest]"},
		{body(`"speed": 1`), "speed", "must be a string"},
		{body(`"gas_price": -1`), "gas_price", "negative"},
		{body(`"gas_price": 1, "speed": "fast"`), "speed", "mixed"},
		{body(`"gas_price": 1, "max_fee_per_gas": 2, "max_priority_fee_per_gas": 1`), "gas_price", "mixed"},
		{body(`"max_fee_per_gas": 2`), "max_priority_fee_per_gas", "missing"},
		{body(`"max_priority_fee_per_gas": 2`), "max_fee_per_gas", "missing"},
		{body(`"max_fee_per_gas": 1, "max_priority_fee_per_gas": 2`), "max_fee_per_gas", "below"},
		{body(`"valid_until": "tomorrow"`), "valid_until", "RFC 3339"},
		{body(`"valid_until": "2030-02-30T00:00:00Z"`), "valid_until", "RFC 3339"},
		{body(`"valid_until": 1893456000`), "valid_until", "must be a string"},
		{body(`"metadata": "x"`), "metadata", "must be an object"},
		{body(`"metadata": {"tradr": "x"}`), "metadata.tradr", "unknown"},
		{body(`"metadata": {"trader": 1}`), "metadata.trader", "must be a string"},
		{body(`"metadata": {"trader": "a\nb"}`), "metadata.trader", "control"},
		{body(`"metadata": {"trader": "a\u0000b"}`), "metadata.trader", "NUL"},
		{body(`"metadata": {"trader": "\ud800"}`), "metadata.trader", "surrogate"},
		{body(`"metadata": {"trader": "` + strings.Repeat("a", 257) + `"}`), "metadata.trader", "at most 256"},
		{body(`"metadata": {"trader": "a", "trader": "a"}`), "metadata.trader", "twice"},
		{body(`"value": 1, "value": 1`), "value", "twice"},
		{body(`"value": 1, "v\u0061lue": 1`), "value", "twice"},
		{body(`"x": 1, "x": 1`), "x", "twice"},
		{body(`"value": "0x+5"`), "value", "whole number"},
		{body(`"value": "0x-0"`), "value", "whole number"},
		{body(`"Data": "0x01"`), "Data", "must be written as data"},
		{body(`"GAS_LIMIT": null`), "GAS_LIMIT", "must be written as gas_limit"},
		{body(`"metadata": {"Trader": "x"}`), "metadata.Trader", "must be written as trader"},
		{body(`"x": ` + strings.Repeat("[", 40) + strings.Repeat("]", 40)), "", "nested deeper"},
		{body(`"x": ` + strings.Repeat("[", 400_000)), "", "not JSON"},
		{body(`"value": 1`) + "x", "", "not JSON"},
		{body(`"value": 1`) + "{}", "", "not JSON"},
		{body(`"value": 01`), "", "not JSON"},
		{body("\"metadata\": {\"trader\": \"\xff\"}"), "", "not UTF-8"},
		{body("\"metadata\": {\"trader\": \"\x00\"}"), "", "not JSON"},
		{"\ufeff" + body(`"value": 1`), "", "not JSON"},
		{"", "", "not JSON"}, {"null", "", "must be a JSON object"}, {"[]", "", "must be a JSON object"}, {`"x"`, "", "must be a JSON object"},
	} {
		_, err := DecodeRequest([]byte(c.body))
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid, "%.200s", c.body)
		require.Equal(t, c.field, invalid.Field, "%.200s: %v", c.body, err)
		require.Contains(t, err.Error(), c.problem, "%.200s", c.body)
		require.Less(t, len(err.Error()), 300)
	}
	var many strings.Builder
	for i := range 70 {
		fmt.Fprintf(&many, `,"f%d":1`, i)
	}
	_, err := DecodeRequest([]byte(body(many.String()[1:])))
	require.ErrorContains(t, err, "more than 64 fields")
}

func TestCanonicalHash_EqualMeaning_IsEqual(t *testing.T) {
	t.Parallel()
	lower := strings.ToLower(to)
	same := []string{
		`{"to":"` + to + `","value":1,"data":"0xAB"}`,
		`{"data":"ab","value":"1","to":"` + lower + `"}`,
		`{"to":"` + lower[2:] + `","value":"0x01","data":"0xab","speed":"fast","gas_price":null,"x":1}`,
		`{"to":"` + to + `","value":"0x1","data":"0xab","metadata":{"request_id":"2","trace_id":"3"}}`,
		`{"to":"` + to + `","value":1,"data":"0xab","valid_until":null,"metadata":{}}`,
	}
	hash := func(target, body string) [32]byte {
		r, err := DecodeRequest([]byte(body))
		require.NoError(t, err, body)
		return CanonicalHash(target, &r)
	}
	want := hash("pool", same[0])
	for _, body := range same {
		require.Equal(t, want, hash("POOL", body), body)
	}
	seen := map[[32]byte]string{want: same[0], hash("pool2", same[0]): "another target"}
	for _, other := range []string{
		`{"to":"` + to + `","value":2,"data":"0xab"}`,
		`{"value":1,"data":"0xab"}`,
		`{"to":"0x0000000000000000000000000000000000000001","value":1,"data":"0xab"}`,
		`{"to":"` + to + `","value":1}`,
		`{"to":"` + to + `","value":1,"data":"0xab00"}`,
		`{"to":"` + to + `","value":1,"data":"0xab","speed":"average"}`,
		`{"to":"` + to + `","value":1,"data":"0xab","gas_limit":21000}`,
		`{"to":"` + to + `","value":1,"data":"0xab","gas_price":0}`,
		`{"to":"` + to + `","value":1,"data":"0xab","max_fee_per_gas":0,"max_priority_fee_per_gas":0}`,
		`{"to":"` + to + `","value":1,"data":"0xab","max_fee_per_gas":1,"max_priority_fee_per_gas":0}`,
		`{"to":"` + to + `","value":1,"data":"0xab","valid_until":"2030-01-02T15:04:05Z"}`,
		`{"to":"` + to + `","value":1,"data":"0xab","valid_until":"2030-01-02T15:04:05.1Z"}`,
		`{"to":"` + to + `","value":1,"data":"0xab","metadata":{"method":"ab"}}`,
		`{"to":"` + to + `","value":1,"data":"0xab","metadata":{"orderbook":"ab"}}`,
		`{"to":"` + to + `","value":1,"data":"0xab","metadata":{"trader":"ab"}}`,
	} {
		h := hash("pool", other)
		require.NotContains(t, seen, h, "%s and %s", other, seen[h])
		seen[h] = other
	}
	// The form is stored, so a change of it must be deliberate.
	require.Equal(t, common.HexToHash("0xdb156be81bfb695c2cf6aabb0a9b58dd932e33c7d70a155476243645b28a82c6"), common.Hash(hash("pool", same[0])))
}

func TestDecodePatch(t *testing.T) {
	t.Parallel()
	p, err := DecodePatch([]byte(`{"paused":true,"name":"x","policies":{"min_balance":"` + maxText + `"}}`))
	require.NoError(t, err)
	require.True(t, *p.Paused)
	require.Equal(t, "x", *p.Name)
	require.Equal(t, maxAmount, p.MinBalance.Value)

	p, err = DecodePatch([]byte(`{"name":null,"policies":{"min_balance":null}}`))
	require.NoError(t, err)
	require.Nil(t, p.Paused)
	require.Nil(t, p.Name)
	require.True(t, p.MinBalance.Set)
	require.Nil(t, p.MinBalance.Value)

	p, err = DecodePatch([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, relayer.Patch{}, p)

	for body, field := range map[string]string{
		`{"paused":null}`: "paused", `{"paused":"true"}`: "paused", `{"name":1}`: "name", `{"name":"a\u0007"}`: "name",
		`{"policies":1}`: "policies", `{"policies":{"gas_price_cap":1}}`: "policies.gas_price_cap",
		`{"policies":{"min_balance":-1}}`: "policies.min_balance", `{"notification_id":"x"}`: "notification_id",
		`{"custom_rpc_urls":[]}`: "custom_rpc_urls", `{"network":"x"}`: "network", `[]`: "", `{`: "",
		`{"paused":true,"paused":true}`: "paused",
	} {
		_, err := DecodePatch([]byte(body))
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid, body)
		require.Equal(t, field, invalid.Field, body)
	}
}

// FuzzDecodeRequest checks that an accepted request is valid, within its bounds, and has the same meaning once it is
// written plainly.
func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range []string{
		body(`"value": 1`), body(`"value": "0xff","data":"0x00"`), body(`"metadata":{"trader":"\u00e9"}`),
		body(`"max_fee_per_gas": 2, "max_priority_fee_per_gas": "1"`), body(`"speed":"safeLow","valid_until":"2030-01-02T15:04:05Z"`),
		body(`"x": [[{"\"": "]"}]]`), "{", "\"", `{"a`, "{\"\\\"", "{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := DecodeRequest(in)
		if err != nil {
			var invalid *relayer.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, relayer.Request{}, r)
			return
		}
		require.True(t, json.Valid(in))
		for _, n := range []*big.Int{r.Value, r.GasPrice, r.MaxFee, r.MaxPriorityFee} {
			require.True(t, n == nil || n.Sign() >= 0 && n.BitLen() <= 256)
		}
		again, err := DecodeRequest(plain(t, &r))
		require.NoError(t, err)
		require.Equal(t, CanonicalHash("x", &r), CanonicalHash("x", &again))
	})
}

// plain writes a request as a client of OpenZeppelin's would.
func plain(t *testing.T, r *relayer.Request) []byte {
	out := map[string]any{"value": r.Value, "data": hex0x(r.Data), "metadata": map[string]string{
		"method": r.Metadata.Method, "orderbook": r.Metadata.Orderbook, "trader": r.Metadata.Trader,
	}}
	if r.To != nil {
		out["to"] = r.To.Hex()
	}
	if r.GasLimit > 0 {
		out["gas_limit"] = r.GasLimit
	}
	if r.Speed != "" {
		out["speed"] = r.Speed
	}
	if !r.ValidUntil.IsZero() {
		out["valid_until"] = r.ValidUntil.Format(time.RFC3339Nano)
	}
	for name, n := range map[string]*big.Int{
		"gas_price": r.GasPrice, "max_fee_per_gas": r.MaxFee, "max_priority_fee_per_gas": r.MaxPriorityFee,
	} {
		if n != nil {
			out[name] = n.String()
		}
	}
	b, err := json.Marshal(out)
	require.NoError(t, err)
	return b
}
