package evm

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

// malformed are results that no healthy endpoint returns, by method.
var malformed = map[string]map[string]string{
	"eth_getTransactionCount": {"null": "null", "number": "7", "no digits": `"0x"`, "object": "{}"},
	"eth_getTransactionReceipt": {
		"field missing": receiptOf(common.Hash{1}, `"status":"0x1"`),
		"wrong type":    receiptOf(common.Hash{1}, `"status":true,"gasUsed":"0x1"`),
		"other hash":    receiptOf(common.Hash{2}, `"status":"0x1","gasUsed":"0x1"`),
		"string":        `"0x1"`,
	},
	"eth_getBlockByNumber":     {"field missing": `{"number":"0x5"}`, "wrong type": strings.Replace(blockJSON(5, 1), `"0x5"`, "5", 1), "string": `"0x5"`},
	"eth_getTransactionByHash": {"string": `"0x1"`},
}

func receiptOf(tx common.Hash, rest string) string {
	return fmt.Sprintf(`{"transactionHash":"%s","blockHash":"0x01%062x","blockNumber":"0x64","transactionIndex":"0x0",%s}`, tx, 100, rest)
}

// A malformed result is a failure of the endpoint's method. It makes a View of another endpoint the next one, for longer after
// each failure.
func TestView_MalformedResult_IsAFailureOfTheMethod(t *testing.T) {
	t.Parallel()
	reads := map[string]func(v *View) error{
		"eth_getTransactionCount": func(v *View) error {
			_, err := v.Nonces(v.c.life, []common.Address{{1}})
			return err
		},
		"eth_getTransactionReceipt": func(v *View) error {
			_, err := v.Receipts(v.c.life, []common.Hash{{1}})
			return err
		},
		"eth_getBlockByNumber": func(v *View) error {
			_, err := v.Headers(v.c.life, 5, 5)
			return err
		},
		"eth_getTransactionByHash": func(v *View) error {
			_, err := v.Transactions(v.c.life, []common.Hash{{1}})
			return err
		},
	}
	for method, results := range malformed {
		for name, result := range results {
			t.Run(method+", "+name, func(t *testing.T) {
				t.Parallel()
				first, second := newFake(t), newFake(t)
				first.on(method, func(params []json.RawMessage) (string, string) {
					if string(params[0]) == `"latest"` {
						return blockJSON(100, 1), ""
					}
					return result, ""
				})
				c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
				v, err := c.Latest(t.Context())
				require.NoError(t, err)
				require.Equal(t, c.endpoints[0].name, v.Endpoint())
				for failures := range 2 {
					require.True(t, IsNoAnswer(read(t, reads[method], v)))
					require.NotEmpty(t, c.Status().Endpoints[0].Failing[method])
					c.endpoints[0].mu.Lock()
					require.Equal(t, failures+1, c.endpoints[0].methods[method].failures)
					c.endpoints[0].methods[method].until = c.endpoints[0].verified // the pause is over
					c.endpoints[0].mu.Unlock()
				}
				require.Error(t, read(t, reads[method], v))
				c.endpoints[0].prolong()
				if method != "eth_getTransactionByHash" { // no View depends on it
					v, err = c.Latest(t.Context())
					require.NoError(t, err)
					require.Equal(t, c.endpoints[1].name, v.Endpoint())
					require.NoError(t, reads[method](v))
				}
			})
		}
	}
}

func read(t *testing.T, read func(*View) error, v *View) error {
	t.Helper()
	err := read(v)
	require.Error(t, err)
	return err
}

func TestLatest_Except_SkipsEndpoints(t *testing.T) {
	t.Parallel()
	first, second := newFake(t), newFake(t)
	c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
	names := []string{c.endpoints[0].name, c.endpoints[1].name}
	for tried, want := range names {
		v, err := c.Latest(t.Context(), names[:tried]...)
		require.NoError(t, err)
		require.Equal(t, want, v.Endpoint())
	}
	_, err := c.Latest(t.Context(), names...)
	require.ErrorIs(t, err, ErrNoEndpoint)
}

func TestTagged_ErrorOfTheNode_IsNotAMissingTag(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result, err string
		missing     bool
	}{
		"internal error":   {err: `{"code":-32603,"message":"internal error"}`},
		"not on the plan":  {err: `{"code":-32600,"message":"this method is not on your plan"}`},
		"server error":     {err: `{"code":-32000,"message":"upstream is away"}`},
		"malformed":        {result: `{"number":"0x5"}`},
		"null":             {result: "null", missing: true},
		"geth":             {err: `{"code":-32000,"message":"finalized block not found"}`, missing: true},
		"unknown block":    {err: `{"code":-39001,"message":"no finalized block yet"}`, missing: true},
		"no such method":   {err: `{"code":-32601,"message":"the method does not exist"}`, missing: true},
		"invalid argument": {err: `{"code":-32602,"message":"invalid block tag"}`, missing: true},
		"not supported":    {err: `{"code":-32604,"message":"not supported"}`, missing: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.on("eth_getBlockByNumber", func(params []json.RawMessage) (string, string) {
				if string(params[0]) == `"finalized"` {
					return test.result, test.err
				}
				return blockJSON(numberOf(params[0], 100), 1), ""
			})
			c := open(t, Config{Endpoints: []string{f.url()}})
			v, err := c.Latest(t.Context())
			require.NoError(t, err)
			_, found, err := c.FinalOf(t.Context(), v.Endpoint(), Finality{Tag: "finalized"})
			require.False(t, found)
			require.Equal(t, test.missing, err == nil, "%v", err)
			require.Equal(t, test.missing, len(c.Status().Endpoints[0].Failing) == 0, "a missing tag is no fault")

			_, err = v.Tagged(t.Context(), "finalized")
			if test.missing {
				require.ErrorIs(t, err, ErrMissing)
				return
			}
			require.NotErrorIs(t, err, ErrMissing)
			require.True(t, IsNoAnswer(err), "another endpoint is asked")
		})
	}
}

func TestTransaction_EndpointLacksIt_NextEndpointIsAsked(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	sign := func(nonce uint64) (*types.Transaction, string) {
		tx, err := types.SignNewTx(key, types.LatestSignerForChainID(big.NewInt(simulatedID)), &types.DynamicFeeTx{
			ChainID: big.NewInt(simulatedID), Nonce: nonce, Gas: 21_000, GasFeeCap: big.NewInt(2), GasTipCap: big.NewInt(1), To: &common.Address{1},
		})
		require.NoError(t, err)
		text, err := tx.MarshalJSON()
		require.NoError(t, err)
		return tx, string(text)
	}
	tx, text := sign(0)
	_, other := sign(1)
	for name, result := range map[string]string{"null": "null", "other transaction": other, "malformed": "{}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.always("eth_getTransactionByHash", result, "")
			second.always("eth_getTransactionByHash", text, "")
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			found, err := c.Transaction(t.Context(), tx.Hash())
			require.NoError(t, err)
			require.Equal(t, tx.Hash(), found.Hash())
			second.always("eth_getTransactionByHash", "null", "")
			_, err = c.Transaction(t.Context(), tx.Hash())
			require.Error(t, err)
		})
	}
}
