package evm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"
)

// provider is an endpoint in memory that allows a number of calls in each second, by the clock. It answers those that come
// first, and refuses the others, or the whole request.
type provider struct {
	identity
	perSecond int
	whole     bool          // a request with more calls than are left is refused as a whole
	latency   time.Duration // from a request's arrival to its answer

	mu       sync.Mutex
	second   int64
	used     int
	accepted int
	refused  int
	largest  int // batch that was answered without a refusal
}

func (p *provider) close() {}

func (p *provider) do(ctx context.Context, calls []call, _ bool) ([]answer, error) {
	answers, err := p.receive(ctx, calls)
	if p.latency > 0 && err == nil {
		<-time.After(p.latency)
	}
	return answers, err
}

func (p *provider) receive(ctx context.Context, calls []call) ([]answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, p.transportError(false, err)
	}
	if now := time.Now().Unix(); now != p.second {
		p.second, p.used = now, 0
	}
	left := p.perSecond - p.used
	if p.whole && len(calls) > left {
		left = 0
	}
	answers := make([]answer, len(calls))
	for i, c := range calls {
		if i >= left {
			p.refused++
			answers[i].err = p.rpcError(c.method, 429, "too many calls", nil)
			continue
		}
		p.used++
		p.accepted++
		answers[i].result = p.result(c)
	}
	if left >= len(calls) {
		p.largest = max(p.largest, len(calls))
	}
	return answers, siftLimited(p.name, calls, answers)
}

func (p *provider) result(c call) []byte {
	switch c.method {
	case "eth_chainId":
		return []byte(`"0x539"`)
	case "eth_getBlockByNumber", "eth_getBlockByHash":
		number := uint64(1000)
		if n, ok := c.params[0].(hexutil.Uint64); ok {
			number = uint64(n)
		}
		return []byte(blockJSON(number, 1))
	case "eth_getTransactionReceipt":
		return fmt.Appendf(nil, `{"transactionHash":%q,"blockHash":"0x%02x%062x","blockNumber":"0x3e8","transactionIndex":"0x0","status":"0x1","gasUsed":"0x1"}`,
			c.params[0].(common.Hash), 1, 1000)
	case "eth_getTransactionByHash":
		return []byte(`{"blockHash":null}`)
	case sendMethod:
		return fmt.Appendf(nil, "%q", common.BytesToHash(c.params[0].(hexutil.Bytes)))
	}
	return []byte(`"0x7"`)
}

// openProvider returns a client of providers, the preferred one first.
func openProvider(t *testing.T, cfg Config, providers ...*provider) *Client {
	t.Helper()
	for i := range providers {
		cfg.Endpoints = append(cfg.Endpoints, fmt.Sprintf("http://provider%d", i+1))
	}
	c := open(t, cfg)
	for i, p := range providers {
		p.identity = c.endpoints[i].identity
		c.endpoints[i].conn = p
	}
	return c
}

// A provider counts each item of a batch, and answers those that it allows. Every reader of batches gets all answers, at the
// provider's pace.
func TestBatch_PartlyLimited_AllAreAnswered(t *testing.T) {
	t.Parallel()
	const n, perSecond = 120, 25
	addrs, hashes, txs := make([]common.Address, n), make([]common.Hash, n), make([]Raw, n)
	for i := range n {
		addrs[i], hashes[i] = common.Address{19: byte(i)}, common.Hash{31: byte(i)}
		txs[i] = Raw{Bytes: hashes[i].Bytes(), Hash: hashes[i]}
	}
	view := func(f func(context.Context, *View) error) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error {
			v, err := c.Latest(ctx)
			if err != nil {
				return err
			}
			return f(ctx, v)
		}
	}
	readers := map[string]func(context.Context, *Client) error{
		"balances": func(ctx context.Context, c *Client) error { _, err := c.Balances(ctx, addrs); return err },
		"receipts": view(func(ctx context.Context, v *View) error { _, err := v.Receipts(ctx, hashes); return err }),
		"nonces":   view(func(ctx context.Context, v *View) error { _, err := v.Nonces(ctx, addrs); return err }),
		"pending":  view(func(ctx context.Context, v *View) error { _, err := v.PendingNonces(ctx, addrs); return err }),
		"headers":  view(func(ctx context.Context, v *View) error { _, err := v.Headers(ctx, 1000-n, 1000); return err }),
		"presence": view(func(ctx context.Context, v *View) error { _, err := v.Transactions(ctx, hashes); return err }),
		"sends":    func(ctx context.Context, c *Client) error { return errOf(c.Send(ctx, txs)) },
	}
	for name, read := range readers {
		for _, whole := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, whole %t", name, whole), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					p := &provider{perSecond: perSecond, whole: whole}
					c := openProvider(t, Config{}, p)
					began := time.Now()
					for range 3 {
						require.NoError(t, read(t.Context(), c))
					}
					seconds := time.Since(began).Seconds()
					require.Less(t, seconds, 2.5*3*n/perSecond, "the allowed calls are used")
					require.Less(t, p.refused, 2*n, "of %d calls", p.accepted)
				})
			})
		}
	}
}

// With a bound, a provider that allows so many never refuses a call, and a client beside uses half of it at most.
func TestMaxRPS_Bound_IsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &provider{perSecond: 25}
		c := openProvider(t, Config{MaxRPS: []int{25}}, p)
		beside := openProvider(t, Config{MaxRPS: []int{25}, Beside: c}, p)
		addrs := make([]common.Address, 200)
		_, err := beside.Balances(t.Context(), addrs)
		require.NoError(t, err)
		began := time.Now()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = beside.Balances(ctx, addrs)
			}
		})
		_, err = c.Balances(t.Context(), addrs)
		require.NoError(t, err)
		require.Less(t, time.Since(began), 20*time.Second)
		cancel()
		wg.Wait()
		require.Zero(t, p.refused)
	})
}

// The deadline of a caller ends its wait for the pace at once, and says nothing about the endpoint.
func TestMaxRPS_DeadlineBeforeTurn_RateLimitError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openProvider(t, Config{MaxRPS: []int{5}}, &provider{perSecond: 1000})
		_, err := c.Balances(t.Context(), make([]common.Address, 3)) // and two to verify the chain
		require.NoError(t, err)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		_, err = c.Balances(ctx, make([]common.Address, 1))
		var limited *RateLimitError
		require.ErrorAs(t, err, &limited)
		require.Positive(t, limited.RetryAfter)
		require.Zero(t, time.Since(began))
		require.Equal(t, standingGood, c.endpoints[0].healthOf(time.Now(), "eth_getBalance"))
	})
}

func TestPace_Refusals_LowerAndForget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPace(0)
		take := func(n int) int {
			granted, _, err := p.take(t.Context(), n, wholeLimit, reads)
			require.NoError(t, err)
			return granted
		}
		require.Equal(t, 1000, take(1000), "no limit is known")
		require.InDelta(t, 500, p.refuse(1000, time.Now()), 1, "halved at most")
		require.InDelta(t, 500, p.refuse(1000, time.Now()), 1, "once in a second")
		<-time.After(2 * time.Second)
		require.Equal(t, 100, take(100))
		require.InDelta(t, 251, p.refuse(100, time.Now()), 2)
		<-time.After(2 * time.Second)
		require.Equal(t, 200, take(200))
		require.InDelta(t, 190, p.refuse(10, time.Now()), 1, "the number that was accepted")
		for range 20 {
			<-time.After(2 * time.Second)
			take(1)
			p.refuse(1, time.Now())
		}
		require.InDelta(t, 1, p.limit(time.Now()), 0.01)
		require.Equal(t, 1, take(10))
		<-time.After(10 * time.Second)
		require.InDelta(t, 1.1, p.limit(time.Now()), 0.1)
		<-time.After(2 * time.Minute)
		require.Equal(t, 1000, take(1000), "a limit without refusals is forgotten")
	})
}

// refusals are the ways in which providers refuse a batch, in words and forms that tell nothing.
var refusals = map[string]func(w http.ResponseWriter, calls []fakeCall){
	"500 with a code": func(w http.ResponseWriter, _ []fakeCall) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, `{"code":31,"message":"Batch of more than 3 requests are not allowed on free tier"}`)
	},
	"-32005": func(w http.ResponseWriter, _ []fakeCall) { fail(w, 200, -32005, "Batched requests are not supported") },
	"429":    func(w http.ResponseWriter, _ []fakeCall) { fail(w, 429, 429, "too many requests") },
	"403":    func(w http.ResponseWriter, _ []fakeCall) { w.WriteHeader(403) },
	"404":    func(w http.ResponseWriter, _ []fakeCall) { w.WriteHeader(404) },
	"page":   func(w http.ResponseWriter, _ []fakeCall) { _, _ = io.WriteString(w, "<html>no</html>") },
	"reset":  func(w http.ResponseWriter, _ []fakeCall) { faults["resets"].apply(nil, w) },
	"empty":  func(w http.ResponseWriter, _ []fakeCall) { _, _ = io.WriteString(w, "[]") },
	"only the first": func(w http.ResponseWriter, calls []fakeCall) {
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":"0x1"}`, calls[0].ID)
	},
	"one error for each": func(w http.ResponseWriter, calls []fakeCall) {
		text := ""
		for _, c := range calls {
			text += fmt.Sprintf(`,{"jsonrpc":"2.0","id":%s,"error":{"code":31,"message":"no batches on your plan"}}`, c.ID)
		}
		_, _ = io.WriteString(w, "["+text[1:]+"]")
	},
	"-32005 for each": func(w http.ResponseWriter, calls []fakeCall) {
		text := ""
		for _, c := range calls {
			text += fmt.Sprintf(`,{"jsonrpc":"2.0","id":%s,"error":{"code":-32005,"message":"limit exceeded"}}`, c.ID)
		}
		_, _ = io.WriteString(w, "["+text[1:]+"]")
	},
}

// A batch that fails in any form is tried smaller. The size that works is remembered, and the endpoint stays healthy.
func TestBatch_RefusedInAnyForm_SmallerOnesAreSent(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		for _, allowed := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d allowed", name, allowed), func(t *testing.T) {
				t.Parallel()
				f := newFake(t)
				f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
					if len(calls) > allowed {
						refuse(w, calls)
					}
					return len(calls) > allowed
				})
				f.always("eth_getBalance", `"0x2a"`, "")
				c := open(t, Config{Endpoints: []string{f.url()}})
				ep := c.endpoints[0]
				freeze := func() { // the size is not raised during the test
					ep.mu.Lock()
					defer ep.mu.Unlock()
					ep.batches.changed = time.Now().Add(time.Hour)
				}
				addrs, txs := make([]common.Address, 20), make([]Raw, 20)
				for i := range txs {
					txs[i].Bytes = []byte{byte(i)}
				}
				balances, err := c.Balances(t.Context(), addrs)
				require.NoError(t, err)
				for _, b := range balances {
					require.EqualValues(t, 42, b.Int64())
				}
				freeze()
				require.LessOrEqual(t, ep.batchLimit(), allowed)
				f.set(func() { f.batches = nil })
				for i, r := range c.Send(t.Context(), txs) {
					require.Equal(t, Accepted, r.Outcome, "%d: %v", i, r.Err)
				}
				_, err = c.Balances(t.Context(), addrs)
				require.NoError(t, err)
				for _, size := range f.batches {
					require.LessOrEqual(t, size, allowed, "the size is remembered")
				}
				require.Equal(t, standingGood, ep.healthOf(time.Now(), "eth_getBalance", sendMethod))
				require.Empty(t, c.Status().Endpoints[0].Failing)
			})
		}
	}
}

// An endpoint that does not answer a single call either is failing, after two requests.
func TestBatch_SingleCallFailsToo_EndpointFails(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		switch name {
		case "empty", "only the first", "one error for each", "-32005 for each":
			continue // forms of an answer to a batch
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			c := open(t, Config{Endpoints: []string{f.url()}})
			c.poll(t.Context(), c.endpoints[0])
			f.set(func() { f.seen, f.batches = nil, nil })
			f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool { refuse(w, calls); return true })
			_, err := c.Balances(t.Context(), make([]common.Address, 20))
			require.True(t, IsNoAnswer(err), err)
			require.Equal(t, []int{20}, f.batches)
			require.Equal(t, 21, f.count("eth_getBalance"))
			require.GreaterOrEqual(t, c.endpoints[0].healthOf(time.Now(), "eth_getBalance"), standingFailing)
			require.Equal(t, 100, c.endpoints[0].batchLimit(), "the batch was not the reason")
		})
	}
}

// One failure of a batch does not make batches small for good, and an endpoint that refuses them is not asked for larger ones
// all the time.
func TestBatchSize_RaisedAfterPauses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ allowed, least, most int }{
		{allowed: 100, least: 100, most: 100},
		{allowed: 3, least: 3, most: 3},
		{allowed: 1, least: 1, most: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := batchSize{size: 100}
			b.failed(100)
			failures := 0
			for range 3600 {
				<-time.After(time.Second)
				n := b.next(100)
				if n > test.allowed {
					b.failed(n)
					failures++
				} else {
					b.answered(n)
				}
			}
			require.GreaterOrEqual(t, b.size, test.least)
			require.LessOrEqual(t, b.size, test.most+1)
			require.LessOrEqual(t, failures, 20, "in an hour")
		})
	}
}

// A transaction that an endpoint may have accepted in a batch that failed is not certainly absent when the endpoint refuses
// its second attempt.
func TestSend_BatchFailsAndTransactionIsRefusedAlone_IsUnknown(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, batch bool) bool {
		if batch && calls[0].Method == sendMethod {
			w.WriteHeader(502)
			return true
		}
		return false
	})
	f.always(sendMethod, "", `{"code":-32000,"message":"txpool is full"}`)
	c := open(t, Config{Endpoints: []string{f.url()}})
	requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}, {Bytes: []byte{2}}}), Unknown, Unknown)
	requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), PoolFull)
}

// A refusal of a transaction that was sent again does not mean that the endpoint did not take it, if the words of its first
// refusal are not recognized.
func TestSend_UnknownWordsInBatchAndRefusedAlone_IsUnknown(t *testing.T) {
	t.Parallel()
	const tooMuchGas = `{"code":-32000,"message":"exceeds block gas limit"}`
	const timedOut = `{"code":-32000,"message":"upstream request timed out"}`
	each := func(w http.ResponseWriter, calls []fakeCall) {
		text := ""
		for _, c := range calls {
			text += fmt.Sprintf(`,{"jsonrpc":"2.0","id":%s,"error":%s}`, c.ID, timedOut)
		}
		_, _ = io.WriteString(w, "["+text[1:]+"]")
	}
	forAll := func(w http.ResponseWriter, _ []fakeCall) { fail(w, 200, -32000, "upstream request timed out") }
	for name, test := range map[string]struct {
		batch        func(w http.ResponseWriter, calls []fakeCall)
		alone        string
		want         Outcome
		unrecognized bool
	}{
		"error for each":                       {each, tooMuchGas, Unknown, false},
		"one error for all":                    {forAll, tooMuchGas, Unknown, false},
		"error for each, then other words":     {each, `{"code":-32000,"message":"something new"}`, Unknown, true},
		"one error for all, then other words":  {forAll, `{"code":-32000,"message":"something new"}`, Unknown, true},
		"error for each, then accepted":        {each, "", Accepted, false},
		"batch too large":                      {func(w http.ResponseWriter, _ []fakeCall) { fail(w, 200, -32600, "batch too large") }, tooMuchGas, ExceedsBlockGas, false},
		"HTTP status that refuses the request": {func(w http.ResponseWriter, _ []fakeCall) { w.WriteHeader(413) }, tooMuchGas, ExceedsBlockGas, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.onRequest(func(w http.ResponseWriter, calls []fakeCall, batch bool) bool {
				if batch && calls[0].Method == sendMethod {
					test.batch(w, calls)
					return true
				}
				return false
			})
			result := ""
			if test.alone == "" {
				result = `"0x` + strings.Repeat("0", 63) + `1"`
			}
			f.always(sendMethod, result, test.alone)
			c := open(t, Config{Endpoints: []string{f.url()}})
			results := c.Send(t.Context(), []Raw{{Bytes: []byte{1}}, {Bytes: []byte{2}}, {Bytes: []byte{3}}})
			requireOutcomes(t, results, test.want, test.want, test.want)
			for _, r := range results {
				require.Equal(t, test.unrecognized, r.Unrecognized)
			}
		})
	}
}

// A transaction that the endpoint has refused in unknown words is not certainly absent when the endpoint is not reached again.
func TestSend_UnknownWordsInBatchAndNotReachedAgain_IsUnknown(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, batch bool) bool {
		if calls[0].Method != sendMethod {
			return false
		}
		if batch {
			refusals["one error for each"](w, calls)
			return true
		}
		cancel()
		<-f.release
		return true
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	requireOutcomes(t, c.Send(ctx, []Raw{{Bytes: []byte{1}}, {Bytes: []byte{2}}}), Unknown, Unknown)
}

// A method that the endpoint always limits does not slow down the others, and does not take their answers away.
func TestFees_HistoryIsLimited_OtherAnswersCount(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.on("eth_getBlockByNumber", func([]json.RawMessage) (string, string) {
		return strings.Replace(blockJSON(100, 1), `"number"`, `"baseFeePerGas":"0x1","number"`, 1), ""
	})
	f.always("eth_gasPrice", `"0x64"`, "")
	f.always("eth_feeHistory", "", `{"code":429,"message":"compute units exceeded"}`)
	c := open(t, Config{Endpoints: []string{f.url()}})
	for range 3 {
		fees, err := c.endpoints[0].readFees(t.Context())
		require.ErrorContains(t, err, "compute units exceeded")
		require.EqualValues(t, 100, fees.GasPrice.Int64())
	}
	require.Equal(t, 3, f.count("eth_feeHistory"))
	require.Zero(t, c.endpoints[0].pace.learned)
}
