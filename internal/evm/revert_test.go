package evm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

const (
	// notOwner is the data of a revert with the text "not the owner".
	notOwner = "0x08c379a0" +
		"0000000000000000000000000000000000000000000000000000000000000020" +
		"000000000000000000000000000000000000000000000000000000000000000d" +
		"6e6f7420746865206f776e657200000000000000000000000000000000000000"
	// overflow is the data of a panic of arithmetic.
	overflow = "0x4e487b71" + "0000000000000000000000000000000000000000000000000000000000000011"
	// customError is the data of an error with one argument.
	customError = "0x5592f1b2" + "0000000000000000000000000000000000000000000000000000000000000001"
)

// clientReverts are the errors for a call that a contract reverts, as clients report them.
var clientReverts = map[string]struct {
	err    string
	reason string
	data   string
}{
	"geth":                   {`{"code":3,"message":"execution reverted: not the owner","data":"` + notOwner + `"}`, "not the owner", notOwner},
	"geth without data":      {`{"code":-32000,"message":"execution reverted"}`, "", ""},
	"geth, a limit's words":  {`{"code":3,"message":"execution reverted: over rate limit"}`, "over rate limit", ""},
	"geth, a batch's words":  {`{"code":3,"message":"execution reverted: batch too large"}`, "batch too large", ""},
	"geth, a lack's words":   {`{"code":3,"message":"execution reverted: insufficient funds"}`, "insufficient funds", ""},
	"Hardhat":                {`{"code":-32603,"message":"Error: VM Exception while processing transaction: reverted with reason string 'not the owner'","data":{"message":"Error: VM Exception while processing transaction: reverted with reason string 'not the owner'","data":"` + notOwner + `"}}`, "not the owner", notOwner},
	"Hardhat, words only":    {`{"code":-32603,"message":"Error: VM Exception while processing transaction: reverted with reason string 'not the owner'"}`, "not the owner", ""},
	"Hardhat, panic":         {`{"code":-32603,"message":"Error: VM Exception while processing transaction: reverted with panic code 0x11 (Arithmetic operation overflowed outside of an unchecked block)","data":{"data":"` + overflow + `"}}`, "arithmetic underflow or overflow", overflow},
	"Hardhat, custom error":  {`{"code":-32603,"message":"Error: VM Exception while processing transaction: reverted with custom error 'NotOwner(1)'","data":{"data":"` + customError + `"}}`, "custom error 0x5592f1b2", customError},
	"Hardhat, custom, words": {`{"code":-32603,"message":"Error: VM Exception while processing transaction: reverted with custom error 'NotOwner(1)'"}`, "custom error 'NotOwner(1)'", ""},
	"Hardhat without reason": {`{"code":-32603,"message":"Error: Transaction reverted without a reason string","data":{"data":"0x"}}`, "", ""},
	"Hardhat, no contract":   {`{"code":-32603,"message":"Error: Transaction reverted: function call to a non-contract account","data":{"data":"0x"}}`, "function call to a non-contract account", ""},
	"Ganache 7":              {`{"code":-32000,"message":"VM Exception while processing transaction: revert not the owner","data":{"hash":"0x` + fmt.Sprintf("%064x", 1) + `","programCounter":5,"result":"` + notOwner + `","reason":"not the owner","message":"revert"}}`, "not the owner", notOwner},
	"Ganache 6":              {`{"code":-32000,"message":"VM Exception while processing transaction: revert not the owner","data":{"stack":"at x","name":"c","0x` + fmt.Sprintf("%064x", 1) + `":{"error":"revert","program_counter":5,"return":"` + notOwner + `","reason":"not the owner"}}}`, "not the owner", notOwner},
	"Ganache, words only":    {`{"code":-32000,"message":"VM Exception while processing transaction: revert not the owner"}`, "not the owner", ""},
	"Moonbeam":               {`{"code":-32603,"message":"VM Exception while processing transaction: revert not the owner","data":"` + notOwner + `"}`, "not the owner", notOwner},
	"Moonbeam without":       {`{"code":-32603,"message":"VM Exception while processing transaction: revert"}`, "", ""},
	"Parity":                 {`{"code":-32015,"message":"VM execution error.","data":"Reverted ` + notOwner + `"}`, "not the owner", notOwner},
	"Parity without reason":  {`{"code":-32015,"message":"VM execution error.","data":"Reverted 0x"}`, "", ""},
	"Nethermind":             {`{"code":-32015,"message":"VM execution error.","data":"revert"}`, "", ""},
	"Nethermind, data":       {`{"code":-32015,"message":"execution reverted: not the owner","data":"` + notOwner + `"}`, "not the owner", notOwner},
	"Besu":                   {`{"code":-32000,"message":"Execution reverted: not the owner","data":"` + notOwner + `"}`, "not the owner", notOwner},
	"Hedera":                 {`{"code":3,"message":"execution reverted: CONTRACT_REVERT_EXECUTED","data":"` + customError + `"}`, "custom error 0x5592f1b2", customError},
	"Filecoin":               {`{"code":1,"message":"message execution failed (exit=[33], revert reason=[Error(not the owner)], vm error=[none])"}`, "", ""},
	"Polygon Edge":           {`{"code":-32600,"message":"execution was reverted"}`, "", ""},
	"Conflux":                {`{"code":-32015,"message":"Estimation isn't accurate: transaction is reverted","data":"0x"}`, "", ""},
	"Rootstock":              {`{"code":-32015,"message":"VM execution error: transaction reverted"}`, "", ""},
	"Tron":                   {`{"code":-32000,"message":"REVERT opcode executed"}`, "", ""},
	"a proxy":                {`{"code":-32603,"message":"Internal JSON-RPC error.","data":{"originalError":{"code":3,"data":"` + notOwner + `","message":"execution reverted: not the owner"}}}`, "not the owner", notOwner},
	"unknown words":          {`{"code":-32099,"message":"computer says no","data":"` + customError + `"}`, "custom error 0x5592f1b2", customError},
	"a selector alone":       {`{"code":-32603,"message":"Internal error","data":"0x5592f1b2"}`, "custom error 0x5592f1b2", "0x5592f1b2"},
	"a limit's code":         {`{"code":-32005,"message":"over rate limit","data":"` + notOwner + `"}`, "not the owner", notOwner},
	"bad parameters' code":   {`{"code":-32602,"message":"invalid params","data":"` + notOwner + `"}`, "not the owner", notOwner},
}

// The words and the code of a revert differ by client. It is an answer for each method that simulates a call: the next
// endpoint is not asked, and nothing counts against this one.
func TestRevert_ClientsWords_AreAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range clientReverts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.always("eth_estimateGas", "", test.err)
			first.always("eth_call", "", test.err)
			second.always("eth_estimateGas", `"0x5208"`, "")
			second.always("eth_call", `"0x01"`, "")
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			want := &RevertError{Reason: test.reason}
			if test.data != "" {
				want.Data = common.FromHex(test.data)
			}
			check := func(err error) {
				t.Helper()
				var revert *RevertError
				require.ErrorAs(t, err, &revert)
				require.Equal(t, want.Reason, revert.Reason)
				require.Equal(t, fmt.Sprintf("%x", want.Data), fmt.Sprintf("%x", revert.Data))
				require.False(t, IsNoAnswer(err))
			}
			_, err := c.EstimateGas(t.Context(), Message{})
			check(err)
			answers := c.CallContract(t.Context(), Message{}, PendingState)
			check(answers[0].Err)
			require.NoError(t, answers[1].Err)
			_, err = c.Call(t.Context(), "eth_call", json.RawMessage(`[{},"latest"]`))
			var e *RPCError
			require.ErrorAs(t, err, &e, "callers of /rpc receive the node's own error")
			require.False(t, e.Fault)
			require.Zero(t, second.count("eth_estimateGas"))
			require.Equal(t, 1, second.count("eth_call"))
			require.Equal(t, standingGood, c.endpoints[0].healthOf(time.Now(), "eth_estimateGas", "eth_call", "eth_call"+pendingKey))
			require.Empty(t, c.Status().Endpoints[0].Failing)
		})
	}
}

// The revert data of a mined transaction come from a call on top of its block, if no endpoint traces.
func TestRevertData_ClientsWords_AreRead(t *testing.T) {
	t.Parallel()
	for name, test := range clientReverts {
		if test.data == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.always("debug_traceTransaction", "", `{"code":-32601,"message":"the method does not exist"}`)
			f.always("eth_getTransactionByHash", `{"from":"0x0000000000000000000000000000000000000001","value":"0x0","input":"0x","gas":"0x1"}`, "")
			f.always("eth_call", "", test.err)
			c := open(t, Config{Endpoints: []string{f.url()}})
			data, err := c.RevertData(t.Context(), common.Hash{4}, common.Hash{5})
			require.NoError(t, err)
			require.Equal(t, test.data, fmt.Sprintf("0x%x", data))
		})
	}
}

// Data that no contract returned do not make a node's fault a revert.
func TestRevert_OtherData_AreNone(t *testing.T) {
	t.Parallel()
	hash := fmt.Sprintf("0x%064x", 1)
	for _, data := range []string{
		"", `null`, `""`, `"0x"`, `"0x01"`, `"` + hash + `"`, `"0x` + fmt.Sprintf("%040x", 1) + `"`, `"0x08c379a0123"`, `"block 0x01020304 is pruned"`,
		`"no state of block 0x11e1a300"`, `{"error":"no state of block 0x11e1a300"}`, `{"see":"https://example.com"}`, `{"hash":"` + hash + `"}`, `{"data":{"hash":"` + hash + `"}}`, `["` + notOwner + `"]`, `7`,
		`{"data":{"data":{"data":{"data":{"data":"` + notOwner + `"}}}}}`,
	} {
		e := &RPCError{Code: -32603, Message: "internal error", Data: json.RawMessage(data)}
		require.False(t, answersCall(e), "%s", data)
	}
	for _, words := range []string{
		"database error: could not revert changes", "the database transaction reverted", "cannot decode the revert reason", "block was reverted",
	} {
		require.False(t, answersCall(&RPCError{Code: -32603, Message: words}), "%s", words)
	}
	require.False(t, answersCall(&RPCError{Code: -32015, Message: "Dependent service returned immature records"}))
}

// A revert's words must not look like the refusal of a batch, which would be sent again in parts.
func TestRevert_InBatch_IsOneAnswer(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, batch bool) bool {
		if !batch || calls[0].Method != "eth_call" {
			return false
		}
		_, _ = w.Write([]byte(`[{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted: batch too large"}},{"jsonrpc":"2.0","id":2,"result":"0x01"}]`))
		return true
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	one := call{method: "eth_call", params: []any{Message{}, "latest"}, answers: answersCall}
	answers, err := c.endpoints[0].ask(t.Context(), []call{one, one})
	require.NoError(t, err)
	require.ErrorContains(t, answers[0].err, "execution reverted")
	require.NoError(t, answers[1].err)
	require.Equal(t, 2, f.count("eth_call"))
}

// A gateway answers a call that reverts with a 5xx. Its other errors with that status are its own.
func TestRevert_Status500_IsAnAnswer(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	answer := func(err string) {
		f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
			if calls[0].Method != "eth_estimateGas" && calls[0].Method != "eth_sendRawTransaction" {
				return false
			}
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"error":` + err + `}`))
			return true
		})
	}
	c := open(t, Config{Endpoints: []string{f.url()}})
	answer(clientReverts["Hardhat"].err)
	_, err := c.EstimateGas(t.Context(), Message{})
	var revert *RevertError
	require.ErrorAs(t, err, &revert)
	require.Equal(t, "not the owner", revert.Reason)
	require.Empty(t, c.Status().Endpoints[0].Failing)
	require.Equal(t, Unknown, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}})[0].Outcome, "a send may have arrived")

	for _, fault := range []string{
		`{"code":-32000,"message":"insufficient funds"}`,
		`{"code":-32603,"message":"database error: could not revert changes"}`,
		`{"code":-32603,"message":"internal error","data":"no state of block 0x11e1a300"}`,
	} {
		answer(fault)
		_, err = c.EstimateGas(t.Context(), Message{})
		require.True(t, IsNoAnswer(err), "%v", err)
	}
}
