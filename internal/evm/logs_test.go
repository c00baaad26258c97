package evm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
)

// logOf returns a log of the fake node: of block n of its chain, in transaction tx.
func logOf(n uint64, tx byte, index uint64) Log {
	return Log{
		Contract: common.Address{0xc}, Topics: []common.Hash{{0xa}, {0xb}}, Data: []byte{1, 2, 3},
		BlockNumber: n, BlockHash: common.Hash{0: 1, 30: byte(n >> 8), 31: byte(n)}, TxHash: common.Hash{byte(n), tx}, TxIndex: uint64(tx), Index: index,
	}
}

func logJSON(l Log) string {
	topics, _ := json.Marshal(l.Topics)
	return fmt.Sprintf(`{"address":"%s","topics":%s,"data":"0x%x","blockNumber":"%#x","transactionHash":"%s","transactionIndex":"%#x","blockHash":"%s","blockTimestamp":"%#x","logIndex":"%#x","removed":false}`,
		strings.ToLower(l.Contract.Hex()), topics, l.Data, l.BlockNumber, l.TxHash, l.TxIndex, l.BlockHash, l.BlockTime, l.Index)
}

func logsJSON(logs ...Log) string {
	texts := make([]string, len(logs))
	for i, l := range logs {
		texts[i] = logJSON(l)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

var tenBlocks = LogQuery{From: 1, To: 10, Topics: []common.Hash{{0xa}}}

func TestLogs_SimulatedChain_AreThoseEmitted(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newSim(t)
			url := s.URL()
			if scheme == "ws" {
				url = s.WSURL()
			}
			c := open(t, Config{Endpoints: []string{url}})
			ep := c.Status().Endpoints[0].Endpoint
			emitter := s.deployEmitter(t)
			first := s.emit(t, emitter, common.Hash{0xa}, 3)
			s.emit(t, emitter, common.Hash{0xd}, 1)
			last := s.emit(t, emitter, common.Hash{0xb}, 1)
			head := last.BlockNumber.Uint64()

			q := LogQuery{From: 1, To: head, Topics: []common.Hash{{0xa}, {0xb}}}
			logs, err := c.Logs(t.Context(), ep, q)
			require.NoError(t, err)
			require.Len(t, logs, 4)
			h, err := s.Client().HeaderByHash(t.Context(), first.BlockHash)
			require.NoError(t, err)
			require.Equal(t, Log{
				Contract: emitter, Topics: []common.Hash{{0xa}, {0xe}}, Data: []byte("data"), BlockNumber: first.BlockNumber.Uint64(),
				BlockHash: first.BlockHash, TxHash: first.TxHash, Index: 1, BlockTime: h.Time,
			}, logs[1])
			require.Equal(t, last.BlockHash, logs[3].BlockHash)

			q = LogQuery{Block: first.BlockHash, Topics: []common.Hash{{0xa}}}
			logs, err = c.Logs(t.Context(), ep, q)
			require.NoError(t, err)
			require.Len(t, logs, 3)
			q.Contracts = []common.Address{{1}}
			logs, err = c.Logs(t.Context(), ep, q)
			require.NoError(t, err)
			require.Empty(t, logs)
			require.NotNil(t, logs)

			_, err = c.Logs(t.Context(), ep, LogQuery{Block: common.Hash{9}, Topics: q.Topics})
			require.ErrorIs(t, err, ErrMissing, "another chain's block")
			_, err = c.Logs(t.Context(), ep, LogQuery{From: 1, To: head + 1, Topics: q.Topics})
			require.ErrorIs(t, err, ErrMissing, "a range beyond the head")
			_, err = c.Logs(t.Context(), ep, LogQuery{From: head + 1, To: head + 2, Topics: q.Topics})
			require.ErrorIs(t, err, ErrMissing, "a range after the head")
			require.Empty(t, c.Status().Endpoints[0].Failing, "which are no faults")
		})
	}
}

// deployEmitter creates a contract that emits any log.
func (s *sim) deployEmitter(t *testing.T) common.Address {
	t.Helper()
	address, err := escrowchain.DeployEmitter(t.Context(), contract.Sealing{Client: s.Client(), Seal: func() { s.Commit() }}, s.keys[0])
	require.NoError(t, err)
	return address
}

// emit mines a block with one transaction, whose logs have the topic.
func (s *sim) emit(t *testing.T, emitter common.Address, topic common.Hash, times int) *types.Receipt {
	t.Helper()
	receipt, err := contract.Send(t.Context(), contract.Sealing{Client: s.Client(), Seal: func() { s.Commit() }}, s.keys[0], contract.Transaction{
		To: &emitter, Data: escrowchain.Emit([]common.Hash{topic, {0xe}}, []byte("data"), times), Gas: 1_000_000,
	})
	require.NoError(t, err)
	return receipt
}

func TestLogs_ListsOfHealthyNodes_AreAccepted(t *testing.T) {
	t.Parallel()
	byHash := LogQuery{Block: logOf(7, 0, 0).BlockHash, Topics: tenBlocks.Topics}
	other := func(l Log) Log { l.Data = []byte{4}; return l }
	for name, test := range map[string]struct {
		q    LogQuery
		logs []Log
	}{
		"none":                                    {tenBlocks, nil},
		"of all blocks":                           {tenBlocks, []Log{logOf(1, 0, 0), logOf(1, 0, 1), logOf(1, 3, 2), logOf(9, 0, 0), logOf(10, 1, 5)}},
		"of one block":                            {byHash, []Log{logOf(7, 0, 0), logOf(7, 1, 4)}},
		"indexes above 32 bits":                   {tenBlocks, []Log{logOf(1, 0, 0xfffffffc), logOf(1, 0, 1<<40)}},
		"one index for all of a transaction":      {tenBlocks, []Log{logOf(1, 0, 0), other(logOf(1, 0, 0))}},
		"indexes that begin again":                {tenBlocks, []Log{logOf(1, 0, 0), logOf(1, 0, 1), logOf(1, 1, 0), logOf(1, 1, 1)}},
		"indexes that fall":                       {tenBlocks, []Log{logOf(1, 0, 5), logOf(1, 0, 4), logOf(1, 0, 6)}},
		"transactions that are in no order":       {tenBlocks, []Log{logOf(1, 4, 0), logOf(1, 2, 1)}},
		"without data":                            {tenBlocks, []Log{{Topics: tenBlocks.Topics, BlockNumber: 1, BlockHash: common.Hash{1}, Contract: common.Address{1}}}},
		"of two transactions with the same index": {tenBlocks, []Log{logOf(1, 0, 0), {Topics: tenBlocks.Topics, BlockNumber: 1, BlockHash: logOf(1, 0, 0).BlockHash}}},
	} {
		logs, err := parseLogs([]byte(logsJSON(test.logs...)), test.q)
		require.NoError(t, err, name)
		require.Len(t, logs, len(test.logs), name)
		require.ElementsMatch(t, test.logs, logs, name)
	}
}

func TestLogs_ListsOfNoHealthyNode_CountAgainstTheEndpoint(t *testing.T) {
	t.Parallel()
	change := func(l Log, f func(*Log)) Log { f(&l); return l }
	repeated := []Log{logOf(1, 0, 0), logOf(1, 0, 1), logOf(1, 0, 2), logOf(1, 0, 1)}
	for name, test := range map[string]struct {
		q      LogQuery
		answer string
		err    string
	}{
		"null":                   {tenBlocks, `null`, "malformed"},
		"no list":                {tenBlocks, `{}`, "malformed"},
		"removed":                {tenBlocks, strings.Replace(logsJSON(logOf(1, 0, 0)), `"removed":false`, `"removed":true`, 1), "log 0: removed: it is marked as removed"},
		"pending":                {tenBlocks, strings.Replace(logsJSON(logOf(1, 0, 0)), `"blockHash":"`, `"blockHash":null,"x":"`, 1), "without all of its fields"},
		"five topics":            {tenBlocks, logsJSON(change(logOf(1, 0, 0), func(l *Log) { l.Topics = make([]common.Hash, 5) })), "more than four topics"},
		"another topic":          {tenBlocks, logsJSON(change(logOf(1, 0, 0), func(l *Log) { l.Topics = []common.Hash{{0xb}, {0xa}} })), "topic was not asked for"},
		"no topic":               {tenBlocks, logsJSON(change(logOf(1, 0, 0), func(l *Log) { l.Topics = []common.Hash{} })), "topic was not asked for"},
		"another contract":       {LogQuery{From: 1, To: 2, Topics: tenBlocks.Topics, Contracts: []common.Address{{1}}}, logsJSON(logOf(1, 0, 0)), "contract 0x0c"},
		"another block":          {LogQuery{Block: common.Hash{8}, Topics: tenBlocks.Topics}, logsJSON(logOf(1, 0, 0)), "it is of block 0x01"},
		"before the range":       {tenBlocks, logsJSON(logOf(0, 0, 0)), "it is of block 0"},
		"after the range":        {tenBlocks, logsJSON(logOf(11, 0, 0)), "it is of block 11"},
		"blocks that fall":       {tenBlocks, logsJSON(logOf(2, 0, 0), logOf(1, 0, 0)), "block 1 and follows one of block 2"},
		"two hashes of a number": {tenBlocks, logsJSON(logOf(2, 0, 0), change(logOf(2, 1, 1), func(l *Log) { l.BlockHash = common.Hash{5} })), "follows one of block 2"},
		"two numbers of a hash":  {tenBlocks, logsJSON(logOf(2, 0, 0), change(logOf(2, 1, 1), func(l *Log) { l.BlockNumber = 3 })), "follows one of block 2"},
		"interleaved":            {tenBlocks, logsJSON(logOf(2, 0, 0), logOf(2, 1, 1), logOf(2, 0, 2)), "logs of another transaction are among"},
		"two indexes of a transaction": {
			tenBlocks, logsJSON(logOf(2, 0, 0), change(logOf(2, 0, 1), func(l *Log) { l.TxIndex = 7 })), "has index 0 and index 7",
		},
		"repeated log":  {tenBlocks, logsJSON(repeated...), "log 3: it repeats log 1"},
		"repeated list": {tenBlocks, logsJSON(slices.Concat(repeated[:1], []Log{logOf(1, 1, 1)}, repeated[:1])...), "logs of another transaction are among"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.always(logsMethod, test.answer, "")
			c := open(t, Config{Endpoints: []string{f.url()}})
			ep := c.Status().Endpoints[0].Endpoint
			_, err := c.Logs(t.Context(), ep, test.q)
			require.ErrorContains(t, err, test.err)
			require.True(t, IsNoAnswer(err))
			require.Contains(t, c.Status().Endpoints[0].Failing[logsMethod], test.err)
		})
	}
}

func TestLogs_RateLimit_EndsBeforeTheEndpointIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
		if calls[0].Method == logsMethod {
			w.Header().Set("Retry-After", "77")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		return false
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	ep := c.Status().Endpoints[0].Endpoint
	for range 2 {
		_, err := c.Logs(t.Context(), ep, tenBlocks)
		limit, ok := errors.AsType[*RateLimitError](err)
		require.True(t, ok, "%v", err)
		require.InDelta(t, 77*time.Second, limit.RetryAfter, float64(patient))
	}
	require.Equal(t, 1, f.count(logsMethod))
}

func TestLogs_QueryWithoutTopicOrBlocks_IsNotSent(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := open(t, Config{Endpoints: []string{f.url()}})
	for _, q := range []LogQuery{{From: 1, To: 2}, {From: 2, To: 1, Topics: tenBlocks.Topics}} {
		_, err := c.Logs(t.Context(), c.Status().Endpoints[0].Endpoint, q)
		require.ErrorContains(t, err, "no topic or an empty range")
	}
	require.Zero(t, f.count(logsMethod))
	_, err := c.Logs(t.Context(), "elsewhere", tenBlocks)
	require.ErrorIs(t, err, ErrNoEndpoint)
}

func TestEndpoints_DistrustedForLogs_ComesLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the pause must not end
		c, err := Open(Config{ChainID: 1, Endpoints: []string{"http://a", "http://b", "http://c"}})
		require.NoError(t, err)
		defer c.Close()
		require.Equal(t, []string{"a", "b", "c"}, c.Endpoints(logsMethod))
		why := errors.New("its list lacks a log")
		err = c.Distrust("a", logsMethod, why)
		require.ErrorIs(t, err, why)
		require.True(t, IsNoAnswer(err))
		require.Equal(t, []string{"b", "c", "a"}, c.Endpoints(logsMethod))
		require.Equal(t, []string{"a", "b", "c"}, c.Endpoints(blockReceiptsMethod))
		require.ErrorIs(t, c.Distrust("elsewhere", logsMethod, why), ErrNoEndpoint)
		c.Exclude("b", Exclusion{Reason: "another history"})
		require.Equal(t, []string{"c", "a"}, c.Endpoints(logsMethod))
	})
}

func FuzzParseLogs(f *testing.F) {
	f.Add([]byte(logsJSON(logOf(1, 0, 0), logOf(1, 0, 1))))
	f.Add([]byte(`[{"topics":["0x"]}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		logs, err := parseLogs(text, tenBlocks)
		if err == nil {
			again, err := parseLogs([]byte(logsJSON(logs...)), tenBlocks)
			require.NoError(t, err)
			require.Equal(t, logs, again)
		}
	})
}

func BenchmarkParseLogs(b *testing.B) {
	topic := crypto.Keccak256Hash([]byte("EscrowDeployed"))
	logs := make([]Log, 100_000)
	for i := range logs {
		n := uint64(i)
		logs[i] = logOf(1+n/10_000, 0, n)
		logs[i].Topics = []common.Hash{topic, {1}, {2}, {3}}
		logs[i].Data = make([]byte, 128)
		logs[i].TxHash = common.Hash{byte(n / 100), byte(n / 25_600)}
		logs[i].TxIndex = n % 10_000 / 100
	}
	text := []byte(logsJSON(logs...))
	q := LogQuery{From: 1, To: 10, Topics: []common.Hash{topic}}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if got, err := parseLogs(text, q); err != nil || len(got) != len(logs) {
			b.Fatal(len(got), err)
		}
	}
}

// Without Run, an endpoint of another chain that its operator has corrected is used again.
func TestEndpoints_WrongChainCorrected_UsedAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.set(func() { f.chainID = simulatedID + 1 })
	c := open(t, Config{Endpoints: []string{f.url()}})
	name := c.endpoints[0].name
	_, err := c.HeaderAt(t.Context(), name, 1)
	require.Error(t, err)
	require.Empty(t, c.Endpoints(), "it is not asked")
	f.set(func() { f.chainID = simulatedID })
	later := func() { // than wrongFor
		c.endpoints[0].mu.Lock()
		defer c.endpoints[0].mu.Unlock()
		c.endpoints[0].reported = time.Now().Add(-wrongFor)
	}
	later()
	require.Equal(t, []string{name}, c.Endpoints())
	_, err = c.HeaderAt(t.Context(), name, 1)
	require.NoError(t, err)
}
