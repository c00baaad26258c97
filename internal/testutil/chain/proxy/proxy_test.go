package proxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testchain.Leftovers()...) }

type setup struct {
	*proxy.Proxy
	t        *testing.T
	chain    *testchain.Chain
	http, ws *ethclient.Client // through the proxy
}

func start(t *testing.T) *setup {
	t.Helper()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	p, err := proxy.Open(proxy.Config{HTTP: chain.URL(), WS: chain.WSURL(), Seed: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	s := &setup{Proxy: p, t: t, chain: chain}
	s.http, s.ws = s.dial(p.URL()), s.dial(p.WSURL())
	return s
}

func (s *setup) dial(url string) *ethclient.Client {
	s.t.Helper()
	c, err := ethclient.DialContext(s.t.Context(), url)
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

func (s *setup) transfer(nonce uint64) *types.Transaction {
	s.t.Helper()
	tx, err := types.SignNewTx(s.chain.Accounts[0].Key, types.LatestSignerForChainID(big.NewInt(testchain.ChainID)),
		&types.DynamicFeeTx{
			ChainID: big.NewInt(testchain.ChainID), Nonce: nonce, To: &common.Address{1}, Gas: 21_000,
			GasFeeCap: big.NewInt(10 * params.GWei), GasTipCap: big.NewInt(params.GWei),
		})
	require.NoError(s.t, err)
	return tx
}

// taken reports whether the node has the transaction.
func (s *setup) taken(tx *types.Transaction) bool {
	s.t.Helper()
	_, _, err := s.chain.Client().TransactionByHash(s.t.Context(), tx.Hash())
	if err != nil {
		require.ErrorIs(s.t, err, ethereum.NotFound)
	}
	return err == nil
}

var send = []string{"eth_sendRawTransaction"}

func TestProxy_NoRules_PassesAll(t *testing.T) {
	t.Parallel()
	s := start(t)
	heads := make(chan *types.Header, 10)
	sub, err := s.ws.SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	for nonce, c := range []*ethclient.Client{s.http, s.ws} {
		tx := s.transfer(uint64(nonce))
		require.NoError(t, c.SendTransaction(t.Context(), tx))
		hash := s.chain.Commit()
		require.Equal(t, hash, (<-heads).Hash())
		receipt, err := c.TransactionReceipt(t.Context(), tx.Hash())
		require.NoError(t, err)
		require.Equal(t, hash, receipt.BlockHash)
		batch := []rpc.BatchElem{{Method: "eth_chainId", Result: new(hexutil.Uint64)}, {Method: "nonsense", Result: new(any)}}
		require.NoError(t, c.Client().BatchCallContext(t.Context(), batch))
		require.NoError(t, batch[0].Error)
		require.ErrorContains(t, batch[1].Error, "does not exist")
	}
	require.Empty(t, s.Injected())
	response, err := http.Post(s.URL(), "application/json", strings.NewReader("{"))
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Contains(t, string(body), "parse error")
}

// Each fault has the expected error for the sender, and the node has the transaction or not.
func TestFault_EachKind_ErrorAndEffect(t *testing.T) {
	t.Parallel()
	const hangs = "context canceled" // of a caller that gives up, because there is no answer
	for name, test := range map[string]struct {
		fault    proxy.Fault
		http, ws string // the caller's error; "" for none
		taken    bool
	}{
		"refuse":           {proxy.Fault{Kind: proxy.Refuse}, "refused", "refused", false},
		"refuse in words":  {proxy.Fault{Kind: proxy.Refuse, Code: -32003, Message: "txpool is full"}, "txpool is full", "txpool is full", false},
		"status":           {proxy.Fault{Kind: proxy.Status}, "503", "refused", false},
		"too many":         {proxy.Fault{Kind: proxy.Status, Code: 429}, "429", "refused", false},
		"cut":              {proxy.Fault{Kind: proxy.Cut}, "reset by peer", "", false},
		"lose":             {proxy.Fault{Kind: proxy.Lose}, "reset by peer", "", true},
		"hang":             {proxy.Fault{Kind: proxy.Hang}, hangs, hangs, true},
		"omit":             {proxy.Fault{Kind: proxy.Omit}, "EOF", hangs, true},
		"garble":           {proxy.Fault{Kind: proxy.Garble}, "invalid character", "", true},
		"truncate":         {proxy.Fault{Kind: proxy.Truncate}, "unexpected EOF", "", true},
		"delay":            {proxy.Fault{Kind: proxy.Delay, Delay: 20 * time.Millisecond}, "ok", "ok", true},
		"answer":           {proxy.Fault{Kind: proxy.Answer, Result: `"0x12"`}, "ok", "ok", false},
		"reject":           {proxy.Fault{Kind: proxy.Reject, Code: 31, Message: "not on your plan"}, "not on your plan", "not on your plan", false},
		"reject by status": {proxy.Fault{Kind: proxy.Reject, Status: 500}, "500", "refused", false},
		"forget":           {proxy.Fault{Kind: proxy.Forget}, "ok", "ok", false},
		"a delay too long": {proxy.Fault{Kind: proxy.Delay, Delay: 5 * time.Second}, hangs, hangs, true},
	} {
		for kind, says := range map[string]string{"http": test.http, "ws": test.ws} {
			t.Run(name+" over "+kind, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				s.SetRules(proxy.Rule{Name: "it", Methods: send, Fault: test.fault})
				c := s.http
				if kind == "ws" {
					c = s.ws
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				tx := s.transfer(0)
				sent := make(chan error, 1)
				go func() { sent <- c.SendTransaction(ctx, tx) }()
				if says == hangs {
					require.Eventually(t, func() bool { return s.Injected()["it"] == 1 }, 2*time.Minute, time.Millisecond)
					select {
					case err := <-sent:
						require.Fail(t, "it does not hang", "%v", err)
					case <-time.After(200 * time.Millisecond): // nothing must happen meanwhile
					}
					cancel()
				}
				err := <-sent
				switch says {
				case "ok":
					require.NoError(t, err)
				case "": // the connection ends, with an error that depends on the time of detection
					require.Error(t, err)
				default:
					require.ErrorContains(t, err, says)
				}
				require.Equal(t, map[string]uint64{"it": 1}, s.Injected())
				if test.taken {
					require.Eventually(t, func() bool { return s.taken(tx) }, 2*time.Minute, time.Millisecond)
				} else {
					require.False(t, s.taken(tx))
				}
				_, err = s.http.ChainID(t.Context())
				require.NoError(t, err, "other methods are not concerned")
			})
		}
	}
}

func TestFault_Status_CodeAndRetryAfter(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.SetRules(proxy.Rule{Name: "busy", Fault: proxy.Fault{Kind: proxy.Status, Code: 429, RetryAfter: 7}})
	response, err := http.Post(s.URL(), "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}`))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 429, response.StatusCode)
	require.Equal(t, "7", response.Header.Get("Retry-After"))
	s.SetRules(proxy.Rule{Name: "cut", Fault: proxy.Fault{Kind: proxy.Cut}})
	_, err = s.http.ChainID(t.Context())
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestBatch_EachCallIsHandledSeparately(t *testing.T) {
	t.Parallel()
	s := start(t)
	bad := s.transfer(1).Hash()
	s.SetRules(proxy.Rule{
		Name: "that one", When: proxy.Sends(func(tx *types.Transaction) bool { return tx.Hash() == bad }),
		Fault: proxy.Fault{Kind: proxy.Refuse},
	}, proxy.Rule{Name: "no answer", Methods: []string{"eth_chainId"}, Fault: proxy.Fault{Kind: proxy.Omit}})
	batch := make([]rpc.BatchElem, 3, 4)
	for i := range batch {
		raw, err := s.transfer(uint64(i)).MarshalBinary()
		require.NoError(t, err)
		batch[i] = rpc.BatchElem{Method: "eth_sendRawTransaction", Args: []any{hexutil.Bytes(raw)}, Result: new(common.Hash)}
	}
	batch = append(batch, rpc.BatchElem{Method: "eth_chainId", Result: new(hexutil.Uint64)})
	require.NoError(t, s.http.Client().BatchCallContext(t.Context(), batch))
	require.NoError(t, batch[0].Error)
	require.ErrorContains(t, batch[1].Error, "refused")
	require.NoError(t, batch[2].Error)
	require.ErrorIs(t, batch[3].Error, rpc.ErrMissingBatchResponse)
	require.Equal(t, map[string]uint64{"that one": 1, "no answer": 1}, s.Injected())
}

// A fault of one item rejects the whole batch, which gets one error.
func TestBatch_RejectedOverWebsocket_GetsOneError(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]proxy.Kind{"reject": proxy.Reject, "status": proxy.Status} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.SetRules(proxy.Rule{Name: "it", Methods: []string{"eth_chainId"}, Fault: proxy.Fault{Kind: kind, Message: "no batches"}})
			tx := s.transfer(0)
			raw, err := tx.MarshalBinary()
			require.NoError(t, err)
			batch := []rpc.BatchElem{
				{Method: "eth_sendRawTransaction", Args: []any{hexutil.Bytes(raw)}, Result: new(common.Hash)},
				{Method: "eth_chainId", Result: new(hexutil.Uint64)},
			}
			require.NoError(t, s.ws.Client().BatchCallContext(t.Context(), batch))
			require.ErrorContains(t, batch[0].Error, "no batches")
			require.ErrorIs(t, batch[1].Error, rpc.ErrMissingBatchResponse)
			require.False(t, s.taken(tx))
			require.Equal(t, map[string]uint64{"it": 1}, s.Injected())
		})
	}
}

// A provider that refuses large batches answers one error, and one that counts calls refuses those beyond its limit.
func TestBatch_ProvidersLimits(t *testing.T) {
	t.Parallel()
	s := start(t)
	ask := func(n int) (answered int, err error) {
		batch := make([]rpc.BatchElem, n)
		for i := range batch {
			batch[i] = rpc.BatchElem{Method: "eth_chainId", Result: new(hexutil.Uint64)}
		}
		err = s.http.Client().BatchCallContext(t.Context(), batch)
		for _, b := range batch {
			if err == nil && b.Error == nil {
				answered++
			} else if err == nil {
				require.ErrorContains(t, b.Error, "too many calls")
			}
		}
		return answered, err
	}
	s.SetRules(proxy.Rule{Name: "batches", When: proxy.Larger(3), Fault: proxy.Fault{Kind: proxy.Reject, Status: 500, Code: 31, Message: "no"}})
	answered, err := ask(3)
	require.NoError(t, err)
	require.Equal(t, 3, answered)
	_, err = ask(4)
	require.ErrorContains(t, err, "500")

	s.SetRules(proxy.Rule{Name: "calls", When: proxy.Beyond(5), Fault: proxy.Fault{Kind: proxy.Refuse, Code: 429, Message: "too many calls"}})
	began := time.Now().Unix()
	for range 3 {
		answered, err = ask(16)
		require.NoError(t, err)
		require.LessOrEqual(t, answered, 5*int(time.Now().Unix()-began+1))
	}
	require.Positive(t, s.Injected()["calls"])
}

func TestRules_ScriptLimitAndProbability(t *testing.T) {
	t.Parallel()
	s := start(t)
	refuse := proxy.Fault{Kind: proxy.Refuse}
	failed := func(calls int) (which []int) {
		for n := range calls {
			if _, err := s.http.ChainID(t.Context()); err != nil {
				which = append(which, n+1)
			}
		}
		return which
	}
	s.SetRules(proxy.Rule{Name: "script", When: proxy.At(2, 5), Fault: refuse})
	require.Equal(t, []int{2, 5}, failed(6))
	s.SetRules(proxy.Rule{Name: "limit", Limit: 2, Fault: refuse})
	require.Equal(t, []int{1, 2}, failed(4))
	s.SetRules(proxy.Rule{Name: "chance", Probability: 0.3, Fault: refuse})
	require.InDelta(t, 60, len(failed(200)), 30)
	require.EqualValues(t, 2, s.Injected()["limit"])
	s.SetRules(proxy.Rule{Name: "switched", Fault: refuse})
	s.Switch(false)
	require.Empty(t, failed(3))
	s.Switch(true)
	require.Len(t, failed(3), 3)
	s.SetRules()
	require.Empty(t, failed(3))
}

func TestRules_SameSeed_SameFaults(t *testing.T) {
	t.Parallel()
	run := func() (failed []int) {
		s := start(t)
		s.SetRules(proxy.Rule{Name: "chance", Probability: 0.5, Fault: proxy.Fault{Kind: proxy.Refuse}})
		for n := range 50 {
			if _, err := s.http.ChainID(t.Context()); err != nil {
				failed = append(failed, n)
			}
		}
		return failed
	}
	require.Equal(t, run(), run())
}

func TestProxy_Lags_ShowsOldState(t *testing.T) {
	t.Parallel()
	s := start(t)
	from := s.chain.Accounts[0].Address
	heads := make(chan *types.Header, 10)
	sub, err := s.ws.SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	tx := s.transfer(0)
	require.NoError(t, s.http.SendTransaction(t.Context(), tx))
	s.SetLag(2)
	block2 := s.chain.Commit()
	require.EqualValues(t, 0, (<-heads).Number.Uint64(), "two before the second")
	s.chain.Commit() // the third; the view shows the first
	require.EqualValues(t, 1, (<-heads).Number.Uint64())
	for _, c := range []*ethclient.Client{s.http, s.ws} {
		n, err := c.BlockNumber(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		head, err := c.HeaderByNumber(t.Context(), nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, head.Number.Uint64())
		_, err = c.HeaderByNumber(t.Context(), big.NewInt(2))
		require.ErrorIs(t, err, ethereum.NotFound)
		_, err = c.HeaderByHash(t.Context(), block2)
		require.ErrorIs(t, err, ethereum.NotFound)
		_, err = c.TransactionReceipt(t.Context(), tx.Hash())
		require.ErrorIs(t, err, ethereum.NotFound)
		_, pending, err := c.TransactionByHash(t.Context(), tx.Hash())
		require.NoError(t, err)
		require.True(t, pending)
		receipts, err := c.BlockReceipts(t.Context(), rpc.BlockNumberOrHashWithHash(block2, false))
		if err == nil {
			require.Empty(t, receipts)
		}
		nonce, err := c.NonceAt(t.Context(), from, nil)
		require.NoError(t, err)
		require.Zero(t, nonce)
		nonce, err = c.PendingNonceAt(t.Context(), from)
		require.NoError(t, err)
		require.EqualValues(t, 1, nonce, "the pool is shown as it is")
	}
	s.SetLag(0)
	receipt, err := s.http.TransactionReceipt(t.Context(), tx.Hash())
	require.NoError(t, err)
	require.Equal(t, block2, receipt.BlockHash)
	require.Equal(t, s.chain.Commit(), (<-heads).Hash())
}

func TestFault_OmittedHead_IsLost(t *testing.T) {
	t.Parallel()
	s := start(t)
	heads := make(chan *types.Header, 10)
	sub, err := s.ws.SubscribeNewHead(t.Context(), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	s.SetRules(proxy.Rule{Name: "head", Methods: []string{"eth_subscription"}, When: proxy.At(1), Fault: proxy.Fault{Kind: proxy.Omit}})
	s.chain.Commit()
	second := s.chain.Commit()
	require.Equal(t, second, (<-heads).Hash())
}

func TestProxy_Down_ClosesAndRejects(t *testing.T) {
	t.Parallel()
	s := start(t)
	sub, err := s.ws.SubscribeNewHead(t.Context(), make(chan *types.Header))
	require.NoError(t, err)
	s.SetDown(true)
	require.Error(t, <-sub.Err())
	_, err = s.http.ChainID(t.Context())
	require.Error(t, err)
	_, err = rpc.DialContext(t.Context(), s.WSURL())
	require.Error(t, err)
	s.SetDown(false)
	_, err = s.http.ChainID(t.Context())
	require.NoError(t, err)
	_, err = s.dial(s.WSURL()).ChainID(t.Context())
	require.NoError(t, err)
}

func TestSetNode_ClosesWebsocketsAndServesTheOtherNode(t *testing.T) {
	t.Parallel()
	s := start(t)
	sub, err := s.ws.SubscribeNewHead(t.Context(), make(chan *types.Header))
	require.NoError(t, err)
	other := testchain.Simulated(t, testchain.SimulatedOptions{})
	head := other.Commit()
	require.NotEqual(t, head, s.chain.Commit())
	s.SetNode(other.URL(), other.WSURL())
	select {
	case err := <-sub.Err():
		require.Error(t, err)
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the websocket stays open")
	}
	for _, c := range []*ethclient.Client{s.http, s.dial(s.WSURL())} {
		shown, err := c.HeaderByNumber(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, head, shown.Hash())
	}
}

func TestProxy_ConcurrentCallsWhileRulesChange(t *testing.T) {
	t.Parallel()
	s := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range []*ethclient.Client{s.http, s.ws, s.http, s.ws} {
		wg.Go(func() {
			for range 50 {
				call, end := context.WithTimeout(ctx, 2*time.Second)
				_, _ = c.BlockNumber(call) // any result is valid
				end()
			}
		})
	}
	wg.Go(func() {
		for n := range uint64(50) {
			s.SetRules(proxy.Rule{Name: "any", Probability: 0.2, Fault: proxy.Fault{Kind: proxy.Kind(n%2 + 1), Code: 503}})
			s.SetLag(n % 2)
			s.Switch(n%3 > 0)
			s.chain.Commit()
			_ = s.Injected()
		}
	})
	wg.Wait()
	require.NoError(t, ctx.Err())
}

func TestClose_CallHangs_EndsIt(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.SetRules(proxy.Rule{Name: "hang", Methods: []string{"eth_chainId"}, Fault: proxy.Fault{Kind: proxy.Hang}})
	ended := make(chan error, 1)
	go func() {
		_, err := s.http.ChainID(t.Context())
		ended <- err
	}()
	require.Eventually(t, func() bool { return s.Injected()["hang"] == 1 }, 2*time.Minute, time.Millisecond)
	require.NoError(t, s.Close())
	require.Error(t, <-ended)
	require.NoError(t, s.Close(), "closing again does nothing")
	_, err := proxy.Open(proxy.Config{})
	require.Error(t, err)
	require.False(t, errors.Is(err, io.EOF))
}

func TestChange_ParametersAndResults_AreReplaced(t *testing.T) {
	t.Parallel()
	s := start(t)
	from := s.chain.Accounts[0].Address
	require.NoError(t, s.http.SendTransaction(t.Context(), s.transfer(0)))
	s.SetRules(
		proxy.Rule{
			Name: "pending is latest", Methods: []string{"eth_getTransactionCount"},
			When: func(c proxy.Call) bool { return strings.Contains(string(c.Params), "pending") },
			Fault: proxy.Fault{Kind: proxy.Change, Params: func(p json.RawMessage) json.RawMessage {
				return bytes.ReplaceAll(p, []byte("pending"), []byte("latest"))
			}},
		},
		proxy.Rule{Name: "another id", Methods: []string{"eth_chainId"}, Fault: proxy.Fault{
			Kind: proxy.Change, Alter: func(json.RawMessage) json.RawMessage { return json.RawMessage(`"0x7"`) },
		}},
	)
	for _, c := range []*ethclient.Client{s.http, s.ws} {
		nonce, err := c.PendingNonceAt(t.Context(), from)
		require.NoError(t, err)
		require.Zero(t, nonce)
		id, err := c.ChainID(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 7, id.Uint64())
	}
	require.Equal(t, map[string]uint64{"pending is latest": 2, "another id": 2}, s.Injected())
	s.Switch(false)
	nonce, err := s.http.PendingNonceAt(t.Context(), from)
	require.NoError(t, err)
	require.EqualValues(t, 1, nonce)
}

func TestSwitch_PermanentRule_StillStrikes(t *testing.T) {
	t.Parallel()
	s := start(t)
	refuse := proxy.Fault{Kind: proxy.Refuse}
	s.SetRules(
		proxy.Rule{Name: "passing", Methods: []string{"eth_blockNumber"}, Fault: refuse},
		proxy.Rule{Name: "permanent", Methods: []string{"eth_chainId"}, Permanent: true, Fault: refuse},
	)
	s.Switch(false)
	_, err := s.http.BlockNumber(t.Context())
	require.NoError(t, err)
	_, err = s.http.ChainID(t.Context())
	require.Error(t, err)
	s.Switch(true)
	_, err = s.http.BlockNumber(t.Context())
	require.Error(t, err)
}
