package evm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

// nodeFaults are JSON-RPC errors about the node, not about the call.
var nodeFaults = map[string]string{
	"internal error":   `{"code":-32603,"message":"internal error"}`,
	"pruned state":     `{"code":-32000,"message":"missing trie node 0a1b (path ) state 0x0a1b is not available"}`,
	"indexing":         `{"code":-32000,"message":"transaction indexing is in progress"}`,
	"plan limit":       `{"code":-32005,"message":"daily request count exceeded"}`,
	"not on the plan":  `{"code":-32600,"message":"this method is not on your plan"}`,
	"no such method":   `{"code":-32601,"message":"the method does not exist"}`,
	"resource missing": `{"code":-32002,"message":"resource unavailable"}`,
	"bare text":        `"upstream is away"`,
}

func TestReads_MethodFailsAtOneEndpoint_NextEndpointAnswers(t *testing.T) {
	t.Parallel()
	for name, fault := range nodeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.always("eth_getBalance", "", fault)
			second.always("eth_getBalance", `"0x2a"`, "")
			first.always("eth_gasPrice", `"0x1"`, "")
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			for range 3 {
				balances, err := c.Balances(t.Context(), []common.Address{{1}})
				require.NoError(t, err)
				require.EqualValues(t, 42, balances[0].Int64())
				c.endpoints[0].prolong()
			}
			require.Equal(t, 1, first.count("eth_getBalance"), "the method is left alone for a while")
			_, err := c.Call(t.Context(), "eth_gasPrice", nil)
			require.NoError(t, err)
			require.Equal(t, 1, first.count("eth_gasPrice"), "other methods still go to the first endpoint")
			s := c.Status()
			require.Contains(t, s.Endpoints[0].Failing["eth_getBalance"], strings.Trim(messageOf(t, fault), `"`))
			require.Empty(t, s.Endpoints[1].Failing)
		})
	}
}

func messageOf(t *testing.T, fault string) string {
	t.Helper()
	var e struct{ Message string }
	if json.Unmarshal([]byte(fault), &e) != nil {
		return fault
	}
	return e.Message
}

func TestReads_MethodFailsEverywhere_ErrorOfTheNode(t *testing.T) {
	t.Parallel()
	nodes := []*fake{newFake(t), newFake(t)}
	for _, f := range nodes {
		f.always("eth_getBalance", "", nodeFaults["internal error"])
	}
	c := open(t, Config{Endpoints: []string{nodes[0].url(), nodes[1].url()}})
	for range 2 {
		_, err := c.Balances(t.Context(), []common.Address{{1}})
		var e *RPCError
		require.ErrorAs(t, err, &e)
		require.True(t, e.Fault)
		require.True(t, IsNoAnswer(err))
	}
	require.Equal(t, 2, nodes[1].count("eth_getBalance"), "where no endpoint is well, all are still asked")
	nodes[1].always("eth_getBalance", `"0x2a"`, "")
	_, err := c.Balances(t.Context(), []common.Address{{1}})
	require.NoError(t, err)
	require.Empty(t, c.Status().Endpoints[1].Failing, "a method that answers again is well")
}

func TestMethodFailure_PauseGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := open(t, Config{Endpoints: []string{"http://a"}})
		ep := c.endpoints[0]
		var pauses []time.Duration
		for i := range 9 {
			ep.recordAnswers([]call{{method: "eth_getBalance"}}, []answer{{err: &RPCError{Code: -32603, Message: "internal error", Fault: true}}})
			m := ep.methods["eth_getBalance"]
			require.Equal(t, i+1, m.failures)
			require.Equal(t, standingFailing, ep.methodStanding("eth_getBalance", time.Now()))
			pauses = append(pauses, time.Until(m.until))
			<-time.After(pauses[i])
			require.Equal(t, standingGood, ep.methodStanding("eth_getBalance", time.Now()))
		}
		for i := 2; i < len(pauses); i++ {
			require.Greater(t, pauses[i], pauses[i-2])
		}
		require.Greater(t, pauses[len(pauses)-1], 20*time.Second)
		require.LessOrEqual(t, pauses[len(pauses)-1], maxBackoff)
	})
}

func TestMethodFailure_PauseEnds_EndpointIsAskedAgain(t *testing.T) {
	t.Parallel()
	first, second := newFake(t), newFake(t)
	first.always("eth_getBalance", "", nodeFaults["internal error"])
	second.always("eth_getBalance", `"0x2a"`, "")
	c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
	ep := c.endpoints[0]
	ask := func() {
		t.Helper()
		_, err := c.Balances(t.Context(), []common.Address{{1}})
		require.NoError(t, err)
	}
	for i := range 3 {
		ask()
		require.Equal(t, i+1, first.count("eth_getBalance"))
		ep.mu.Lock()
		ep.methods["eth_getBalance"].until = time.Now().Add(-time.Nanosecond) // the pause is over
		ep.mu.Unlock()
	}
	first.always("eth_getBalance", `"0x2a"`, "")
	asked := second.count("eth_getBalance")
	for range 3 {
		ask()
	}
	require.Equal(t, asked, second.count("eth_getBalance"), "the first endpoint is used again")
}

// An endpoint that hangs or breaks at one method only, costs one timeout, not one per call.
func TestMethodFailure_TransportFailsForOneMethod_OtherMethodsDoNotReset(t *testing.T) {
	t.Parallel()
	first, second := newFake(t), newFake(t)
	first.breakFor("eth_getBalance", faults["500"].apply)
	first.always("eth_gasPrice", `"0x1"`, "")
	second.always("eth_getBalance", `"0x2a"`, "")
	c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
	for i := range 4 {
		_, err := c.Balances(t.Context(), []common.Address{{1}})
		require.NoError(t, err)
		_, err = c.endpoints[0].ask(t.Context(), []call{{method: "eth_gasPrice"}}) // answers, so the endpoint is up again
		require.NoError(t, err)
		c.endpoints[0].mu.Lock()
		m := c.endpoints[0].methods["eth_getBalance"]
		require.Equal(t, i+1, m.failures)
		m.until = time.Time{}
		c.endpoints[0].mu.Unlock()
	}
}

func TestMethodHealth_UnknownMethodsAreNotKept(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	for i := range 100 {
		method := fmt.Sprintf("web3_madeUp%d", i)
		f.always(method, "", nodeFaults["no such method"])
		_, err := c.Call(t.Context(), method, nil)
		var e *RPCError
		require.ErrorAs(t, err, &e)
		require.Equal(t, -32601, e.Code)
	}
	require.LessOrEqual(t, len(c.endpoints[0].methods), 2, "those that verify the chain")
}

// Errors about the call are answers: no other endpoint is asked, and nothing counts against this one.
func TestEstimateGas_ErrorsAboutTheCallAreAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		refusal string
		check   func(t *testing.T, err error)
	}{
		"revert": {`{"code":3,"message":"execution reverted: no","data":"0x"}`, func(t *testing.T, err error) {
			var e *RevertError
			require.ErrorAs(t, err, &e)
		}},
		"revert whose reason looks like a fault": {`{"code":3,"message":"execution reverted: missing trie node"}`, func(t *testing.T, err error) {
			var e *RevertError
			require.ErrorAs(t, err, &e)
		}},
		"funds": {`{"code":-32000,"message":"insufficient funds for gas * price + value: address 0x1 have 0 want 1"}`, func(t *testing.T, err error) {
			require.ErrorIs(t, err, ErrInsufficientFunds)
		}},
		"allowance": {`{"code":-32000,"message":"gas required exceeds allowance (30000000)"}`, func(t *testing.T, err error) {
			require.ErrorIs(t, err, ErrGasAllowance)
		}},
		"parameters": {`{"code":-32602,"message":"invalid argument 0: bad address"}`, func(t *testing.T, err error) {
			var e *RPCError
			require.ErrorAs(t, err, &e)
		}},
		"bad opcode": {`{"code":-32000,"message":"invalid opcode: INVALID"}`, func(t *testing.T, err error) {
			var e *RPCError
			require.ErrorAs(t, err, &e)
		}},
		"bad jump": {`{"code":-32000,"message":"invalid jump destination"}`, func(t *testing.T, err error) {
			var e *RPCError
			require.ErrorAs(t, err, &e)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.always("eth_estimateGas", "", test.refusal)
			second.always("eth_estimateGas", `"0x5208"`, "")
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			_, err := c.EstimateGas(t.Context(), Message{})
			test.check(t, err)
			require.False(t, IsNoAnswer(err))
			require.Zero(t, second.count("eth_estimateGas"))
			require.Empty(t, c.Status().Endpoints[0].Failing)
		})
	}
}

func TestEstimateGas_NodeFault_NextEndpointAnswers(t *testing.T) {
	t.Parallel()
	for name, fault := range nodeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.always("eth_estimateGas", "", fault)
			second.always("eth_estimateGas", `"0x5208"`, "")
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			gas, err := c.EstimateGas(t.Context(), Message{})
			require.NoError(t, err)
			require.EqualValues(t, 21_000, gas)
			alone := open(t, Config{Endpoints: []string{first.url()}})
			_, err = alone.EstimateGas(t.Context(), Message{})
			require.True(t, IsNoAnswer(err), "%v", err)
		})
	}
}

func feeNode(t *testing.T) *fake {
	t.Helper()
	f := newFake(t)
	block := strings.Replace(blockJSON(100, 1), `{`, `{"baseFeePerGas":"0x64",`, 1)
	f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
		if string(params[0]) == `"latest"` {
			return block, ""
		}
		return blockJSON(numberOf(params[0], 100), 1), ""
	})
	f.always("eth_gasPrice", `"0xc8"`, "")
	f.always("eth_maxPriorityFeePerGas", `"0x64"`, "")
	f.always("eth_feeHistory", `{"baseFeePerGas":["0x64","0x6e"],"gasUsedRatio":[0.5],"reward":[["0x1","0x2","0x3","0x4"]]}`, "")
	return f
}

func TestFees_MethodFailsAtOneEndpoint_NextEndpointAnswers(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"eth_getBlockByNumber", "eth_gasPrice", "eth_feeHistory"} {
		for name, fault := range nodeFaults {
			if method == "eth_feeHistory" && name == "no such method" {
				continue // a chain may lack the tag: that is an answer
			}
			t.Run(method+", "+name, func(t *testing.T) {
				t.Parallel()
				first, second := feeNode(t), feeNode(t)
				first.on(method, func(params []json.RawMessage) (string, string) {
					if method == "eth_getBlockByNumber" && string(params[0]) != `"latest"` {
						return blockJSON(0, 1), ""
					}
					return "", fault
				})
				c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
				fees, err := c.Fees(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 0x6e, fees.BaseFee.Int64())
				require.EqualValues(t, 3, fees.Tips[Fast].Int64())
			})
		}
	}
}

// The newest block's own base fee, 100 at block 100, is what transactions are checked by. Other answers lose against it.
func TestFees_AnswersContradictBaseFee_HeadWins(t *testing.T) {
	t.Parallel()
	const reward = `"gasUsedRatio":[0.5,0.5],"reward":[["0x3","0x3","0x3","0x3"],["0x3","0x3","0x3","0x3"]]`
	for name, test := range map[string]struct {
		price, tip, history string
		base, fast, legacy  int64 // the legacy price is at the average speed
	}{
		"agree":                          {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x63","baseFeePerGas":["0x5a","0x64","0x6e"],` + reward, 110, 3, 200},
		"history of one block earlier":   {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x62","baseFeePerGas":["0x50","0x5a","0x64"],` + reward, 100, 3, 200},
		"history without base fees":      {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x63","baseFeePerGas":["0x0","0x0","0x0"],` + reward, 100, 100, 200},
		"history of another chain":       {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x63","baseFeePerGas":["0x5a","0x65","0x6e"],` + reward, 100, 100, 200},
		"history of far away":            {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x1","baseFeePerGas":["0xffff","0xffff","0xffff"],` + reward, 100, 100, 200},
		"next base fee of nothing":       {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x63","baseFeePerGas":["0x5a","0x64","0x0"],` + reward, 100, 3, 200},
		"next base fee of far too much":  {`"0xc8"`, `"0x64"`, `"oldestBlock":"0x63","baseFeePerGas":["0x5a","0x64","0xffffff"],` + reward, 100, 3, 200},
		"price below the base fee":       {`"0x1"`, `"0xa"`, `"oldestBlock":"0x63","baseFeePerGas":["0x0","0x0","0x0"],` + reward, 100, 10, 110},
		"no price":                       {`"0x0"`, `"0x0"`, `"oldestBlock":"0x63","baseFeePerGas":["0x5a","0x64","0x6e"],` + reward, 110, 3, 113},
		"tip that contains the base fee": {`"0x6e"`, `"0x6e"`, `"oldestBlock":"0x63","baseFeePerGas":["0x0","0x0","0x0"],` + reward, 100, 10, 110},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := feeNode(t)
			f.always("eth_gasPrice", test.price, "")
			f.always("eth_maxPriorityFeePerGas", test.tip, "")
			f.always("eth_feeHistory", "{"+test.history+"}", "")
			c := open(t, Config{Endpoints: []string{f.url()}})
			fees, err := c.Fees(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, test.base, fees.BaseFee.Int64())
			require.EqualValues(t, test.fast, fees.Tips[Fast].Int64())
			require.EqualValues(t, test.legacy, fees.Price(Average).Int64())
			require.Empty(t, c.Status().Endpoints[0].Failing)
		})
	}
}

// If no endpoint has a fee history, the node's own suggestion is used.
func TestFees_NoHistoryAnywhere_NodesSuggestion(t *testing.T) {
	t.Parallel()
	f := feeNode(t)
	f.always("eth_feeHistory", "", nodeFaults["not on the plan"])
	c := open(t, Config{Endpoints: []string{f.url()}})
	fees, err := c.Fees(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 100, fees.Tips[Fast].Int64())
}

// Fees read within the last minute are used while no endpoint answers.
func TestFees_EndpointsStopAnswering_RecentFees(t *testing.T) {
	t.Parallel()
	f := feeNode(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	before, err := c.Fees(t.Context())
	require.NoError(t, err)
	f.always("eth_gasPrice", "", nodeFaults["internal error"])
	c.heads.offer("test", Header{Number: 200, Hash: common.Hash{9}}, time.Now(), c.gone)
	after, err := c.Fees(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
	c.fees.mu.Lock()
	c.fees.at = time.Now().Add(-2 * feeAge)
	c.fees.mu.Unlock()
	_, err = c.Fees(t.Context())
	require.True(t, IsNoAnswer(err))
}

func TestLatest_HeadFailsAtOneEndpoint_NextEndpointAnswers(t *testing.T) {
	t.Parallel()
	for name, fault := range nodeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
				if string(params[0]) == `"latest"` {
					return "", fault
				}
				return blockJSON(numberOf(params[0], 100), 1), ""
			})
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			for range 2 {
				v, err := c.Latest(t.Context())
				require.NoError(t, err)
				require.Equal(t, c.endpoints[1].name, v.Endpoint())
			}
			require.False(t, c.Status().Endpoints[0].OK, "an endpoint without a head cannot be relied on")
			require.True(t, c.Status().OK())
		})
	}
}

// All reads of a round come from one endpoint. After one of them fails, the next round reads from another endpoint.
func TestView_ReadFails_NextViewIsOfAnotherEndpoint(t *testing.T) {
	t.Parallel()
	for method, read := range map[string]func(v *View) error{
		"eth_getTransactionCount": func(v *View) error {
			_, err := v.Nonces(v.c.life, []common.Address{{1}})
			return err
		},
		"eth_getTransactionReceipt": func(v *View) error {
			_, err := v.Receipts(v.c.life, []common.Hash{{1}})
			return err
		},
	} {
		for name, fault := range nodeFaults {
			t.Run(method+", "+name, func(t *testing.T) {
				t.Parallel()
				first, second := newFake(t), newFake(t)
				first.always(method, "", fault)
				c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
				v, err := c.Latest(t.Context())
				require.NoError(t, err)
				require.Equal(t, c.endpoints[0].name, v.Endpoint())
				require.Error(t, read(v))
				require.Zero(t, second.count(method), "a view never asks another endpoint")
				c.endpoints[0].prolong()
				v, err = c.Latest(t.Context())
				require.NoError(t, err)
				require.Equal(t, c.endpoints[1].name, v.Endpoint())
				require.NoError(t, read(v))
			})
		}
	}
}

// The search for a used nonce reads old blocks, whose state healthy nodes may lack.
func TestFindNonce_OldStateIsPruned_EndpointStaysWell(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("eth_getTransactionCount", func(params []json.RawMessage) (string, string) {
		if n := numberOf(params[1], 100); n < 99 && params[1][0] == '"' {
			return "", nodeFaults["pruned state"]
		}
		return `"0x7"`, ""
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	_, err = v.FindNonce(t.Context(), common.Address{1}, 3, 0)
	require.Error(t, err)
	require.Empty(t, c.Status().Endpoints[0].Failing)
}

func TestSend_MethodFailsAtOneEndpoint_NextEndpointAccepts(t *testing.T) {
	t.Parallel()
	for name, fault := range nodeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.always("eth_sendRawTransaction", "", fault)
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			for range 2 {
				requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}, {Bytes: []byte{2}}}), Accepted, Accepted)
				c.endpoints[0].prolong()
			}
			require.Equal(t, 3, first.count("eth_sendRawTransaction"), "in a batch, and the first one alone; then the method is left alone for a while")
			want := Unknown
			switch name {
			case "plan limit":
				want = RateLimited
			case "no such method":
				want = NotSent
			}
			alone := open(t, Config{Endpoints: []string{first.url()}})
			requireOutcomes(t, alone.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), want)
		})
	}
}

// A node's refusal of the transaction is an answer, regardless of its error code.
func TestSend_RefusalOfTheBytes_CountsForNothing(t *testing.T) {
	t.Parallel()
	for refusal, want := range map[string]Outcome{
		`{"code":-32603,"message":"nonce too low"}`:           NonceTooLow,
		`{"code":-32000,"message":"transaction underpriced"}`: Underpriced,
		`{"code":-32000,"message":"already known"}`:           AlreadyKnown,
	} {
		f := newFake(t)
		f.always("eth_sendRawTransaction", "", refusal)
		c := open(t, Config{Endpoints: []string{f.url()}})
		requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), want)
		require.Empty(t, c.Status().Endpoints[0].Failing)
	}
}

// receiptNode has one block of two transactions.
func receiptNode(t *testing.T) (f *fake, txs []common.Hash) {
	t.Helper()
	f = newFake(t)
	txs = []common.Hash{{1}, {2}}
	block := strings.Replace(blockJSON(100, 1), `"transactions":[]`, fmt.Sprintf(`"transactions":["%s","%s"]`, txs[0], txs[1]), 1)
	f.always("eth_getBlockByHash", block, "")
	receipt := func(i int) string {
		return fmt.Sprintf(`{"transactionHash":"%s","blockHash":"0x01%062x","blockNumber":"0x64","transactionIndex":"%#x","status":"0x1","gasUsed":"0x1","effectiveGasPrice":"0x1"}`,
			txs[i], 100, i)
	}
	f.on("eth_getTransactionReceipt", func(params []json.RawMessage) (string, string) {
		for i, h := range txs {
			if unquote(params[0]) == h.Hex() {
				return receipt(i), ""
			}
		}
		return "null", ""
	})
	f.always("eth_getBlockReceipts", "["+receipt(0)+","+receipt(1)+"]", "")
	return f, txs
}

func TestBlockReceipts_MethodFails_ReceiptsByHash(t *testing.T) {
	t.Parallel()
	answers := map[string]struct {
		result, err string
		remembered  bool
	}{
		"not on the plan":   {err: nodeFaults["not on the plan"], remembered: true},
		"no such method":    {err: nodeFaults["no such method"], remembered: true},
		"parameters":        {err: `{"code":-32602,"message":"invalid params"}`, remembered: true},
		"method of no plan": {err: `{"code":-32604,"message":"method not supported"}`, remembered: true},
		"internal error":    {err: nodeFaults["internal error"]},
		"indexing":          {err: nodeFaults["indexing"]},
		"plan limit":        {err: nodeFaults["plan limit"]},
		"null":              {result: "null"},
		"malformed":         {result: `[{"blockHash":"0x0"}]`},
	}
	for name, test := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, txs := receiptNode(t)
			f.always("eth_getBlockReceipts", test.result, test.err)
			c := open(t, Config{Endpoints: []string{f.url()}})
			read := func() {
				t.Helper()
				v, err := c.Latest(t.Context())
				require.NoError(t, err)
				for range 2 {
					receipts, err := v.BlockReceipts(t.Context(), v.Header().Hash)
					require.NoError(t, err)
					require.Len(t, receipts, 2)
					for i, r := range receipts {
						require.Equal(t, txs[i], r.TxHash)
						require.True(t, r.Canonical)
					}
				}
			}
			read()
			require.Equal(t, 1, f.count("eth_getBlockReceipts"), "once in a round")
			c.endpoints[0].prolong()
			read()
			want := 2
			if test.remembered || name == "plan limit" { // rate-limited
				want = 1
			}
			require.Equal(t, want, f.count("eth_getBlockReceipts"))
			c.endpoints[0].noBlockReceipts.Store(new(time.Now().Add(-time.Second)))
			c.endpoints[0].mu.Lock()
			clear(c.endpoints[0].methods)
			c.endpoints[0].mu.Unlock()
			read()
			require.Equal(t, want+1, f.count("eth_getBlockReceipts"), "it is tried again later")
			require.NotContains(t, c.Status().Endpoints[0].Failing, "eth_getTransactionReceipt")
		})
	}
}

func TestBlockReceipts_AnswerIsTooLarge_ReceiptsByHash(t *testing.T) {
	t.Parallel()
	f, _ := receiptNode(t)
	f.always("eth_getBlockReceipts", `"`+strings.Repeat("0", 10_000)+`"`, "")
	c := open(t, Config{Endpoints: []string{f.url()}, MaxResponse: 5000})
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	receipts, err := v.BlockReceipts(t.Context(), v.Header().Hash)
	require.NoError(t, err)
	require.Len(t, receipts, 2)
}

// An endpoint without old blocks is healthy for new ones.
func TestHead_OldBlocksFail_EndpointStaysOK(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
		if n := numberOf(params[0], 100); n > 0 && n < 50 {
			return "", nodeFaults["internal error"]
		}
		return blockJSON(numberOf(params[0], 100), 1), ""
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	_, err = v.Headers(t.Context(), 10, 12)
	require.True(t, IsNoAnswer(err))
	s := c.Status()
	require.True(t, s.OK())
	require.NotEmpty(t, s.Endpoints[0].Failing["eth_getBlockByNumber"])
}

// An endpoint that limits the rate of eth_chainId is not asked for anything.
func TestVerify_RateLimited_EndpointIsLeftAlone(t *testing.T) {
	t.Parallel()
	first, second := newFake(t), newFake(t)
	first.onRequest(func(w http.ResponseWriter, _ []fakeCall, batch bool) bool {
		if batch {
			fail(w, 200, -32600, "batches are not allowed")
		} else {
			fail(w, 200, -32005, "daily request count exceeded")
		}
		return true
	})
	c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
	for range 4 {
		_, err := c.Latest(t.Context())
		require.NoError(t, err)
		c.endpoints[0].prolong()
	}
	require.LessOrEqual(t, first.count("eth_chainId"), 2, "in a batch, and alone")
}
