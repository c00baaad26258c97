package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

const poolRPC = "/api/v1/relayers/pool-1/rpc"

func TestRPC_ParametersAreNoArray_FailsOnlyThatCall(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, params := range []string{`{}`, `{"to":"0x1"}`, `1`, `"[]"`, `true`} {
		w := a.do("POST", poolRPC, `[{"jsonrpc":"2.0","id":1,"method":"eth_call","params":`+params+`},{"jsonrpc":"2.0","id":2,"method":"eth_call","params":[]}]`)
		require.Equal(t, 200, w.Code, w.Body)
		var answers []openzeppelin.RPCResponse
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answers))
		require.Equal(t, &relayer.RPCError{Code: openzeppelin.InvalidParams, Message: "invalid params", Description: "params must be an array"}, answers[0].Error)
		require.Nil(t, answers[1].Error)
	}
	require.NotContains(t, string(a.handler.openAPI), `"type":["array","object","null"]`)
	require.Equal(t, 200, a.do("POST", poolRPC, `{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":null}`).Code)
}

// The responses of a batch are bounded together: a call beyond the bound gets an error, and no node is called.
func TestRPC_BatchResponseTooLarge_LaterCallsFail(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.rpcResult = json.RawMessage(`"` + strings.Repeat("0", 3<<20) + `"`)
	one := `{"jsonrpc":"2.0","id":"x","method":"eth_getLogs","params":[{}]}`
	w := a.do("POST", poolRPC, "["+strings.Repeat(one+",", 9)+one+"]")
	require.Equal(t, 200, w.Code)
	require.Less(t, w.Body.Len(), maxAnswers+10_000)
	var answers []openzeppelin.RPCResponse
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answers))
	require.Len(t, answers, 10)
	for i, answer := range answers {
		require.Equal(t, `"x"`, string(answer.ID))
		if i < 2 {
			require.Nil(t, answer.Error)
			continue
		}
		require.Equal(t, relayer.RPCTooLarge, answer.Error.Code)
		require.Empty(t, answer.Result)
	}
	require.Equal(t, 3, a.calls)
}

func TestHandler_MalformedQuery_BadRequest(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, path := range []string{"/api/v1/relayers", poolTransactions, "/api/v1/relayers/pool-1/status"} {
		for _, query := range []string{"page=%zz", "page=1;per_page=2", "status=mined&trader=%"} {
			e := read(t, a.serve("GET", path+"?"+query, ""), 400)
			require.Contains(t, *e.Error, "the query string is malformed", query)
		}
	}
}
