package evm

import (
	"encoding/json"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

func TestRevertData_TraceOrCall(t *testing.T) {
	t.Parallel()
	const (
		reverted = `{"code":3,"message":"execution reverted","data":"0x5592f1b2"}`
		none     = `{"code":-32601,"message":"the method does not exist"}`
		mined    = `{"from":"0x0000000000000000000000000000000000000001","to":"0x0000000000000000000000000000000000000002","value":"0x1","input":"0x03","gas":"0x4"}`
	)
	for name, test := range map[string]struct {
		trace, traceErr, call, callErr string
		want                           []byte
		fails                          bool
	}{
		"trace":                        {trace: `{"error":"execution reverted","output":"0x5592f1b2"}`, callErr: none, want: []byte{0x55, 0x92, 0xf1, 0xb2}},
		"no trace":                     {traceErr: none, callErr: reverted, want: []byte{0x55, 0x92, 0xf1, 0xb2}},
		"trace without data":           {trace: `{"error":"out of gas"}`, callErr: reverted, want: []byte{0x55, 0x92, 0xf1, 0xb2}},
		"call passes":                  {traceErr: none, call: `"0x01"`},
		"neither":                      {traceErr: none, callErr: none, fails: true},
		"malformed trace, call passes": {trace: `"0x"`, call: `"0x01"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.always("debug_traceTransaction", test.trace, test.traceErr)
			f.always("eth_getTransactionByHash", mined, "")
			f.on("eth_call", func(params []json.RawMessage) (string, string) {
				require.JSONEq(t, `{"from":"0x0000000000000000000000000000000000000001","to":"0x0000000000000000000000000000000000000002","value":"0x1","data":"0x03","gas":"0x4"}`, string(params[0]))
				require.JSONEq(t, `{"blockHash":"`+common.Hash{5}.Hex()+`","requireCanonical":true}`, string(params[1]))
				return test.call, test.callErr
			})
			c := open(t, Config{Endpoints: []string{f.url()}})
			data, err := c.RevertData(t.Context(), common.Hash{4}, common.Hash{5})
			require.Equal(t, test.fails, err != nil, "%v", err)
			require.Equal(t, test.want, data)
		})
	}
}
