package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	dispatchstore "github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
	"github.com/rollcall-dev/rollcall/internal/webhook"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// letterList is the output of "dead-letters list" and "dead-letters show".
type letterList struct {
	DeadLetters []deadletter.Letter `json:"deadLetters"`
}

// webhooks lists clients' webhooks by the command.
func (r *relayed) webhooks(args ...string) []deadletter.Letter {
	r.t.Helper()
	return read[letterList](r.t, r.args(append([]string{"dead-letters", "list", "--of", "client-webhooks"}, args...)...)...).DeadLetters
}

// replay replays clients' webhooks by the command, and returns its result.
func (r *relayed) replay(args ...string) result {
	r.t.Helper()
	return rollcall(r.t, r.args(append([]string{"dead-letters", "replay", "--of", "client-webhooks"}, args...)...)...)
}

// write writes webhooks of new transactions: for each target a transaction with two, the first one an hour old.
func (r *relayed) write(targets ...string) (txs []uuid.UUID) {
	r.t.Helper()
	for _, target := range targets {
		id := r.accept()
		_, err := r.db.Exec(r.t.Context(), `INSERT INTO relay_webhooks (about, lane, subject, revision, created_at)
			SELECT $1::uuid, $2, $1 || '/' || $2, n, now() - (3 - n) * interval '1 h' FROM generate_series(2, 3) n`, id, target)
		require.NoError(r.t, err)
		txs = append(txs, id)
	}
	return txs
}

// giveUp makes all webhooks dead letters.
func (r *relayed) giveUp() {
	r.t.Helper()
	_, err := r.db.Exec(r.t.Context(), `UPDATE relay_webhooks SET state = 'dead', settled_at = now(), attempts = 5, reason = 'answered 500',
		failing_since = now() - interval '1 day', due_at = now() + interval '1 h'`)
	require.NoError(r.t, err)
}

func TestDeadLetters_OfClients_AreListedAndReplayed(t *testing.T) {
	r := newRelayed(t)
	txs := r.write("shop", "bank")
	require.Empty(t, r.webhooks())
	require.Len(t, r.webhooks("--state", "waiting"), 4)
	r.giveUp()
	all := r.webhooks("--state", "any")
	require.Len(t, all, 4)
	require.Contains(t, succeed(t, r.args("dead-letters", "list", "--of", "client-webhooks", "--limit", "1")...), "the oldest 1 entry\n")
	between := time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)
	for _, selection := range [][]string{{"--to", "shop"}, {"--tx", txs[0].String()}, {"--since", between}, {"--until", between}} {
		r.giveUp()
		require.Len(t, r.webhooks(selection...), 2, "%v", selection)
		res := r.replay(selection...)
		require.Zero(t, res.code, "%v: %s", selection, res.stderr)
		require.Contains(t, res.stdout, ": 2 entries to be tried again\n")
		require.Len(t, r.webhooks(), 2, "%v", selection)
	}
	r.giveUp()
	res := r.replay(all[0].ID, all[1].ID)
	require.Zero(t, res.code, res.stderr)
	require.Contains(t, r.replay("--all").stdout, "client-webhooks: 2 entries to be tried again\n")
	require.Contains(t, r.replay("--all").stdout, "client-webhooks: 0 entries to be tried again\n")
	require.Len(t, r.webhooks("--state", "waiting"), 4)
}

func TestDeadLetters_WrongSelection_IsRefused(t *testing.T) {
	r := newRelayed(t)
	tx := r.write("shop")[0]
	r.giveUp()
	due := r.webhooks()[0].ID
	require.Zero(t, r.replay(due).code)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, cli.ExitUsage, "give ids, or --tx, --to, --since, --until, or --all"},
		{[]string{"--all", "--to", "shop"}, cli.ExitUsage, "give ids, or"},
		{[]string{due, "--tx", tx.String()}, cli.ExitUsage, "give ids, or"},
		{[]string{"--all", "--of", "any"}, cli.ExitUsage, "only ids select among several"},
		{[]string{"--all", "--of", "webhooks"}, cli.ExitUsage, "is not one of any, queue"},
		{[]string{"--tx", "order-1"}, cli.ExitUsage, `"order-1" is no transaction's id`},
		{[]string{"--since", "yesterday"}, cli.ExitUsage, `"yesterday" is not valid`},
		{[]string{"no-uuid"}, cli.ExitNotDone, "no-uuid: no such entry\n\"rollcall dead-letters list\" shows"},
		{[]string{due}, cli.ExitNotDone, due + ": it waits already, and was not given up"},
		{[]string{"--tx", due}, cli.ExitNotDone, due + ": transaction not found\nList them with \"rollcall tx list\", or \"rollcall tx relay\""},
		{[]string{"--to", "shpo"}, cli.ExitNotDone, "nothing of it was given up\n\"rollcall dead-letters list\" shows all that was"},
	} {
		res := r.replay(c.args...)
		require.Equal(t, c.code, res.code, "%v: %s", c.args, res.stderr)
		require.Contains(t, res.stderr, c.want, "%v", c.args)
	}
	require.Len(t, r.webhooks(), 1, "nothing was replayed")
	res := rollcall(t, r.args("dead-letters", "show", "no-uuid")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "no-uuid: no such entry\n")
	res = rollcall(t, "dead-letters", "list", "--database-url", testpostgres.New(t).URL()) // another program's
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "neither relayers, nor a relay path, nor an escrow monitor")
}

func TestDeadLetters_OfRelayers_AreListedAndChanged(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, func(o *relayertest.Options) { o.Targets = []string{"api", "audit"} })
	one := r.send(t, 0, "one")
	r.confirm(t, one, relayer.Confirmed)
	park := func() {
		_, err := r.db.Exec(t.Context(), `UPDATE relayer_webhooks SET state = 'dead', settled_at = now(), attempts = 5, reason = 'status 500'`)
		require.NoError(t, err)
	}
	park()
	dead := func(args ...string) []deadletter.Letter {
		return read[letterList](t, r.operator(append([]string{"dead-letters", "list"}, args...)...)...).DeadLetters
	}
	all := dead()
	require.Len(t, all, 6)
	shown := succeed(t, r.operator("dead-letters", "show", all[0].ID)...)
	require.Regexp(t, `(?s)kind +relayer-webhooks\nid +`+all[0].ID+`\nto +(api|audit)\ntransaction +\S+\nevent +transaction_update\n.*tries +5\nreason +status 500\n`, shown)
	require.Equal(t, fmt.Sprintf("relayer-webhooks of %s: 6 entries to be tried again\n", one.Hash.Hex()),
		succeed(t, r.operator("dead-letters", "replay", "--of", "relayer-webhooks", "--tx", one.Hash.Hex())...))
	park()
	res := rollcall(t, r.operator("dead-letters", "replay", one.ID.String(), all[1].ID)...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, one.ID.String()+": no such entry")
	require.Equal(t, all[1].ID+": to be tried again\n", res.stdout)
	park()

	// Without a chain the commands have the webhooks of all pools. The alert and the runbook have the target's name, and neither chain nor pool.
	_, err := r.db.Exec(t.Context(), `INSERT INTO relayer_webhooks (lane, state, settled_at, payload) VALUES ('1/other/api', 'dead', now(), '{}')`)
	require.NoError(t, err)
	anyPool := func(args ...string) []string {
		return append([]string{"dead-letters"}, append(args, "--database-url", r.url)...)
	}
	every := map[string]int{}
	for _, l := range read[letterList](t, anyPool("list")...).DeadLetters {
		every[l.Of+" to "+l.To]++
	}
	require.Equal(t, map[string]int{
		"relayer-webhooks to 1/other/api": 1, "relayer-webhooks to 1337/pool/api": 3, "relayer-webhooks to 1337/pool/audit": 3,
	}, every)
	require.Len(t, dead(), 6)
	require.Len(t, read[letterList](t, anyPool("list", "--to", "api")...).DeadLetters, 4)
	require.Equal(t, "relayer-webhooks: 4 entries to be tried again\n", succeed(t, anyPool("replay", "--of", "relayer-webhooks", "--to", "api")...))
	park()
	require.Equal(t, "relayer-webhooks: 4 entries dropped\n", succeed(t, anyPool("drop", "--of", "relayer-webhooks", "--to", "api")...))
	require.Len(t, dead(), 3)
	res = rollcall(t, anyPool("list", "--tx", one.Hash.Hex())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "names a transaction of one pool\nGive --chain-id")
}

// Without --of the commands find the entries of each kind that the database has.
func TestDeadLetters_OfTheQueue_AreListedReplayedAndDropped(t *testing.T) {
	r := newRelayed(t)
	replayed, dropped := r.accept(), r.accept()
	kill := func() {
		_, err := r.db.Exec(t.Context(), `UPDATE relay_queue SET state = 'dead', settled_at = now(), reason = 'poison', attempts = 20`)
		require.NoError(t, err)
	}
	kill()
	letters := func(args ...string) []deadletter.Letter {
		return read[letterList](t, r.args(append([]string{"dead-letters", "list"}, args...)...)...).DeadLetters
	}
	require.Len(t, letters(), 2)
	require.Equal(t, []string{"queue", "shop", "poison"}, []string{letters()[0].Of, letters()[0].To, letters()[0].Reason})
	require.Contains(t, succeed(t, r.args("dead-letters", "list")...), "poison")
	require.Equal(t, replayed.String()+": to be tried again\n", succeed(t, r.args("dead-letters", "replay", replayed.String())...))
	require.Equal(t, dropped.String()+": dropped\n", succeed(t, r.args("dead-letters", "drop", dropped.String())...))
	require.Empty(t, letters())
	res := rollcall(t, r.args("dead-letters", "drop", replayed.String())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "it waits already")

	kill()
	_, err := r.db.Exec(t.Context(), `DELETE FROM relay_transactions WHERE id = $1`, replayed)
	require.NoError(t, err)
	require.Len(t, letters("--tx", replayed.String()), 1, "also without its transaction")
	r.write("shop")
	r.giveUp()
	require.Len(t, letters(), 3)
	require.Equal(t, "queue: 1 entry to be tried again\n", succeed(t, r.args("dead-letters", "replay", "--of", "queue", "--all")...))
	require.Contains(t, succeed(t, r.args("dead-letters", "drop", "--of", "client-webhooks", "--to", "shop", "-o", "json")...), `"count": 2`)
}

// clientReceiver is a client's receiver of webhooks. It answers 500 to reports of a final status until it is repaired.
type clientReceiver struct {
	*httptest.Server
	repaired atomic.Bool
	refused  chan struct{} // a value for the first refusal
	taken    chan clientWebhook
}

type clientWebhook struct {
	header http.Header
	body   []byte
	webhook.Body[map[string]any]
}

func startClientReceiver(t *testing.T) *clientReceiver {
	t.Helper()
	r := &clientReceiver{refused: make(chan struct{}, 1), taken: make(chan clientWebhook, 100)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got := clientWebhook{header: req.Header}
		var err error
		if got.body, err = io.ReadAll(req.Body); err != nil || json.Unmarshal(got.body, &got.Body) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if got.Payload["status"] == "confirmed" && !r.repaired.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			select {
			case r.refused <- struct{}{}:
			default:
			}
			return
		}
		r.taken <- got
	}))
	t.Cleanup(r.Close)
	return r
}

// next waits for the next webhook that the receiver takes, and verifies its signatures.
func (r *clientReceiver) next(t *testing.T) clientWebhook {
	t.Helper()
	key, err := signature.NewKey(outboundSecret)
	require.NoError(t, err)
	select {
	case got := <-r.taken:
		verified, err := signature.Verify([]signature.Key{key}, got.header, got.body, time.Now(), 0)
		require.NoError(t, err)
		require.Equal(t, got.ID, verified.ID)
		only := http.Header{signature.HeaderOpenZeppelin: got.header[signature.HeaderOpenZeppelin]}
		_, err = signature.Verify([]signature.Key{key}, only, got.body, time.Now(), 0)
		require.NoError(t, err, "OpenZeppelin's dialect")
		return got
	case <-time.After(time.Minute):
		require.FailNow(t, "no webhook arrives")
		panic("unreachable")
	}
}

// A client's receiver fails for a day. The operator replays the dead letter, and the receiver takes it once.
func TestAPI_ClientReceiverFailsForADay_ReplayDeliversOnce(t *testing.T) {
	t.Parallel()
	redis, db, receiver := testredis.Start(t), testpostgres.New(t), startClientReceiver(t)
	upstream := upstreamtest.Start(t, upstreamtest.Options{Key: relayerKey, Scope: "0123456789abcdef"})
	require.NoError(t, redis.Client().HSet(t.Context(), "relayer:status:0", "url", upstream.URL(), "status", "healthy").Err())
	require.NoError(t, redis.Client().SAdd(t.Context(), "relayer:active", "oz-relayer-0").Err())
	listen := freeAddress(t)
	api := start(t, "api", "--listen", listen, "--database-url", db.URL(), "--api-keys", "shop:"+clientKey, "--webhook-secret", inboundSecret,
		"--client-webhook-allow-private", "--client-webhooks", fmt.Sprintf(`[{"name": "shop", "url": %q, "signingKeys": [%q]}]`, receiver.URL, outboundSecret))
	consumer := start(t, "consumer", "--listen", "127.0.0.1:0", "--database-url", db.URL(), "--relayer-key", relayerKey, "--redis-url", redis.URL())
	require.Eventually(t, func() bool {
		code, _ := fetch(t, "http://"+listen+"/ready")
		return code == http.StatusOK
	}, 2*time.Minute, 10*time.Millisecond, "%s", &api.log)

	post := func(path string, header http.Header, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listen+"/api/v1"+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header = header
		client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Less(t, resp.StatusCode, 300)
	}
	post("/relay/direct", http.Header{"X-Api-Key": {clientKey}}, `{"transactionId": "order-1", "to": "0x00000000000000000000000000000000000000aa", "value": "1"}`)
	submitted := receiver.next(t)
	require.Equal(t, "submitted", submitted.Payload["status"], "%s", &consumer.log)

	// The relayer reports that the transaction is final.
	secret, err := signature.NewKey(inboundSecret)
	require.NoError(t, err)
	hash := "0x" + strings.Repeat("ab", 32)
	report := fmt.Sprintf(`{"id": "w1", "event": "transaction_update", "payload": {"payload_type": "transaction", "id": %q, "hash": %q, "status": "confirmed"}, "timestamp": %q}`,
		upstream.Transactions()[0].ID, hash, time.Now().UTC().Format(time.RFC3339Nano))
	header := http.Header{}
	signature.Sign(header, []signature.Key{secret}, "w1", time.Now(), []byte(report))
	post("/webhooks/oz-relayer", header, report)

	// The day of retries ends after the first one.
	select {
	case <-receiver.refused:
	case <-time.After(time.Minute):
		require.FailNow(t, "the receiver gets no report", "%s", &api.log)
	}
	r := &relayed{t: t, db: db.Pool(t), url: []string{"--database-url", db.URL()}}
	_, err = r.db.Exec(t.Context(), `UPDATE relay_webhooks SET failing_since = now() - interval '1 day' WHERE state = 'waiting'`)
	require.NoError(t, err)
	var dead []deadletter.Letter
	require.Eventually(t, func() bool {
		dead = r.webhooks("--to", "shop")
		return len(dead) == 1
	}, 2*time.Minute, 50*time.Millisecond, "%s", &api.log)
	require.Equal(t, "answered 500 Internal Server Error", dead[0].Reason)

	receiver.repaired.Store(true)
	res := r.replay("--tx", dead[0].Transaction)
	require.Zero(t, res.code, res.stderr)
	got := receiver.next(t)
	require.Equal(t, dead[0].ID, got.ID)
	require.Equal(t, dispatchstore.EventTransaction, got.Event)
	require.Equal(t, []any{"order-1", "confirmed", hash, ""}, []any{got.Payload["transactionId"], got.Payload["status"], got.Payload["hash"], got.Payload["reason"]})
	require.Greater(t, got.Payload["revision"], submitted.Payload["revision"])
	delivered := func() bool { return len(r.webhooks("--state", "done", "--to", "shop")) == 2 }
	require.Eventually(t, delivered, 2*time.Minute, 50*time.Millisecond)
	require.Empty(t, receiver.taken, "once")
	require.Empty(t, r.webhooks())

	isDescribed(t, "http://"+listen, got)

	// A client that has lost it gets it again, by its id.
	res = r.replay(got.ID)
	require.Zero(t, res.code, res.stderr)
	again := receiver.next(t)
	require.Equal(t, got.ID, again.ID)
	require.Equal(t, payload(t, got.body), payload(t, again.body))
	require.Eventually(t, delivered, 2*time.Minute, 50*time.Millisecond)
	require.Zero(t, consumer.stop())
	require.Zero(t, api.stop())
	require.Empty(t, receiver.taken)
}

// payload returns the payload of a webhook's body as it was sent.
func payload(t *testing.T, body []byte) string {
	t.Helper()
	var b webhook.Body[json.RawMessage]
	require.NoError(t, json.NewDecoder(bytes.NewReader(body)).Decode(&b))
	return string(b.Payload)
}

// isDescribed checks that the API's description has the headers and fields of a webhook, and no others.
func isDescribed(t *testing.T, api string, got clientWebhook) {
	t.Helper()
	type object struct {
		Required   []string
		Properties map[string]json.RawMessage
	}
	var doc struct {
		Webhooks struct {
			TransactionUpdate struct {
				Post struct {
					Parameters []struct{ Name string }
				}
			}
		}
		Components struct {
			Schemas struct{ TransactionUpdate object }
		}
	}
	_, text := fetch(t, api+"/api-docs/openapi.json")
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	headers := doc.Webhooks.TransactionUpdate.Post.Parameters
	require.Len(t, headers, 4)
	for _, h := range headers {
		require.NotEmpty(t, got.header.Get(h.Name), h.Name)
	}
	var body map[string]any
	require.NoError(t, json.Unmarshal(got.body, &body))
	schema := doc.Components.Schemas.TransactionUpdate
	var payload object
	require.NoError(t, json.Unmarshal(schema.Properties["payload"], &payload))
	for _, same := range []struct {
		schema object
		value  map[string]any
	}{{schema, body}, {payload, got.Payload}} {
		names := slices.Collect(maps.Keys(same.value))
		require.ElementsMatch(t, names, same.schema.Required)
		require.ElementsMatch(t, names, slices.Collect(maps.Keys(same.schema.Properties)))
	}
}
