package evm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

const (
	short   = time.Second      // a timeout that should expire
	patient = 20 * time.Second // a timeout that should not expire
)

// faults are the ways in which a node gives no answer; each applies only to calls of one method.
var faults = map[string]struct {
	apply   func(f *fake, w http.ResponseWriter)
	outcome Outcome // of a transaction sent that way
}{
	"hangs": {func(f *fake, _ http.ResponseWriter) { <-f.release }, Unknown},
	"resets": {func(_ *fake, w http.ResponseWriter) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}, Unknown},
	"truncated": {func(_ *fake, w http.ResponseWriter) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":"0x`)
	}, Unknown},
	"cut JSON": {func(_ *fake, w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":"0x7`)
	}, Unknown},
	"HTML":         {func(_ *fake, w http.ResponseWriter) { _, _ = io.WriteString(w, `<html>maintenance</html>`) }, Unknown},
	"empty":        {func(*fake, http.ResponseWriter) {}, Unknown},
	"neither":      {func(_ *fake, w http.ResponseWriter) { _, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1}`) }, Unknown},
	"500":          {func(_ *fake, w http.ResponseWriter) { w.WriteHeader(500) }, Unknown},
	"503 JSON":     {func(_ *fake, w http.ResponseWriter) { fail(w, 503, -32000, "nonce too low") }, Unknown},
	"unauthorized": {func(_ *fake, w http.ResponseWriter) { fail(w, 401, -32000, "nonce too low") }, Unknown},
	"redirect": {func(_ *fake, w http.ResponseWriter) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusMovedPermanently)
	}, Unknown},
	"too long":    {func(_ *fake, w http.ResponseWriter) { _, _ = w.Write(bytes.Repeat([]byte(" "), 1<<20)) }, Unknown},
	"429":         {func(_ *fake, w http.ResponseWriter) { w.WriteHeader(429) }, RateLimited},
	"429 JSON":    {func(_ *fake, w http.ResponseWriter) { fail(w, 429, -32005, "slower") }, RateLimited},
	"-32005":      {func(_ *fake, w http.ResponseWriter) { fail(w, 200, -32005, "slower") }, RateLimited},
	"403 limited": {func(_ *fake, w http.ResponseWriter) { fail(w, 400, 429, "slower") }, RateLimited},
}

func fail(w http.ResponseWriter, status, code int, message string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":%q}}`, code, message)
}

// breakFor applies a fault to requests of a method.
func (f *fake) breakFor(method string, apply func(*fake, http.ResponseWriter)) {
	f.onRequest(func(w http.ResponseWriter, calls []fakeCall, _ bool) bool {
		if calls[0].Method != method {
			return false
		}
		apply(f, w)
		return true
	})
}

// shorten gives endpoints that hang a short timeout. All endpoints report their chain before, so that it does not limit that.
func (c *Client) shorten(t *testing.T, hanging ...int) {
	t.Helper()
	for _, ep := range c.endpoints {
		c.poll(t.Context(), ep)
		require.Equal(t, standingGood, ep.healthOf(time.Now()))
	}
	for _, i := range hanging {
		cfg := c.cfg
		cfg.Timeout = short
		c.endpoints[i].cfg = &cfg
	}
}

// prolong makes the pauses that the endpoint has been given outlast the test.
func (ep *endpoint) prolong() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	until := time.Now().Add(time.Hour)
	if !ep.until.IsZero() {
		ep.until = until
	}
	for _, m := range ep.methods {
		if !m.until.IsZero() {
			m.until = until
		}
	}
}

func TestReads_NoResponse_NextEndpointAnswers(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.breakFor("eth_getBalance", fault.apply)
			second.always("eth_getBalance", `"0x2a"`, "")
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}, MaxResponse: 1 << 19})
			if name == "hangs" {
				c.shorten(t, 0)
			}
			balances, err := c.Balances(t.Context(), []common.Address{{1}})
			require.NoError(t, err)
			require.EqualValues(t, 42, balances[0].Int64())
			require.Eventually(t, func() bool { return first.count("eth_getBalance") == 1 }, patient, time.Millisecond)

			c.endpoints[0].prolong()
			_, err = c.Balances(t.Context(), []common.Address{{1}})
			require.NoError(t, err)
			require.Equal(t, 1, first.count("eth_getBalance"), "what has failed is left alone for a while")
		})
	}
}

func TestCall_RPCError_IsReturnedWithoutNextEndpoint(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"200": 200, "400": 400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newFake(t), newFake(t)
			first.breakFor("eth_call", func(_ *fake, w http.ResponseWriter) { fail(w, status, -32000, "execution reverted: no") })
			c := open(t, Config{Endpoints: []string{first.url(), second.url()}})
			_, err := c.Call(t.Context(), "eth_call", nil)
			var rpcErr *RPCError
			require.ErrorAs(t, err, &rpcErr)
			require.Equal(t, "execution reverted: no", rpcErr.Message)
			require.Zero(t, second.count("eth_call"))
			require.Equal(t, standingGood, c.endpoints[0].healthOf(time.Now(), "eth_call"))
		})
	}
}

func TestSend_NoResponse_IsUnknown(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.breakFor("eth_sendRawTransaction", fault.apply)
			c := open(t, Config{Endpoints: []string{f.url()}, MaxResponse: 1 << 19})
			if name == "hangs" {
				c.shorten(t, 0)
			}
			requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), fault.outcome)
			if fault.outcome == RateLimited {
				c.endpoints[0].prolong()
				requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), RateLimited)
				require.Equal(t, 1, f.count("eth_sendRawTransaction"), "what asks to be left alone is")
			}
		})
	}
}

func TestSend_NoEndpointReached_IsNotSent(t *testing.T) {
	t.Parallel()
	wrong := newFake(t)
	wrong.set(func() { wrong.chainID = 1 })
	c := open(t, Config{Endpoints: []string{"http://127.0.0.1:1", wrong.url()}})
	for range 2 {
		requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}, {Bytes: []byte{2}}}), NotSent, NotSent)
	}
	require.Zero(t, wrong.count("eth_sendRawTransaction"), "nothing is sent to another chain")
}

func TestEndpoint_OtherChain_IsNotUsed(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.set(func() { f.chainID = 5 })
	c := open(t, Config{Endpoints: []string{f.url()}})
	_, err := c.Latest(t.Context())
	var wrong *WrongChainError
	require.ErrorAs(t, err, &wrong)
	require.EqualValues(t, 5, wrong.Have)
	_, err = c.Latest(t.Context())
	require.ErrorIs(t, err, ErrNoEndpoint)
	require.ErrorAs(t, err, &wrong)
	for _, call := range f.seen {
		if call.Method != "eth_chainId" {
			require.Equal(t, `"0x0"`, string(call.Params[0]), "only asked who it is")
		}
	}
	s := c.Status()
	require.False(t, s.OK())
	require.Equal(t, "chain id is 5, not 1337", s.Endpoints[0].Reason)
	require.ErrorAs(t, c.Anchors(t.Context(), 1, 0)[0].Err, &wrong)

	// A poll uses the endpoint again once its chain is corrected.
	f.set(func() { f.chainID = simulatedID })
	c.poll(t.Context(), c.endpoints[0])
	_, err = c.Latest(t.Context())
	require.NoError(t, err)
}

func TestSend_SeveralEndpoints_ResultsAreCombined(t *testing.T) {
	t.Parallel()
	const (
		tooLow = `{"code":-32000,"message":"nonce too low"}`
		full   = `{"code":-32000,"message":"txpool is full"}`
		under  = `{"code":-32000,"message":"transaction underpriced"}`
		much   = `{"code":-32000,"message":"exceeds block gas limit"}`
		large  = `{"code":-32010,"message":"transaction too large"}`
		hang   = "hang"
	)
	for _, test := range []struct {
		name, first, second string
		want                Outcome
		unreached           bool
		rejected            Outcome
	}{
		{name: "both accept", want: Accepted},
		{name: "first refuses", first: full, want: Accepted},
		{name: "second refuses", second: full, want: Accepted},
		{name: "first hangs", first: hang, want: Accepted},
		{name: "second hangs", second: hang, want: Accepted},
		{name: "one hangs, the other refuses", first: hang, second: under, want: Unknown},
		{name: "one refuses, the other hangs", first: under, second: hang, want: Unknown},
		{name: "both refuse", first: under, second: full, want: PoolFull},
		{name: "an answer about the chain", first: tooLow, second: under, want: NonceTooLow},
		{name: "first makes smaller blocks", first: much, want: Accepted},
		{name: "first takes fewer bytes", first: large, want: Accepted},
		{name: "first counts too many", first: tooLow, want: Accepted},
		{name: "first has another transaction", first: `{"code":-32000,"message":"replacement transaction underpriced"}`, want: Accepted},
		{name: "first demands more gas", first: `{"code":-32000,"message":"intrinsic gas too low"}`, want: Accepted},
		{name: "one demands more gas, the other hangs", first: `{"code":-32000,"message":"intrinsic gas too low"}`, second: hang, want: Unknown, rejected: IntrinsicGas},
		{name: "one takes fewer bytes, the other fails", first: large, second: `{"code":-32603,"message":"internal error"}`, want: Unknown, rejected: Oversized},
		{name: "one fails, the other makes smaller blocks", first: `{"code":-32603,"message":"internal error"}`, second: much, want: Unknown, rejected: ExceedsBlockGas},
		{name: "both reject for good", first: large, second: much, want: ExceedsBlockGas, rejected: ExceedsBlockGas},
		{name: "one rejects for good, the other for now", first: large, second: full, want: PoolFull},
		{name: "both hang", first: hang, second: hang, want: Unknown, unreached: true},
		{name: "first verifies signatures wrongly", first: `{"code":-32000,"message":"invalid sender"}`, want: Accepted},
	} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, all %t", test.name, all), func(t *testing.T) {
				t.Parallel()
				nodes := []*fake{newFake(t), newFake(t)}
				var hanging []int
				for i, says := range []string{test.first, test.second} {
					if says == hang {
						hanging = append(hanging, i)
						nodes[i].breakFor("eth_sendRawTransaction", faults["hangs"].apply)
					} else if says != "" {
						nodes[i].always("eth_sendRawTransaction", "", says)
					}
				}
				c := open(t, Config{Endpoints: []string{nodes[0].url(), nodes[1].url()}, BroadcastAll: all})
				c.shorten(t, hanging...)
				results := c.Send(t.Context(), []Raw{{Bytes: []byte{1}}})
				requireOutcomes(t, results, test.want)
				require.Equal(t, test.want == Accepted, results[0].Err == nil)
				require.Equal(t, test.unreached, !results[0].Reached)
				require.Equal(t, test.rejected, results[0].Rejected)
			})
		}
	}
}

func TestSend_OneEndpointHangs_DoesNotWait(t *testing.T) {
	t.Parallel()
	slow, quick := newFake(t), newFake(t)
	slow.breakFor("eth_sendRawTransaction", faults["hangs"].apply)
	c := open(t, Config{Endpoints: []string{slow.url(), quick.url()}, BroadcastAll: true, Timeout: time.Hour})
	requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), Accepted) // at once; Close ends the other send
}

func TestSend_ContextCanceled_IsUnknown(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		a, b := newFake(t), newFake(t)
		arrived := make(chan struct{}, 2)
		for _, f := range []*fake{a, b} {
			f.breakFor("eth_sendRawTransaction", func(f *fake, _ http.ResponseWriter) {
				arrived <- struct{}{}
				<-f.release
			})
		}
		c := open(t, Config{Endpoints: []string{a.url(), b.url()}, BroadcastAll: all, Timeout: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		asked := 1
		if all {
			asked = 2 // an endpoint that is asked later has not reported its chain yet
		}
		go func() {
			for range asked {
				<-arrived
			}
			cancel()
		}()
		requireOutcomes(t, c.Send(ctx, []Raw{{Bytes: []byte{1}}}), Unknown)
		require.Equal(t, standingGood, c.endpoints[0].healthOf(time.Now()), "which says nothing about the endpoint")
	}
}

func TestBatch_Rejected_IsSplit(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(w http.ResponseWriter, calls []fakeCall) bool{
		"single error": func(w http.ResponseWriter, _ []fakeCall) bool {
			fail(w, 200, -32600, "batches are not allowed")
			return true
		},
		"bare 400": func(w http.ResponseWriter, _ []fakeCall) bool {
			w.WriteHeader(400)
			return true
		},
		"too large": func(w http.ResponseWriter, calls []fakeCall) bool {
			if len(calls) > 7 {
				_, _ = fmt.Fprintf(w, `[{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"batch too large"}}]`, calls[0].ID)
			}
			return len(calls) > 7
		},
		"response too large": func(w http.ResponseWriter, calls []fakeCall) bool {
			text := ""
			for i, c := range calls {
				if i < 7 {
					text += fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%q},`, c.ID, unquote(c.Params[0]))
				} else {
					text += fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32003,"message":"response too large"}},`, c.ID)
				}
			}
			_, _ = io.WriteString(w, "["+strings.TrimSuffix(text, ",")+"]")
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			echo := func(params []json.RawMessage) (string, string) { return string(params[0]), "" }
			f.on("eth_getBalance", echo)
			f.on("eth_sendRawTransaction", echo)
			f.onRequest(func(w http.ResponseWriter, calls []fakeCall, batch bool) bool {
				return batch && calls[0].Method != "eth_chainId" && refuse(w, calls)
			})
			c := open(t, Config{Endpoints: []string{f.url()}})
			var addrs []common.Address
			var txs []Raw
			for i := range 30 {
				addrs = append(addrs, common.Address{0: 1, 19: byte(i)})
				txs = append(txs, Raw{Bytes: common.Hash{0: 1, 31: byte(i)}.Bytes()})
			}
			balances, err := c.Balances(t.Context(), addrs)
			require.NoError(t, err)
			for i, b := range balances {
				require.Equal(t, addrs[i].Big(), b)
			}
			f.set(func() { f.seen = nil })
			results := c.Send(t.Context(), txs)
			for i, r := range results {
				require.Equal(t, Accepted, r.Outcome, "%d: %v", i, r.Err)
			}
			// Transactions are in order; a repeated one counts when it came last.
			last := map[string]int{}
			for i, call := range f.seen {
				last[string(call.Params[0])] = i
			}
			for i := 1; i < len(txs); i++ {
				require.Less(t, last[fmt.Sprintf("%q", txs[i-1].text())], last[fmt.Sprintf("%q", txs[i].text())])
			}
		})
	}
}

func (r Raw) text() string { return common.BytesToHash(r.Bytes).Hex() }

func unquote(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s)
	return s
}

func TestURL_Secrets_AreNotShown(t *testing.T) {
	t.Parallel()
	const key, password = "k3y-0123456789abcdef", "pa55word-xyz"
	f := newFake(t)
	u := strings.Replace(f.url(), "http://", "http://user:"+password+"@", 1) + "/v3/" + key + "?token=" + key
	host := strings.TrimPrefix(f.url(), "http://")
	var shown strings.Builder
	reg := prometheus.NewRegistry()
	logs := &bytes.Buffer{}
	c := open(t, Config{
		Endpoints: []string{u, "http://127.0.0.1:1/" + key, "ws://user:" + password + "@127.0.0.1:1/" + key},
		Logger:    slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics:   NewMetrics(reg), Timeout: short,
	})
	for _, fault := range faults {
		f.breakFor("eth_getBalance", fault.apply)
		_, err := c.Balances(t.Context(), []common.Address{{1}})
		fmt.Fprintln(&shown, err)
		c.endpoints[0].succeeded()
		c.endpoints[0].mu.Lock()
		c.endpoints[0].until = time.Time{}
		clear(c.endpoints[0].methods)
		c.endpoints[0].mu.Unlock()
	}
	f.breakFor("eth_getBalance", func(_ *fake, w http.ResponseWriter) {
		fail(w, 200, -32000, "project "+key+" with "+password+" may not")
	})
	patiently := open(t, Config{Endpoints: []string{u}})
	_, err := patiently.Balances(t.Context(), []common.Address{{1}})
	require.ErrorContains(t, err, "project (hidden) with (hidden) may not")
	require.ErrorContains(t, err, host)
	fmt.Fprintf(&shown, "%+v %v", c.Status(), c.Anchors(t.Context(), 1, 0))
	_, err = c.subscribe(t.Context(), c.endpoints[2].identity)
	fmt.Fprintln(&shown, c.endpoints[2].transportError(true, err))
	families, err := reg.Gather()
	require.NoError(t, err)
	fmt.Fprintln(&shown, families)
	shown.WriteString(logs.String())
	require.NotContains(t, shown.String(), key)
	require.NotContains(t, shown.String(), password)
	require.Contains(t, logs.String(), host)

	_, err = Open(Config{ChainID: 1, Endpoints: []string{"ftp://" + key, "http://" + key + "\x7f", key}, Subscribe: "http://" + key})
	require.Error(t, err)
	require.NotContains(t, err.Error(), key)
}

func TestMetrics_Calls_AreCounted(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	reg := prometheus.NewRegistry()
	c := open(t, Config{Endpoints: []string{f.url()}, Metrics: NewMetrics(reg)})
	_, err := c.Call(t.Context(), "web3_madeUp", nil)
	require.NoError(t, err)
	_, err = c.Latest(t.Context())
	require.NoError(t, err)
	host := strings.TrimPrefix(f.url(), "http://")
	got := map[string]float64{}
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			switch {
			case m.GetCounter() != nil:
				got[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				got[name] = m.GetGauge().GetValue()
			default:
				got[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	require.Equal(t, map[string]float64{
		"rollcall_rpc_endpoint_up " + host:                                 1,
		"rollcall_rpc_endpoint_excluded " + host:                           0,
		"rollcall_rpc_head_number " + host:                                 100,
		"rollcall_rpc_head_timestamp_seconds " + host:                      1200,
		"rollcall_rpc_requests_total " + host + " eth_chainId ok":          1,
		"rollcall_rpc_requests_total " + host + " eth_getBlockByNumber ok": 2,
		"rollcall_rpc_requests_total " + host + " other ok":                1,
		"rollcall_rpc_duration_seconds " + host + " eth_chainId":           1,
		"rollcall_rpc_duration_seconds " + host + " eth_getBlockByNumber":  1,
		"rollcall_rpc_duration_seconds " + host + " other":                 1,
	}, got)
}

// A failed call of a client that only forwards calls does not set the up metric to 0, because another client watches
// the head.
func TestMetrics_ForwardedCallFails_EndpointStaysUp(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.breakFor("eth_call", faults["500"].apply)
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	watching, passing := open(t, Config{Endpoints: []string{f.url()}, Metrics: m}), open(t, Config{Endpoints: []string{f.url()}, Metrics: m})
	up := func() float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "rollcall_rpc_endpoint_up" })
		require.Len(t, families[i].GetMetric(), 1)
		return families[i].GetMetric()[0].GetGauge().GetValue()
	}
	require.Zero(t, up())
	_, err := watching.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, up())
	_, err = passing.Call(t.Context(), "eth_call", nil)
	require.Error(t, err)
	require.EqualValues(t, 1, up())
	open(t, Config{Endpoints: []string{f.url()}, Metrics: m})
	require.EqualValues(t, 1, up())
	_, err = watching.Call(t.Context(), "eth_call", nil)
	require.Error(t, err)
	require.Zero(t, up())
}

func TestReads_FirstEndpointHangs_LeavesTimeForTheNext(t *testing.T) {
	t.Parallel()
	hanging, quick := newFake(t), newFake(t)
	hanging.breakFor("eth_getBalance", faults["hangs"].apply)
	quick.always("eth_getBalance", `"0x1"`, "")
	c := open(t, Config{Endpoints: []string{hanging.url(), quick.url()}, Timeout: time.Hour})
	for _, ep := range c.endpoints {
		c.poll(t.Context(), ep) // the time is then for the balances alone
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err := c.Balances(ctx, []common.Address{{1}})
	require.NoError(t, err)
}

func TestEndpoint_Lags_ComesAfterOthers(t *testing.T) {
	t.Parallel()
	behind, ahead := newFake(t), newFake(t)
	behind.set(func() { behind.head = 90 })
	c := open(t, Config{Endpoints: []string{behind.url(), ahead.url()}})
	for _, ep := range c.endpoints {
		c.poll(t.Context(), ep)
	}
	c.poll(t.Context(), c.endpoints[0])
	v, err := c.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 100, v.Header().Number)
	s := c.Status()
	require.EqualValues(t, 10, s.Endpoints[0].Lag)
	require.Equal(t, "10 blocks behind the best endpoint", s.Endpoints[0].Reason)
	require.True(t, s.Endpoints[1].OK)
	behind.set(func() { behind.head = 98 })
	c.poll(t.Context(), c.endpoints[0])
	v, err = c.Latest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 98, v.Header().Number)
}

func TestRateLimit_RetryAfter_IsHonored(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.breakFor("eth_getBalance", func(_ *fake, w http.ResponseWriter) {
		w.Header().Set("Retry-After", "17")
		w.WriteHeader(429)
	})
	c := open(t, Config{Endpoints: []string{f.url()}})
	began := time.Now()
	_, err := c.Balances(t.Context(), []common.Address{{1}})
	var limited *RateLimitError
	require.ErrorAs(t, err, &limited)
	require.Equal(t, 17*time.Second, limited.RetryAfter)
	require.GreaterOrEqual(t, c.endpoints[0].until.Sub(began), 17*time.Second)
	_, err = c.Balances(t.Context(), []common.Address{{1}})
	require.ErrorIs(t, err, ErrNoEndpoint)
	require.ErrorAs(t, err, &limited)
	require.Positive(t, limited.RetryAfter)
	require.LessOrEqual(t, limited.RetryAfter, 17*time.Second)
	require.Equal(t, 1, f.count("eth_getBalance"))
}

func TestOpen_InvalidConfig_Fails(t *testing.T) {
	t.Parallel()
	_, err := Open(Config{Timeout: -1, BatchSize: 1001, MaxResponse: -1, Subscribe: "http://x"})
	require.EqualError(t, err, strings.Join([]string{
		"chain: the chain id is missing",
		"at least one endpoint is needed",
		"endpoint to subscribe to: its scheme is none of ws, wss",
		"timeout: -1ns is negative",
		"batch size: 1001 is not 1 to 1000",
		"maximal response: -1 is negative",
	}, "\n"))
	c := open(t, Config{Endpoints: []string{"http://a/x", "wss://b/y", "http://a/z"}})
	require.Equal(t, "wss://b/y", c.cfg.Subscribe)
	names := make([]string, 0, 3)
	for _, ep := range c.Status().Endpoints {
		names = append(names, ep.Endpoint)
	}
	require.Equal(t, []string{"a", "b", "a#2"}, names)
	c.Close()
	c.Close()
	require.False(t, errors.Is(err, ErrNoEndpoint))
}

func TestSend_ChainIDFails_IsNotSent(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hangs", "resets", "500", "HTML"} {
		f := newFake(t)
		f.breakFor("eth_chainId", faults[name].apply)
		c := open(t, Config{Endpoints: []string{f.url()}, Timeout: short})
		requireOutcomes(t, c.Send(t.Context(), []Raw{{Bytes: []byte{1}}}), NotSent)
		require.Zero(t, f.count("eth_sendRawTransaction"))
	}
}

func TestBatch_RateLimited_KeepsItsSize(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.breakFor("eth_getBalance", func(_ *fake, w http.ResponseWriter) { fail(w, 200, -32005, "slower") })
	c := open(t, Config{Endpoints: []string{f.url()}})
	_, err := c.Balances(t.Context(), []common.Address{{1}, {2}})
	var limited *RateLimitError
	require.ErrorAs(t, err, &limited)
	require.Equal(t, 100, c.endpoints[0].batchLimit())
}

func TestHTTP_Redirect_IsNotFollowed(t *testing.T) {
	t.Parallel()
	f, elsewhere := newFake(t), newFake(t)
	f.breakFor("eth_getBalance", func(_ *fake, w http.ResponseWriter) {
		w.Header().Set("Location", elsewhere.url())
		w.WriteHeader(http.StatusTemporaryRedirect) // the body would be sent again
	})
	elsewhere.always("eth_getBalance", `"0x1"`, "")
	c := open(t, Config{Endpoints: []string{f.url()}})
	_, err := c.Balances(t.Context(), []common.Address{{1}})
	require.ErrorContains(t, err, "HTTP status 307")
	require.Zero(t, elsewhere.count("eth_getBalance"))
}

// Anchors does not wait for a hanging node once another has answered, and records no failure of the hanging node.
func TestAnchors_OneEndpointHangs_DoesNotWait(t *testing.T) {
	t.Parallel()
	hanging, well := newFake(t), newFake(t)
	hanging.onRequest(func(http.ResponseWriter, []fakeCall, bool) bool { <-hanging.release; return true })
	c := open(t, Config{Endpoints: []string{hanging.url(), well.url()}, Timeout: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	anchors := c.Anchors(ctx, 3, time.Millisecond)
	require.NoError(t, ctx.Err())
	require.ErrorIs(t, anchors[0].Err, context.Canceled)
	require.NoError(t, anchors[1].Err)
	require.EqualValues(t, 3, anchors[1].Block.Number)
	require.Equal(t, standingUnverified, c.endpoints[0].healthOf(time.Now()))
}

// A node without pending state simulates on top of its newest block, and is not asked for pending state again.
func TestEstimateGas_NoPendingState_UsesLatest(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]string{
		"geth": `{"code":-32000,"message":"pending state is not available"}`, "others": `{"code":-32602,"message":"unsupported block tag"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.on("eth_estimateGas", func(params []json.RawMessage) (string, string) {
				if string(params[1]) == `"pending"` {
					return "", refusal
				}
				return `"0x5208"`, ""
			})
			c := open(t, Config{Endpoints: []string{f.url()}})
			for range 2 {
				gas, err := c.EstimateGas(t.Context(), Message{})
				require.NoError(t, err)
				require.EqualValues(t, 21_000, gas)
			}
			require.Equal(t, 3, f.count("eth_estimateGas"))
		})
	}
	f := newFake(t)
	f.always("eth_estimateGas", "", `{"code":-32602,"message":"invalid address"}`)
	c := open(t, Config{Endpoints: []string{f.url()}})
	for range 2 {
		_, err := c.EstimateGas(t.Context(), Message{})
		require.ErrorContains(t, err, "invalid address")
	}
	require.Equal(t, 4, f.count("eth_estimateGas"), "what the latest block does not help with is not the tag's fault")
}
