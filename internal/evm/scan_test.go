package evm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"
)

func TestParseUintAndParseBig_AreExact(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		`"0x0"`: 0, `"0x7"`: 7, `"0X1f"`: 31, `"0xAbC"`: 0xabc, `"0x0007"`: 7, `"0xffffffffffffffff"`: 1<<64 - 1,
	} {
		n, err := parseUint([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, n)
		b, err := parseBig([]byte(text))
		require.NoError(t, err)
		require.Equal(t, new(big.Int).SetUint64(want), b)
	}
	for _, text := range []string{``, `""`, `"0x"`, `"1"`, `1`, `null`, `"0xg"`, `"0x1`, `0x1"`, `"0x 1"`, `"-0x1"`, `"0x10000000000000000"`} {
		_, err := parseUint([]byte(text))
		require.ErrorIs(t, err, errMalformed, text)
	}
	most := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	b, err := parseBig(fmt.Appendf(nil, `"%#x"`, most))
	require.NoError(t, err)
	require.Equal(t, most, b)
	_, err = parseBig(fmt.Appendf(nil, `"%#x"`, new(big.Int).Add(most, big.NewInt(1))))
	require.ErrorIs(t, err, errMalformed)
	_, err = parseHash([]byte(`"0x01"`))
	require.ErrorIs(t, err, errMalformed)
}

func FuzzWalkAgreesWithTheStandardLibrary(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `[]`, `{"a":1}`, `{"a":{"b":["}","\"]"]},"c":null}`, `[1,"\\",{"x":[]}]`, `[1,]`, `{"a":1,}`, `{"a"}`, `[1 2]`,
		`[[[`, `"`, `{"a":"b\\\"c","d":-1.5e3 }`, ` [ true , false ] `, `[]]`, `{"a":}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var object map[string]json.RawMessage
		got := map[string]string{}
		err := fields(data, func(key string, value []byte) error {
			got[key] = string(value)
			return nil
		})
		if json.Unmarshal(data, &object) == nil && object != nil {
			require.NoError(t, err)
			if !bytes.ContainsAny(data, `\`) { // keys are not unescaped
				for key, value := range object {
					if raw, ok := got[key]; ok { // otherwise it was not UTF-8
						require.Equal(t, string(value), raw)
					}
				}
			}
		}
		var array []json.RawMessage
		var values []string
		err = elements(data, func(value []byte) error {
			values = append(values, string(value))
			return nil
		})
		if json.Unmarshal(data, &array) == nil && array != nil {
			require.NoError(t, err)
			require.Len(t, values, len(array))
			for i := range array {
				require.Equal(t, string(array[i]), values[i])
			}
		}
		_, _ = parseHeader(data)
		_, _ = parseReceipt(data)
	})
}

// receiptsJSON returns an answer to eth_getBlockReceipts with n receipts of two logs each.
func receiptsJSON(n int) []byte {
	log := fmt.Sprintf(`{"address":"0x%040x","topics":["0x%064x","0x%064x","0x%064x"],"data":"0x%0128x","blockNumber":"0x64",`+
		`"transactionHash":"0x%064x","transactionIndex":"0x0","blockHash":"0x%064x","logIndex":"0x0","removed":false}`, 1, 2, 3, 4, 5, 6, 7)
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"blockHash":"0x%064x","blockNumber":"0x64","contractAddress":null,"cumulativeGasUsed":"0x5208",`+
			`"effectiveGasPrice":"0x3b9aca07","from":"0x%040x","gasUsed":"0x5208","logs":[%s,%s],"logsBloom":"0x%0512x","status":"0x1",`+
			`"to":"0x%040x","transactionHash":"0x%064x","transactionIndex":"%#x","type":"0x2"}`, 7, i, log, log, 0, 1, i, i)
	}
	b.WriteByte(']')
	return b.Bytes()
}

func TestParseReceipt_FieldMissing_Fails(t *testing.T) {
	t.Parallel()
	var receipts []Receipt
	require.NoError(t, elements(receiptsJSON(3), func(b []byte) error {
		r, err := parseReceipt(b)
		receipts = append(receipts, r)
		return err
	}))
	require.Equal(t, Receipt{
		TxHash: common.Hash{31: 2}, BlockHash: common.Hash{31: 7}, BlockNumber: 100, Index: 2, Succeeded: true, GasUsed: 21000,
		GasPrice: big.NewInt(1e9 + 7),
	}, receipts[2])
	text := string(receiptsJSON(1))
	text = text[1 : len(text)-1]
	for _, field := range []string{"blockHash", "blockNumber", "gasUsed", "status", "transactionHash", "transactionIndex"} {
		_, err := parseReceipt([]byte(strings.ReplaceAll(text, `,"`+field+`"`, `,"x`+field+`"`)))
		if field == "blockHash" {
			_, err = parseReceipt([]byte(strings.Replace(text, `{"blockHash"`, `{"x"`, 1)))
		}
		require.ErrorIs(t, err, errMalformed, field)
	}
}

func BenchmarkReceipts(b *testing.B) {
	text := receiptsJSON(1000)
	b.Run("scanned", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			err := elements(text, func(one []byte) error {
				_, err := parseReceipt(one)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			var receipts []struct {
				TransactionHash, BlockHash                                        common.Hash
				BlockNumber, TransactionIndex, Status, GasUsed, EffectiveGasPrice string
			}
			if err := json.Unmarshal(text, &receipts); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncodeSends(b *testing.B) {
	calls := make([]call, 100)
	for i := range calls {
		calls[i] = call{method: "eth_sendRawTransaction", params: []any{hexutil.Bytes(make([]byte, 120))}}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encode(calls, true); err != nil {
			b.Fatal(err)
		}
	}
}
