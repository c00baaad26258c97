package httpapi

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/ozapi"
)

const poolRPC = "/api/v1/relayers/pool-1/rpc"

// Nodes are asked with arrays. What is no array fails its own call, and no other of the batch.
func TestParametersAreAnArray(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, params := range []string{`{}`, `{"to":"0x1"}`, `1`, `"[]"`, `true`} {
		w := a.do("POST", poolRPC, `[{"jsonrpc":"2.0","id":1,"method":"eth_call","params":`+params+`},{"jsonrpc":"2.0","id":2,"method":"eth_call","params":[]}]`)
		require.Equal(t, 200, w.Code, w.Body)
		var answers []ozapi.RPCResponse
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answers))
		require.Equal(t, &ozapi.RPCError{Code: ozapi.InvalidParams, Message: "invalid params", Description: "params must be an array"}, answers[0].Error)
		require.Nil(t, answers[1].Error)
	}
	require.NotContains(t, string(a.handler.openAPI), `"type":["array","object","null"]`)
	require.Equal(t, 200, a.do("POST", poolRPC, `{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":null}`).Code)
}
