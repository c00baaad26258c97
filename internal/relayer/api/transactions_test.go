package api

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

const poolTransactions = "/api/v1/relayers/pool-1/transactions"

func TestSubmit_ReturnsTransaction(t *testing.T) {
	t.Parallel()
	a := setup(t)
	w := a.do("POST", poolTransactions, submission(maxText), "X-Request-Id", "req-1",
		"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	e := read(t, w, 200)
	require.Equal(t, "req-1", w.Header().Get("X-Request-Id"))
	require.JSONEq(t, `{"id":"`+a.txs[0].ID.String()+`","hash":null,"status":"pending","status_reason":null,
		"created_at":"2026-11-05T09:00:00.123456Z","sent_at":null,"confirmed_at":null,"gas_price":null,"gas_limit":null,"nonce":null,
		"value":"0x`+strings.Repeat("f", 64)+`","from":"","to":"`+target+`","relayer_id":"pool-1","data":null,"max_fee_per_gas":null,
		"max_priority_fee_per_gas":null,"signature":null,"speed":"fast","is_canceled":false,"revision":1,
		"metadata":{"request_id":"req-1","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"}}`, string(e.Data))
	require.Equal(t, maxAmount, a.submission.Request.Value)
	require.Equal(t, "first", a.submission.Caller)
	require.Equal(t, poolID, a.submission.RelayerID)
	require.Zero(t, a.submission.BodyHash)
	require.Equal(t, relayer.Metadata{RequestID: "req-1", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"}, a.submission.Request.Metadata)
	require.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", a.submission.Request.Traceparent)

	read(t, a.do("POST", poolTransactions, `{"value":0,"to":"`+target+`","metadata":{"request_id":"mine","trace_id":"t"}}`,
		"Authorization", "bearer "+otherKey, "X-Request-Id", "req-2", "Traceparent", "junk"), 200)
	require.Equal(t, relayer.Metadata{RequestID: "mine", TraceID: "t"}, a.submission.Request.Metadata)
	require.Empty(t, a.submission.Request.Traceparent)
	require.Equal(t, "other", a.submission.Caller)

	w = a.do("POST", poolTransactions, submission("0"), "Traceparent", "00-"+strings.Repeat("0", 32)+"-00f067aa0ba902b7-01")
	require.Len(t, w.Header().Get("X-Request-Id"), 16)
	require.Equal(t, relayer.Metadata{RequestID: w.Header().Get("X-Request-Id")}, a.submission.Request.Metadata)

	const traced = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w = a.do("POST", poolTransactions, submission("0"), "Traceparent", traced+"\n"+traced) // two traces are none, as in the log
	require.Equal(t, relayer.Metadata{RequestID: w.Header().Get("X-Request-Id")}, a.submission.Request.Metadata)
	require.Empty(t, a.submission.Request.Traceparent)
}

// An invalid submission does not reach the relayer. The decoder's tests cover the kinds of invalid bodies.
func TestSubmit_InvalidBody_BadRequest(t *testing.T) {
	t.Parallel()
	a := setup(t)
	tx := a.submitted()
	for body, says := range map[string]string{
		submission("1e18"): "value: must be a whole number",
		submission("-1"):   "value: must not be negative",
		submission(`"0x1` + strings.Repeat("0", 64) + `"`):              "value: must be below 2^256",
		`{"to":"0x742D35Cc6634C0532925a3b844Bc454e4438f44e","value":1}`: "to: the checksum",
		`{`: "not JSON", "": "not JSON", "null": "must be a JSON object", submission("1") + "x": "not JSON",
		`{"value":1,"value":1}`: "value: is there twice", "{\"value\":\"\x00\"}": "not JSON", "{\"\xff\":1}": "not UTF-8",
	} {
		e := read(t, a.do("POST", poolTransactions, body), 400)
		require.Contains(t, *e.Error, says)
		read(t, a.do("PUT", poolTransactions+"/"+tx, body), 400)
	}
	require.Len(t, a.txs, 1)
}

func TestSubmit_RepeatedIdempotencyKey_ReturnsSameTransaction(t *testing.T) {
	t.Parallel()
	a := setup(t)
	post := func(body string, headers ...string) (int, string) {
		w := a.do("POST", poolTransactions, body, headers...)
		var e openzeppelin.Envelope[openzeppelin.Transaction]
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &e))
		if e.Data == nil {
			return w.Code, ""
		}
		return w.Code, e.Data.ID
	}
	_, id := post(submission("1"), idempotencyKey, "k")
	for _, same := range []string{submission("1"), submission(`"1"`), submission(`"0x01"`), `{"speed":"fast","value":1,"to":"` + strings.ToLower(target) + `"}`} {
		code, again := post(same, idempotencyKey, "k", "X-Request-Id", "another")
		require.Equal(t, 200, code)
		require.Equal(t, id, again, same)
	}
	code, _ := post(submission("2"), idempotencyKey, "k")
	require.Equal(t, 422, code)
	_, another := post(submission("1"), idempotencyKey, "K")
	require.NotEqual(t, id, another)
	_, another = post(submission("1"), idempotencyKey, "k", "Authorization", "Bearer "+otherKey)
	require.NotEqual(t, id, another)

	for _, key := range []string{" ", "a b", "a\tb", "é", strings.Repeat("k", 256), "a\x7f"} {
		e := read(t, a.do("POST", poolTransactions, submission("1"), idempotencyKey, key), 400)
		require.Contains(t, *e.Error, idempotencyKey)
	}
	code, _ = post(submission("1"), idempotencyKey, strings.Repeat("k", 255))
	require.Equal(t, 200, code)
}

func TestSubmit_ConcurrentWithOneIdempotencyKey_StoresOne(t *testing.T) {
	t.Parallel()
	a := setup(t)
	quiet := setup(t, func(c *Config) { c.Logger, c.Service = nil, a.fake })
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]bool{}
	for i := range 100 {
		wg.Go(func() {
			body := submission("1")
			if i%2 == 0 {
				body = submission(`"0x1"`)
			}
			w := quiet.serve("POST", poolTransactions, body, idempotencyKey, "k")
			var e openzeppelin.Envelope[openzeppelin.Transaction]
			if json.Unmarshal(w.Body.Bytes(), &e) == nil && e.Data != nil {
				mu.Lock()
				ids[e.Data.ID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, ids, 1)
	require.Len(t, a.txs, 1)
}

func TestListTransactions_Filters(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for range 3 {
		a.submitted()
	}
	e := read(t, a.do("GET", poolTransactions+"?page=2&per_page=2", ""), 200)
	require.JSONEq(t, `{"current_page":2,"per_page":2,"total_items":3}`, string(e.Pagination))
	var list []openzeppelin.Transaction
	require.NoError(t, json.Unmarshal(e.Data, &list))
	require.Len(t, list, 1)
	require.Equal(t, 2, a.offset)
	require.Equal(t, 2, a.limit)
	require.Equal(t, relayer.Filter{}, a.filter)

	read(t, a.do("GET", poolTransactions+"?status=Submitted&method=m&orderbook=o&trader=t%C3%A9&request_id=r&trace_id=i&unknown=1", ""), 200)
	require.Equal(t, relayer.Filter{
		Statuses: []relayer.Status{relayer.Broadcasted, relayer.Unknown}, Method: "m", Orderbook: "o", Trader: "té", RequestID: "r", TraceID: "i",
	}, a.filter)
	read(t, a.do("GET", poolTransactions+"?status=SENT", ""), 200)
	require.Equal(t, relayer.Filter{Statuses: []relayer.Status{relayer.Allocated}, Signed: new(true)}, a.filter)
	for _, status := range []string{"canceled", "pending", "sent", "submitted", "mined", "confirmed", "failed", "expired", ""} {
		read(t, a.do("GET", poolTransactions+"?status="+status, ""), 200)
	}
	for _, query := range []string{
		"status=allocated", "status=x", "status=sent&status=mined", "trader=a&trader=b", "trader=%00", "method=" + strings.Repeat("x", 257), "page=0",
	} {
		read(t, a.do("GET", poolTransactions+"?"+query, ""), 400)
	}
}

func TestTransactions_GetReplaceCancel(t *testing.T) {
	t.Parallel()
	a := setup(t)
	id := a.submitted()
	for _, path := range []string{"/" + id, "/by-nonce/0", "/" + strings.ToUpper(id)} {
		require.Contains(t, string(read(t, a.do("GET", poolTransactions+path, ""), 200).Data), id)
	}
	e := read(t, a.do("PUT", poolTransactions+"/"+id, submission("7")), 200)
	require.Contains(t, string(e.Data), `"value":"0x7"`)
	// A replacement gets no default metadata: the submission's is kept.
	read(t, a.do("PUT", poolTransactions+"/"+id, `{"value":0,"to":"`+target+`","data":"0xa9059cbb","metadata":{"trader":"t"}}`,
		"Idempotency-Key", "", "X-Request-Id", "put-1", "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), 200)
	require.Equal(t, relayer.Metadata{Trader: "t"}, a.submission.Request.Metadata)
	e = read(t, a.do("DELETE", poolTransactions+"/"+id, ""), 200)
	require.Contains(t, string(e.Data), `"is_canceled":true`)
	a.txs[0].Status = relayer.Confirmed
	e = read(t, a.do("DELETE", poolTransactions+"/"+id, ""), 400)
	require.Equal(t, "cancel: the transaction is confirmed", *e.Error)

	for _, other := range []string{
		"x", "pending", "01890a5d-ac96-774b-bcce-b302099a8057", "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""),
		strings.Repeat("x", 1000), "%00",
	} {
		for method, body := range map[string]string{"GET": "", "PUT": submission("1")} {
			e = read(t, a.do(method, poolTransactions+"/"+other, body), 404)
			require.Contains(t, *e.Error, "of relayer pool-1 not found")
			require.Less(t, len(*e.Error), 300)
		}
	}
	read(t, a.do("GET", poolTransactions+"/by-nonce/1", ""), 404)
	for _, nonce := range []string{"-1", "x", "0x1", "18446744073709551616", "1.0"} {
		read(t, a.do("GET", poolTransactions+"/by-nonce/"+nonce, ""), 400)
	}
	for _, method := range []string{"GET", "POST"} {
		read(t, a.do(method, "/api/v1/relayers/absent/transactions", submission("1")), 404)
	}

	e = read(t, a.do("DELETE", poolTransactions+"/pending", ""), 200)
	require.JSONEq(t, `{"total_processed":3,"failed_to_queue_transaction_ids":["03000000-0000-0000-0000-000000000000"],
		"queued_for_cancellation_transaction_ids":["01000000-0000-0000-0000-000000000000","02000000-0000-0000-0000-000000000000"]}`, string(e.Data))
}

// FuzzSubmit checks that every post gets a described response, and that an invalid one stores nothing.
func FuzzSubmit(f *testing.F) {
	f.Add([]byte(submission("1")), "k", "r")
	f.Add([]byte(`{"to":null,"value":"0xff","data":"0x6000"}`), "", "")
	f.Add([]byte(`{"metadata":{"trader":"\u0000"}}`), "é", "\xff")
	a := setup(f)
	f.Fuzz(func(t *testing.T, body []byte, key, id string) {
		a.t = t
		a.txs, a.byKey, a.hashes = nil, map[string]int{}, map[string][32]byte{}
		a.log.Reset()
		w := a.do("POST", poolTransactions, string(body), idempotencyKey, key, "X-Request-Id", id)
		require.Contains(t, []int{200, 400}, w.Code)
		require.Equal(t, w.Code == 200, len(a.txs) == 1)
	})
}

// listing is a relayer whose lists block until the test ends them.
type listing struct {
	*fake
	begun, end chan struct{}
}

func (l *listing) Transactions(ctx context.Context, id string, f relayer.Filter, offset, limit int) ([]*relayer.Transaction, int, error) {
	l.begun <- struct{}{}
	<-l.end
	return l.fake.Transactions(ctx, id, f, offset, limit)
}

// Lists use only some of the database's connections; further ones wait for a moment, and are rejected.
func TestListTransactions_Concurrent_AreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := setup(t) // inside the bubble: its time stops while a goroutine waits for a channel from outside
		l := &listing{fake: a.fake, begun: make(chan struct{}), end: make(chan struct{})}
		a.handler.service = l
		codes := make(chan int, 10)
		list := func() { codes <- a.serve("GET", poolTransactions, "").Code }
		for range maxLists {
			go list()
			<-l.begun
		}
		go list() // waits
		synctest.Wait()
		require.Equal(t, 200, a.serve("POST", poolTransactions, submission("1")).Code)
		require.Equal(t, 200, a.serve("GET", "/api/v1/relayers", "").Code)
		l.end <- struct{}{}
		require.Equal(t, 200, <-codes)
		<-l.begun // the one that waited

		w := a.serve("GET", poolTransactions, "")
		require.Equal(t, 429, w.Code)
		require.Contains(t, w.Body.String(), "too many lists of transactions at once: try again in 1 s")
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		close(l.end)
		for range maxLists {
			require.Equal(t, 200, <-codes)
		}
		require.Empty(t, a.handler.lists.taken)
	})
}
