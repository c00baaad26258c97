package upstream_test

import (
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

var ref = upstream.Ref{ID: "relayer-1"}

func listed(relayers ...string) string {
	return `{"success":true,"data":[` + strings.Join(relayers, ",") + `],"error":null,"pagination":{"current_page":1,"per_page":100,"total_items":3}}`
}

func TestDiscover_Lists(t *testing.T) {
	t.Parallel()
	const (
		paused   = `{"id":"paused","network_type":"evm","paused":true,"system_disabled":false}`
		disabled = `{"id":"disabled","network_type":"evm","paused":false,"system_disabled":true}`
		usable   = `{"id":"usable","network_type":"evm","paused":false,"system_disabled":null}`
		solana   = `{"id":"solana","network_type":"solana","paused":false,"system_disabled":false}`
	)
	for name, c := range map[string]struct {
		body    string
		headers []string
		want    upstream.Info
		err     error
	}{
		"the first usable":        {body: listed(paused, disabled, usable), want: upstream.Info{RelayerID: "usable"}},
		"none usable":             {body: listed(paused, disabled), want: upstream.Info{RelayerID: "paused", Paused: true}},
		"disabled":                {body: listed(disabled), want: upstream.Info{RelayerID: "disabled", Disabled: true}},
		"another kind of network": {body: listed(solana, usable), want: upstream.Info{RelayerID: "usable"}},
		"only another kind":       {body: listed(solana), err: upstream.ErrNoRelayer},
		"no relayer":              {body: listed(), err: upstream.ErrNoRelayer},
		"an id that is no path":   {body: listed(`{"id":".."}`, `{"id":"`+strings.Repeat("x", 300)+`"}`), err: upstream.ErrNoRelayer},
		// The keys of a pool have ids of their own, under which the same idempotency key is another request.
		"the pool of this project's": {body: listed(usable, disabled), headers: []string{"Idempotency-Scope: s"}, want: upstream.Info{RelayerID: "usable", Scope: "s"}},
		"only the pool":              {body: listed(paused, usable), headers: []string{"Idempotency-Scope: s"}, want: upstream.Info{RelayerID: "paused", Scope: "s", Paused: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info, err := open(t, serve(t, respond("200 OK", c.body, c.headers...)).url).Discover(t.Context())
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, info)
			require.Equal(t, c.err == nil && !c.want.Paused && !c.want.Disabled, err == nil && info.Usable())
		})
	}
}

// Reads believe the relayer's application alone.
func TestGet_Responses(t *testing.T) {
	t.Parallel()
	const tx = `{"success":true,"data":{"id":"tx-1","hash":"0x` + `abababababababababababababababababababababababababababababababab` + `","status":"SUBMITTED","status_reason":"why",
		"created_at":"2026-11-05T09:00:00+00:00","sent_at":"2026-11-05T09:00:01Z","confirmed_at":null,"value":"0x20000000000001","to":"0x00000000000000000000000000000000000000ff",
		"data":"0x01","is_canceled":true,"revision":4,"nonce":18446744073709551615,"gas_limit":"odd","signature":{"r":1}},"error":null}`
	for name, c := range map[string]struct {
		respond func(net.Conn, *http.Request)
		scope   string
		is      error  // the sentinel
		code    int    // of an *upstream.Error
		reason  string // of that
	}{
		"found":                     {respond: respond("200 OK", tx)},
		"found in the scope":        {respond: respond("200 OK", tx, "Idempotency-Scope: s"), scope: "s"},
		"found in another scope":    {respond: respond("200 OK", tx, "Idempotency-Scope: r"), scope: "s", is: upstream.ErrOtherScope},
		"found without the scope":   {respond: respond("200 OK", tx), scope: "s", is: upstream.ErrOtherScope},
		"without a status":          {respond: respond("200 OK", strings.Replace(tx, `"status":"SUBMITTED",`, "", 1)), code: 200, reason: `status of the transaction: ""`},
		"a status that is null":     {respond: respond("200 OK", strings.Replace(tx, `"SUBMITTED"`, "null", 1)), code: 200, reason: `status of the transaction: ""`},
		"an unknown status":         {respond: respond("200 OK", strings.Replace(tx, "SUBMITTED", "Dreaming", 1)), code: 200, reason: `status of the transaction: "Dreaming"`},
		"the key as a status":       {respond: respond("200 OK", strings.Replace(tx, "SUBMITTED", apiKey, 1)), code: 200, reason: "[API key]"},
		"another transaction":       {respond: respond("200 OK", strings.Replace(tx, "tx-1", "tx-2", 1)), code: 200, reason: "no transaction"},
		"412":                       {respond: respond("412 Precondition Failed", refusedBody), scope: "s", is: upstream.ErrOtherScope},
		"404 of a proxy":            {respond: respond("404 Not Found", page), code: 404, reason: "Not Found"},
		"404 without the scope":     {respond: respond("404 Not Found", refusedBody), scope: "s", is: upstream.ErrOtherScope},
		"404 of all":                {respond: respond("404 Not Found", refusedBody), is: upstream.ErrNoRelayer},
		"401":                       {respond: respond("401 Unauthorized", refusedBody), code: 401, reason: "own words"},
		"a page":                    {respond: respond("200 OK", page), code: 200, reason: "another body"},
		"a redirect":                {respond: respond("302 Found", "", "Location: /elsewhere"), code: 302, reason: "Found"},
		"without success":           {respond: respond("200 OK", refusedBody), code: 200, reason: "own words"},
		"null":                      {respond: respond("200 OK", `{"success":true,"data":null,"error":null}`), code: 200, reason: "other data"},
		"an endless body":           {respond: endless(head("200 OK")+" ", "          "), is: upstream.ErrTooLarge},
		"a cut body":                {respond: text(head("200 OK", "Content-Length: 1000") + tx[:50]), code: 200, reason: "incomplete"},
		"a reset":                   {respond: func(c net.Conn, _ *http.Request) { _ = c.(*net.TCPConn).SetLinger(0) }, reason: "reset"},
		"a pause":                   {respond: respond("503 Service Unavailable", refusedBody, "Retry-After: 2"), code: 503, reason: "own words"},
		"success with a 404's code": {respond: respond("404 Not Found", tx), is: upstream.ErrNoRelayer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := open(t, serve(t, c.respond).url)
			got, err := client.Get(t.Context(), upstream.Ref{ID: "relayer-1", Scope: c.scope}, "tx-1")
			switch {
			case c.is != nil:
				require.ErrorIs(t, err, c.is)
			case c.code != 0 || c.reason != "":
				failed := new(upstream.Error)
				require.ErrorAs(t, err, &failed)
				require.Equal(t, c.code, failed.Code)
				require.Contains(t, failed.Reason, c.reason)
				require.False(t, failed.Unknown)
				require.NotErrorIs(t, err, upstream.ErrNotFound)
			default:
				require.NoError(t, err)
				at := time.Date(2026, 11, 5, 9, 0, 0, 0, time.UTC)
				require.True(t, at.Equal(got.CreatedAt))
				got.CreatedAt = time.Time{}
				require.Equal(t, upstream.Transaction{
					ID: "tx-1", Hash: common.HexToHash("0x" + strings.Repeat("ab", 32)), Status: dispatch.Submitted, Reason: "why", Revision: 4,
					IsCanceled: true, To: &receiver, Data: []byte{1}, Value: big.NewInt(9_007_199_254_740_993), CallComplete: true,
				}, got)
			}
		})
	}
}

func TestGet_TransactionMissing_LooksWhetherTheRelayerExists(t *testing.T) {
	t.Parallel()
	r := upstreamtest.Start(t, upstreamtest.Options{})
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	_, err := client.Get(t.Context(), ref, "tx-1")
	require.ErrorIs(t, err, upstream.ErrNotFound)
	r.Forget(true)
	_, err = client.Get(t.Context(), ref, "tx-1")
	require.ErrorIs(t, err, upstream.ErrNoRelayer)
	require.NotErrorIs(t, err, upstream.ErrNotFound)
	_, err = client.Get(t.Context(), ref, "../../relayers")
	require.ErrorIs(t, err, upstream.ErrNoRelayer)
	_, err = client.Get(t.Context(), ref, "")
	require.ErrorIs(t, err, upstream.ErrNotFound)
}

func TestLoad_Responses(t *testing.T) {
	t.Parallel()
	load := func(body string) (upstream.Load, error) {
		return open(t, serve(t, respond("200 OK", `{"success":true,"data":`+body+`,"error":null}`)).url).Load(t.Context(), ref)
	}
	got, err := load(`{"network_type":"evm","balance":"1","pending_transactions_count":7,"system_disabled":true,"paused":true,"nonce":"1"}`)
	require.NoError(t, err)
	require.Equal(t, upstream.Load{Pending: 7, Paused: true, Disabled: true}, got)
	got, err = load(`{"pending_transactions_count":18446744073709551615}`)
	require.NoError(t, err)
	require.Equal(t, 1<<30, got.Pending)
	for _, body := range []string{`{}`, `{"pending_transactions_count":null}`, `{"pending_transactions_count":-1}`, `{"pending_transactions_count":"7"}`, `[]`} {
		_, err = load(body)
		failed := new(upstream.Error)
		require.ErrorAs(t, err, &failed, body)
	}
}

func TestCancel_WithoutResponse_IsUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		respond func(net.Conn, *http.Request)
		unknown bool
	}{
		"a reset":          {func(c net.Conn, _ *http.Request) { _ = c.(*net.TCPConn).SetLinger(0) }, true},
		"500":              {respond("500 Internal Server Error", refusedBody), true},
		"a page":           {respond("200 OK", page), true},
		"no transaction":   {respond("200 OK", `{"success":true,"data":{},"error":null}`), true},
		"no status":        {respond("200 OK", `{"success":true,"data":{"id":"tx-1","status":null},"error":null}`), true},
		"unknown status":   {respond("200 OK", `{"success":true,"data":{"id":"tx-1","status":"dreaming"},"error":null}`), true},
		"another one":      {respond("200 OK", `{"success":true,"data":{"id":"tx-2","status":"canceled"},"error":null}`), true},
		"not in its state": {respond("400 Bad Request", refusedBody), false},
		"paused":           {respond("403 Forbidden", refusedBody), false},
		"a redirect":       {respond("307 Temporary Redirect", "", "Location: /"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := open(t, serve(t, c.respond).url).Cancel(t.Context(), ref, "tx-1")
			failed := new(upstream.Error)
			require.ErrorAs(t, err, &failed)
			require.Equal(t, c.unknown, failed.Unknown)
		})
	}
}

// Each of a relayer's words is the status that a webhook with the same word reports, in all answers.
func TestTransaction_Words_AreTheStatusesOfWebhooks(t *testing.T) {
	t.Parallel()
	r := upstreamtest.Start(t, upstreamtest.Options{})
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	for _, word := range []string{
		"pending", "Sent", "submitted", "MINED", "confirmed", "failed", "canceled", "cancelled", "expired", //nolint:misspell // some documents spell it so
	} {
		want, known := dispatch.StatusAt(word)
		require.True(t, known)
		tx := r.Add(upstreamtest.Transaction{Status: word, CreatedAt: time.Now()})
		check := func(got upstream.Transaction, err error) {
			t.Helper()
			require.NoError(t, err, word)
			require.Equal(t, want, got.Status, word)
			require.Equal(t, word == "pending", got.Pending, word)
		}
		check(client.Get(t.Context(), ref, tx.ID))
		page, err := client.List(t.Context(), ref, 1, 1)
		check(page.Transactions[0], err)
		r.Fail(upstreamtest.Cancel, upstreamtest.Respond(200, `{"success":true,"data":{"id":"`+tx.ID+`","status":"`+word+`"},"error":null}`))
		check(client.Cancel(t.Context(), ref, tx.ID))
		r.Remove(tx.ID)
	}
}

// lookups fills a stand-in with a transaction a second, of which every tenth is the one that is looked for.
func lookups(t *testing.T, n int, newestFirst bool) (r *upstreamtest.Relayer, client *upstream.Client, began time.Time, m upstream.Match) {
	t.Helper()
	r = upstreamtest.Start(t, upstreamtest.Options{NewestFirst: newestFirst})
	began = time.Date(2026, 11, 5, 9, 0, 0, 0, time.UTC)
	for i := range n {
		tx := upstreamtest.Transaction{To: strings.ToLower(receiver.Hex()), Data: "0x01", Value: big.NewInt(5), CreatedAt: began.Add(time.Duration(i) * time.Second)}
		if i%10 != 0 {
			tx.Value = big.NewInt(int64(i))
		}
		if i%10 == 5 {
			tx.Data = "0x02"
		}
		r.Add(tx)
	}
	return r, open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key }), began, upstream.Match{To: &receiver, Data: []byte{1}, Value: big.NewInt(5)}
}

func TestLookup_EitherOrder_ReadsFromTheNewestEnd(t *testing.T) {
	t.Parallel()
	for _, newestFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("newest first %v", newestFirst), func(t *testing.T) {
			t.Parallel()
			r, client, began, m := lookups(t, 1000, newestFirst)
			m.Since = began.Add(950 * time.Second)
			found, err := client.Lookup(t.Context(), ref, m)
			require.NoError(t, err)
			require.Len(t, found, 5)
			require.LessOrEqual(t, r.Calls(upstreamtest.List), 3)
			for _, tx := range found {
				require.False(t, tx.CreatedAt.Before(m.Since))
				require.Equal(t, m.Value, tx.Value)
			}
			m.Since = began
			found, err = client.Lookup(t.Context(), ref, m)
			require.NoError(t, err)
			require.Len(t, found, 100)
			require.Equal(t, began, found[0].CreatedAt.UTC())
		})
	}
}

func TestLookup_OtherTransactions_DoNotMatch(t *testing.T) {
	t.Parallel()
	_, client, began, m := lookups(t, 50, false)
	m.Since = began
	other := common.HexToAddress("0xfe")
	for name, change := range map[string]func(*upstream.Match){
		"to":       func(m *upstream.Match) { m.To = &other },
		"creation": func(m *upstream.Match) { m.To = nil },
		"data":     func(m *upstream.Match) { m.Data = []byte{9} },
		"no data":  func(m *upstream.Match) { m.Data = nil },
		"value":    func(m *upstream.Match) { m.Value = nil },
		"since":    func(m *upstream.Match) { m.Since = began.Add(time.Hour) },
	} {
		m := m
		change(&m)
		found, err := client.Lookup(t.Context(), ref, m)
		require.NoError(t, err)
		require.Empty(t, found, name)
	}
}

// Transactions that are added or deleted while the pages are read hide none.
func TestLookup_ListChanges_FindsAll(t *testing.T) {
	t.Parallel()
	for _, newestFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("newest first %v", newestFirst), func(t *testing.T) {
			t.Parallel()
			r, client, began, m := lookups(t, 1000, newestFirst)
			all := r.Transactions()
			calls := 0
			r.Fail(upstreamtest.List, func(c *upstreamtest.Call) {
				c.Do(c.ResponseWriter)
				for range 7 {
					r.Remove(all[calls].ID) // the oldest ones
					r.Add(upstreamtest.Transaction{Value: big.NewInt(1), CreatedAt: began.Add(2000 * time.Second)})
					calls++
				}
			})
			m.Since = began.Add(200 * time.Second)
			found, err := client.Lookup(t.Context(), ref, m)
			require.NoError(t, err)
			require.Len(t, found, 80)
		})
	}
}

func TestLookup_UnknownOrder_ReadsEverything(t *testing.T) {
	t.Parallel()
	r, client, began, m := lookups(t, 0, false)
	for i := range 350 { // all in one moment, and one a bit later and out of order
		tx := upstreamtest.Transaction{To: strings.ToLower(receiver.Hex()), Data: "0x01", Value: big.NewInt(6), CreatedAt: began}
		if i == 40 || i == 340 {
			tx.Value = big.NewInt(5)
		}
		if i == 20 {
			tx.CreatedAt = began.Add(time.Second)
		}
		r.Add(tx)
	}
	m.Since = began
	found, err := client.Lookup(t.Context(), ref, m)
	require.NoError(t, err)
	require.Len(t, found, 2)

	// A deletion may move one to a page that was read before: the lookup begins again.
	all, removed := r.Transactions(), 0
	r.Fail(upstreamtest.List, func(c *upstreamtest.Call) {
		c.Do(c.ResponseWriter)
		if c.Request.URL.Query().Get("page") == "2" && removed == 0 {
			removed++
			r.Remove(all[0].ID)
		}
	})
	found, err = client.Lookup(t.Context(), ref, m)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, 4+3+4, r.Calls(upstreamtest.List))

	r.Fail(upstreamtest.List, func(c *upstreamtest.Call) { // without end
		c.Do(c.ResponseWriter)
		removed++
		r.Remove(all[removed].ID)
	})
	_, err = client.Lookup(t.Context(), ref, m)
	require.ErrorIs(t, err, upstream.ErrTooMany)
}

func TestLookup_LargeTransactions_ReadsSmallPages(t *testing.T) {
	t.Parallel()
	r := upstreamtest.Start(t, upstreamtest.Options{})
	client := open(t, r.URL(), func(c *upstream.Config) { c.Key = upstreamtest.Key })
	data := make([]byte, 127<<10)
	for i := range 40 {
		data[0] = byte(i)
		r.Add(upstreamtest.Transaction{
			To: strings.ToLower(receiver.Hex()), Data: fmt.Sprintf("0x%x", data), Value: new(big.Int), CreatedAt: time.Unix(int64(1000+i), 0),
		})
	}
	data[0] = 7
	found, err := client.Lookup(t.Context(), ref, upstream.Match{To: &receiver, Data: data})
	require.NoError(t, err)
	require.Len(t, found, 1)
}

func TestLookup_TooMany_ProvesNothing(t *testing.T) {
	t.Parallel()
	_, client, began, m := lookups(t, 10_050, true)
	m.Since = began
	_, err := client.Lookup(t.Context(), ref, m)
	require.ErrorIs(t, err, upstream.ErrTooMany)
}

// A page that cannot be read may hold the one that is looked for.
func TestLookup_UnreadablePage_Fails(t *testing.T) {
	t.Parallel()
	r, client, began, m := lookups(t, 300, true)
	r.Fail(upstreamtest.List, func(c *upstreamtest.Call) {
		if c.Request.URL.Query().Get("page") == "2" {
			upstreamtest.Respond(200, `{"success":true,"data":[{"id":7}],"error":null}`)(c)
			return
		}
		c.Do(c.ResponseWriter)
	})
	m.Since = began
	_, err := client.Lookup(t.Context(), ref, m)
	failed := new(upstream.Error)
	require.ErrorAs(t, err, &failed)
}

// A transaction to the receiver whose value or data cannot be read may be the one: the others prove nothing.
func TestLookup_UnreadableCall_ProvesNothing(t *testing.T) {
	t.Parallel()
	m := upstream.Match{To: &receiver, Data: []byte{1}, Value: big.NewInt(5), Since: time.Now().Add(-time.Minute)}
	for name, c := range map[string]struct {
		call string
		fail bool
	}{
		"value is a number": {`"to":"` + m.To.Hex() + `","value":5,"data":"0x01"`, true},
		"no data":           {`"to":"` + m.To.Hex() + `","value":"0x5"`, true},
		"another receiver":  {`"to":"0x00000000000000000000000000000000000000aa","value":5,"data":"0x01"`, false},
		"a new contract":    {`"to":null,"value":5,"data":"0x01"`, false},
	} {
		body := `{"success":true,"data":[{"id":"tx-1","status":"pending","created_at":"` + time.Now().UTC().Format(time.RFC3339Nano) + `",` + c.call + `}],
			"error":null,"pagination":{"current_page":1,"per_page":100,"total_items":1}}`
		found, err := open(t, serve(t, respond("200 OK", body)).url).Lookup(t.Context(), ref, m)
		require.Empty(t, found, name)
		if c.fail {
			require.ErrorIs(t, err, upstream.ErrUnclear, name)
		} else {
			require.NoError(t, err, name)
		}
	}
}
