package evm

import (
	"bytes"
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// emitted is a block of five transactions, behind a proxy. Those with an even number emit two logs, one of the topic 0xa.
type emitted struct {
	*sim
	proxy  *proxy.Proxy
	c      *Client
	ep     string
	block  common.Hash
	number uint64
}

func newEmitted(t *testing.T) *emitted {
	t.Helper()
	s := newSim(t)
	emitter := s.deployEmitter(t)
	for nonce := range uint64(5) {
		tx := s.tx(1, nonce, func(tx *types.DynamicFeeTx) {
			if nonce%2 == 0 {
				topic := common.Hash{0xa + byte(nonce/2)}
				tx.To, tx.Value, tx.Gas, tx.Data = &emitter, new(big.Int), 100_000, escrowchain.Emit([]common.Hash{topic, {0xe}}, []byte{1}, 2)
			}
		})
		signed := new(types.Transaction)
		require.NoError(t, signed.UnmarshalBinary(tx.Bytes))
		require.NoError(t, s.Client().SendTransaction(t.Context(), signed))
	}
	e := &emitted{sim: s, block: s.Commit()}
	var err error
	e.number, err = s.Client().BlockNumber(t.Context())
	require.NoError(t, err)
	e.proxy, err = proxy.Open(proxy.Config{HTTP: s.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.proxy.Close()) })
	e.c = open(t, Config{Endpoints: []string{e.proxy.URL()}})
	e.ep = e.c.Status().Endpoints[0].Endpoint
	return e
}

// alters returns a rule that changes the results of a method.
func alters(method string, change func(string) string) proxy.Rule {
	return proxy.Rule{Methods: []string{method}, Fault: proxy.Fault{
		Kind: proxy.Change, Alter: func(result json.RawMessage) json.RawMessage { return json.RawMessage(change(string(result))) },
	}}
}

func replaces(pattern, by string) func(string) string {
	re := regexp.MustCompile(pattern)
	return func(s string) string { return re.ReplaceAllString(s, by) }
}

func TestBlockLogs_AnswersOfNodes_AreProvenOrNot(t *testing.T) {
	t.Parallel()
	e := newEmitted(t)
	topics := []common.Hash{{0xa}, {0xc}}
	want, err := e.c.Logs(t.Context(), e.ep, LogQuery{Block: e.block, Topics: topics})
	require.NoError(t, err)
	require.Len(t, want, 4)

	noBlockReceipts := proxy.Rule{Methods: []string{blockReceiptsMethod}, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32601, Message: "no such method"}}
	const oneReceipt = `\{"blockHash"[^\[]*"logs":\[[^\]]*\],"logsBloom"[^}]*"transactionIndex":"0x1","type":"0x2"\},`
	for name, test := range map[string]struct {
		rules  []proxy.Rule
		proof  Proof
		proven bool // the header
	}{
		"true":                     {nil, Proven, true},
		"receipts by transaction":  {[]proxy.Rule{noBlockReceipts}, Proven, true},
		"receipts without one":     {[]proxy.Rule{alters(blockReceiptsMethod, replaces(oneReceipt, ""))}, Proven, true}, // read by transaction then
		"another status":           {[]proxy.Rule{alters(blockReceiptsMethod, replaces(`"status":"0x1"`, `"status":"0x0"`))}, Disproven, true},
		"logs of another contract": {[]proxy.Rule{noBlockReceipts, alters("eth_getTransactionReceipt", replaces(`"data":"0x01"`, `"data":"0x02"`))}, Disproven, true},
		"receipts of OP chains":    {[]proxy.Rule{alters(blockReceiptsMethod, replaces(`"transactionIndex":"0x1","type":"0x2"`, `"transactionIndex":"0x1","type":"0x7e"`))}, NotProvable, true},
		"another header":           {[]proxy.Rule{alters("eth_getBlockByHash", replaces(`"gasLimit":"0x`, `"gasLimit":"0x1`))}, NotProvable, false},
		"a header without fields":  {[]proxy.Rule{alters("eth_getBlockByHash", replaces(`"receiptsRoot"`, `"root"`))}, NotProvable, false},
	} {
		t.Run(name, func(t *testing.T) {
			e.proxy.SetRules(test.rules...)
			c := open(t, Config{Endpoints: []string{e.proxy.URL()}})
			b, err := c.BlockLogs(t.Context(), c.Status().Endpoints[0].Endpoint, e.block, topics)
			require.NoError(t, err)
			require.Equal(t, test.proof, b.Proof)
			require.Equal(t, test.proven, b.Header.Proven())
			require.Equal(t, e.block, b.Header.Hash)
			if test.proof == Proven {
				require.Equal(t, want, b.Logs)
			}
			require.Equal(t, test.proven, b.Header.Excludes(common.Hash{0xf}))
			require.False(t, b.Header.Excludes(common.Hash{0xf}, common.Hash{0xa}))
		})
	}
}

func TestBlockLogs_FalseReceipts_CountAgainstTheEndpoint(t *testing.T) {
	t.Parallel()
	e := newEmitted(t)
	for name, change := range map[string]func(string) string{
		"removed":        replaces(`"removed":false`, `"removed":true`),
		"of block 0":     replaces(`("data":"0x01","blockNumber":"0x)[0-9a-f]+`, `${1}0`),
		"of another one": replaces(`("data":"0x01","blockNumber":"0x[0-9a-f]+","transactionHash":"0x)..`, `${1}00`),
	} {
		e.proxy.SetRules(alters(blockReceiptsMethod, change))
		_, err := e.c.BlockLogs(t.Context(), e.ep, e.block, []common.Hash{{0xa}})
		require.Error(t, err, name)
		require.True(t, IsNoAnswer(err), "%s: %v", name, err)
		require.NotEmpty(t, e.c.Status().Endpoints[0].Failing[blockReceiptsMethod], name)
	}
}

func TestBlockLogs_UnknownBlock_IsMissing(t *testing.T) {
	t.Parallel()
	e := newEmitted(t)
	_, err := e.c.BlockLogs(t.Context(), e.ep, common.Hash{9}, nil)
	require.ErrorIs(t, err, ErrMissing)
	_, err = e.c.SealedHeader(t.Context(), e.ep, common.Hash{9})
	require.ErrorIs(t, err, ErrMissing)

	e.proxy.SetRules(alters("eth_getBlockByHash", func(string) string { return blockJSON(1, 1) }))
	_, err = e.c.SealedHeader(t.Context(), e.ep, e.block)
	require.ErrorContains(t, err, "it is block 0x01")
	require.True(t, IsNoAnswer(err))
}

func TestBlockLogs_EmptyBlock_IsProven(t *testing.T) {
	t.Parallel()
	s := newSim(t)
	block := s.Commit()
	c := open(t, Config{Endpoints: []string{s.URL()}})
	b, err := c.BlockLogs(t.Context(), c.Status().Endpoints[0].Endpoint, block, []common.Hash{{0xa}})
	require.NoError(t, err)
	require.Equal(t, Proven, b.Proof)
	require.Empty(t, b.Logs)
	require.True(t, b.Header.Excludes(common.Hash{0xa}))
}

// values is a list of any bytes.
type values [][]byte

func (v values) Len() int                           { return len(v) }
func (v values) EncodeIndex(i int, w *bytes.Buffer) { _, _ = w.Write(v[i]) }

func TestListTrie_AnyList_HasTheRootOfGeth(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 3, 15, 16, 17, 126, 127, 128, 129, 130, 255, 256, 257, 400, 1000} {
		list := make(values, n)
		for i := range list {
			list[i] = make([]byte, 1+random.IntN(80)) // nodes shorter than a hash, too
			for k := range list[i] {
				list[i][k] = byte(random.Uint32())
			}
		}
		require.Equal(t, types.DeriveSha(list, trie.NewStackTrie(nil)), types.DeriveSha(list, new(listTrie)), n)
	}
}

func TestReceiptsRoot_EachType_HasTheRootOfGeth(t *testing.T) {
	t.Parallel()
	var receipts types.Receipts
	var parsed []Receipt
	for kind := range uint8(types.SetCodeTxType + 1) {
		r := &types.Receipt{Type: kind, Status: uint64(kind % 2), CumulativeGasUsed: 21_000 * uint64(kind+1), TxHash: common.Hash{kind}, BlockNumber: big.NewInt(1)}
		for i := range kind {
			r.Logs = append(r.Logs, &types.Log{Address: common.Address{i}, Topics: make([]common.Hash, i), Data: make([]byte, 40*int(i)), Index: 0xfffffffc})
		}
		r.Bloom = types.CreateBloom(r)
		text, err := json.Marshal(r)
		require.NoError(t, err)
		receipts, parsed = append(receipts, r), append(parsed, Receipt{text: text})
	}
	root, err := receiptsRoot(parsed)
	require.NoError(t, err)
	require.Equal(t, types.DeriveSha(receipts, trie.NewStackTrie(nil)), root)

	parsed[1].text = bytes.Replace(parsed[1].text, []byte(`"type":"0x1"`), []byte(`"type":"`+hexutil.EncodeUint64(types.SetCodeTxType+1)+`"`), 1)
	_, err = receiptsRoot(parsed)
	require.ErrorIs(t, err, errReceiptType)
}

// The headers of a block have the same Transactions, by number and by hash, unless the node lists other ones. A proven header does not show
// that.
func TestHeader_Transactions_AreThoseThatTheNodeLists(t *testing.T) {
	t.Parallel()
	e := newEmitted(t)
	byNumber, err := e.c.HeaderAt(t.Context(), e.ep, e.number)
	require.NoError(t, err)
	byHash, err := e.c.SealedHeader(t.Context(), e.ep, e.block)
	require.NoError(t, err)
	require.NotZero(t, byHash.Transactions())
	require.Equal(t, byHash.Transactions(), byNumber.Transactions())
	e.proxy.SetRules(alters("eth_getBlockByHash", replaces(`"transactions":\["0x..`, `"transactions":["0xff`)))
	other, err := e.c.SealedHeader(t.Context(), e.ep, e.block)
	require.NoError(t, err)
	require.True(t, other.Proven())
	require.NotEqual(t, byHash.Transactions(), other.Transactions())
	empty, err := e.c.SealedHeader(t.Context(), e.ep, e.Commit())
	require.NoError(t, err)
	require.Zero(t, empty.Transactions())
}
