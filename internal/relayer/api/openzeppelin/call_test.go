package openzeppelin

import (
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func TestDecodeRPC(t *testing.T) {
	t.Parallel()
	calls, batch, err := DecodeRPC([]byte(` {"jsonrpc":"2.0","method":"eth_call","params":[{"to":"0x1"},"latest"],"id":18446744073709551616} `))
	require.NoError(t, err)
	require.False(t, batch)
	require.Equal(t, []RPCRequest{{Version: "2.0", Method: "eth_call", Params: []byte(`[{"to":"0x1"},"latest"]`), ID: []byte("18446744073709551616")}}, calls)

	calls, batch, err = DecodeRPC([]byte(`[{"jsonrpc":"2.0","method":"a","id":"x"},{"method":"b","jsonrpc":"2.0","params":null,"id":null}]`))
	require.NoError(t, err)
	require.True(t, batch)
	require.Len(t, calls, 2)
	require.Equal(t, `"x"`, string(calls[0].ID))
	require.Nil(t, calls[0].Params)
	require.Equal(t, "null", string(calls[1].ID))

	for body, problem := range map[string]string{
		`1`: "must be a JSON-RPC call", `[]`: "empty", `[1]`: "must be a JSON object", `[{"jsonrpc":"2.0"}]`: "method: is missing",
		`{"method":"a"}`: "jsonrpc", `{"jsonrpc":"1.0","method":"a"}`: "jsonrpc", `{"jsonrpc":"2.0","method":1}`: "method",
		`{"jsonrpc":"2.0","method":"a","id":{}}`:   "id",
		`{"jsonrpc":"2.0","method":"a","id":true}`: "id", `{`: "not JSON", `{"jsonrpc":"2.0","method":"a","method":"a"}`: "twice",
		`[` + strings.Repeat(`{"jsonrpc":"2.0","method":"a"},`, 50) + `{"jsonrpc":"2.0","method":"a"}]`: "at most 50",
	} {
		_, _, err := DecodeRPC([]byte(body))
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid, body)
		require.ErrorContains(t, err, problem, body)
	}
}

func TestDecode_SignRequest_IsExact(t *testing.T) {
	t.Parallel()
	message, err := DecodeSign([]byte(`{"message":"h\u00e9 \ud83d\ude00"}`))
	require.NoError(t, err)
	require.Equal(t, "hé 😀", message)
	message, err = DecodeSign([]byte(`{"message":""}`))
	require.NoError(t, err)
	require.Empty(t, message)
	for _, body := range []string{`{}`, `[]`, `{"message":1}`, `{"message":null}`, `{"message":"\udc00"}`} {
		_, err = DecodeSign([]byte(body))
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid, body)
	}

	one, two := strings.Repeat("01", 32), strings.Repeat("02", 32)
	domain, data, err := DecodeSignTypedData([]byte(`{"domain_separator":"0x` + one + `","hash_struct_message":"` + two + `"}`))
	require.NoError(t, err)
	require.Equal(t, common.HexToHash(one), domain)
	require.Equal(t, common.HexToHash(two), data)
	for _, body := range []string{
		`{}`, `1`, `{"domain_separator":"` + one + `"}`, `{"hash_struct_message":"` + one + `"}`,
		`{"domain_separator":"` + one + `","hash_struct_message":"01"}`, `{"domain_separator":1,"hash_struct_message":"` + one + `"}`,
	} {
		_, _, err = DecodeSignTypedData([]byte(body))
		var invalid *relayer.InvalidError
		require.ErrorAs(t, err, &invalid, body)
	}
}

// FuzzDecodeOthers checks that the smaller decoders reject or accept, and never panic.
func FuzzDecodeOthers(f *testing.F) {
	f.Add([]byte(`[{"jsonrpc":"2.0","method":"a","params":[1,{"x":"]"}],"id":"x"}]`))
	f.Add([]byte(`{"message":"\\\""}`))
	f.Add([]byte(`{"policies":{"min_balance":1},"paused":true}`))
	f.Add([]byte(`{"domain_separator":"00","hash_struct_message":"0x"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var invalid *relayer.InvalidError
		calls, _, err := DecodeRPC(in)
		require.True(t, err == nil && len(calls) > 0 || err != nil)
		for _, decode := range []func() error{
			func() error { return err },
			func() error { _, err := DecodeSign(in); return err },
			func() error { _, _, err := DecodeSignTypedData(in); return err },
			func() error { _, err := DecodePatch(in); return err },
		} {
			if err := decode(); err != nil {
				require.ErrorAs(t, err, &invalid)
			}
		}
	})
}
