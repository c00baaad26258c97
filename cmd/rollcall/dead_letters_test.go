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
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	dispatchstore "github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
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
	all := r.webhooks()
	require.Len(t, all, 4)
	require.Contains(t, succeed(t, r.args("dead-letters", "list", "--of", "client-webhooks", "--limit", "1")...), "the oldest 1 entry\n")
	for _, selection := range [][]string{
		{"--to", "shop"},
		{"--tx", txs[0].String()},
		{"--since", time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)},
		{"--until", time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)},
	} {
		r.giveUp()
		selected := r.webhooks(selection...)
		require.Len(t, selected, 2, "%v", selection)
		res := r.replay(selection...)
		require.Zero(t, res.code, "%v: %s", selection, res.stderr)
		require.Contains(t, res.stdout, ": 2 entries to be tried again\n")
		due := r.webhooks("--state", "waiting")
		require.Len(t, due, 2, "%v", selection)
		for i, d := range due {
			require.Equal(t, selected[i].ID, d.ID)
			require.Equal(t, 5, d.Attempts)
			require.False(t, d.DueAt.After(time.Now()), "at once")
		}
	}
	var limits int
	require.NoError(t, r.db.QueryRow(t.Context(), `SELECT count(failing_since) FROM relay_webhooks WHERE state = 'waiting'`).Scan(&limits))
	require.Zero(t, limits, "for a day again")

	r.giveUp()
	res := r.replay(all[0].ID, all[1].ID)
	require.Zero(t, res.code, res.stderr)
	require.Len(t, r.webhooks(), 2)
	require.Contains(t, r.replay("--all").stdout, "client-webhooks: 2 entries to be tried again\n")
	require.Contains(t, r.replay("--all").stdout, "client-webhooks: 0 entries to be tried again\n")

	// A delivered one is replayed by its id only.
	_, err := r.db.Exec(t.Context(), `UPDATE relay_webhooks SET state = 'done', settled_at = now()`)
	require.NoError(t, err)
	require.Equal(t, cli.ExitNotDone, r.replay("--tx", txs[0].String()).code)
	require.Zero(t, r.replay(all[0].ID).code)
	require.Len(t, r.webhooks("--state", "waiting"), 1)
	require.Len(t, r.webhooks("--state", "any", "--tx", txs[0].String(), "--tx", txs[1].String()), 4)
}

func TestDeadLettersReplay_WrongSelection_IsRefused(t *testing.T) {
	r := newRelayed(t)
	tx := r.write("shop")[0]
	r.giveUp()
	due := r.webhooks()[0].ID
	require.Zero(t, r.replay(due).code)
	clean := r.accept()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, cli.ExitUsage, "give ids, or --tx, --to, --since, --until, or --all"},
		{[]string{"--all", "--to", "shop"}, cli.ExitUsage, "give ids, or"},
		{[]string{due, "--tx", tx.String()}, cli.ExitUsage, "give ids, or"},
		{[]string{"--tx", "order-1"}, cli.ExitUsage, `"order-1" is no transaction's id`},
		{[]string{"--since", "yesterday"}, cli.ExitUsage, `"yesterday" is not valid`},
		{[]string{tx.String()}, cli.ExitNotDone, tx.String() + ": no such entry\n\"rollcall dead-letters list\" shows"},
		{[]string{due}, cli.ExitNotDone, due + ": it waits already, and was not given up"},
		{[]string{"--tx", due}, cli.ExitNotDone, due + ": transaction not found\nList them with \"rollcall tx list\", or \"rollcall tx relay\""},
		{[]string{"--tx", clean.String()}, cli.ExitNotDone, "nothing of it was given up\n"},
		{[]string{"--to", "shpo"}, cli.ExitNotDone, "nothing of it was given up\n"},
		{[]string{"--since", "2999-01-01T00:00:00Z"}, cli.ExitNotDone, "nothing of it was given up\n"},
	} {
		res := r.replay(c.args...)
		require.Equal(t, c.code, res.code, "%v: %s", c.args, res.stderr)
		require.Contains(t, res.stderr, c.want, "%v", c.args)
	}
	require.Len(t, r.webhooks(), 1, "nothing was replayed")
}

func TestDeadLetters_OfRelayers_AreDeliveredAgain(t *testing.T) {
	t.Parallel()
	r := startRelay(t, 1, func(o *relayertest.Options) { o.Targets = []string{"api", "audit"} })
	one, two := r.send(t, 0, "one"), r.send(t, 0, "two")
	r.confirm(t, two, relayer.Confirmed)
	r.confirm(t, one, relayer.Confirmed)
	park := func() {
		_, err := r.db.Exec(t.Context(), `UPDATE relayer_webhooks SET state = 'dead', settled_at = now(), attempts = 5, reason = 'status 500'`)
		require.NoError(t, err)
	}
	park()
	dead := func(args ...string) []deadletter.Letter {
		return read[letterList](t, r.operator(append([]string{"dead-letters", "list"}, args...)...)...).DeadLetters
	}
	replay := func(args ...string) string {
		return succeed(t, r.operator(append([]string{"dead-letters", "replay", "--of", "relayer-webhooks"}, args...)...)...)
	}
	all := dead()
	require.Len(t, all, 12)
	require.Equal(t, all, dead("--of", "relayer-webhooks"))

	// Without a chain the list has the webhooks of all pools, and the relay path's entries.
	require.NoError(t, postgres.Migrate(t.Context(), r.url, dispatchstore.Migrations()))
	require.NoError(t, postgres.Migrate(t.Context(), r.url, queue.Migrations()))
	_, err := r.db.Exec(t.Context(), `INSERT INTO relayer_webhooks (lane, state, settled_at, payload) VALUES ('1/other/api', 'dead', now(), '{}')`)
	require.NoError(t, err)
	_, err = r.db.Exec(t.Context(), `INSERT INTO relay_queue (id, lane, state, settled_at) VALUES ($1, 'shop', 'dead', now())`, uuid.NewString())
	require.NoError(t, err)
	every := map[string]int{}
	for _, l := range read[letterList](t, "dead-letters", "list", "--database-url", r.url).DeadLetters {
		every[l.Of+" to "+l.To]++
	}
	require.Equal(t, map[string]int{
		"queue to shop": 1, "relayer-webhooks to 1/other/api": 1, "relayer-webhooks to 1337/pool/api": 6, "relayer-webhooks to 1337/pool/audit": 6,
	}, every)

	// The alert and the runbook have the target's name, and neither chain nor pool.
	runbook := func(args ...string) []string {
		return append([]string{"dead-letters"}, append(args, "--database-url", r.url)...)
	}
	require.Len(t, read[letterList](t, runbook("list", "--to", "api")...).DeadLetters, 7)
	require.Equal(t, "relayer-webhooks: 7 entries to be tried again\n", succeed(t, runbook("replay", "--of", "relayer-webhooks", "--to", "api")...))
	park()
	_, err = r.db.Exec(t.Context(), `UPDATE relayer_webhooks SET lane = '1/other/old' WHERE lane = '1/other/api'`)
	require.NoError(t, err)
	require.Equal(t, "relayer-webhooks: 1 entry dropped\n", succeed(t, runbook("drop", "--of", "relayer-webhooks", "--to", "old")...))
	res := rollcall(t, "dead-letters", "list", "--database-url", r.url, "--tx", one.Hash.Hex())
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "names a transaction of one pool\nGive --chain-id")
	require.Len(t, dead("--of", "relayer-webhooks"), 12)
	_, err = r.db.Exec(t.Context(), `DELETE FROM relay_queue`)
	require.NoError(t, err)
	require.Len(t, dead("--to", "audit"), 6)
	require.Len(t, dead("--tx", one.ID.String()), 6)
	require.Contains(t, succeed(t, r.operator("dead-letters", "list", "--limit", "3")...), "the oldest 3 entries\n")
	shown := succeed(t, r.operator("dead-letters", "show", all[0].ID)...)
	require.Regexp(t, `(?s)kind +relayer-webhooks\nid +`+all[0].ID+`\nto +(api|audit)\ntransaction +\S+\nevent +transaction_update\n.*tries +5\nreason +status 500\n`, shown)

	require.Equal(t, all[0].ID+": to be tried again\n", replay(all[0].ID))
	require.Len(t, dead(), 11)
	n := len(dead("--tx", two.ID.String()))
	require.Equal(t, fmt.Sprintf("relayer-webhooks of %s: %d entries to be tried again\nrelayer-webhooks of %s: %d entries to be tried again\n", one.Hash.Hex(), 11-n, two.ID, n),
		replay("--tx", one.Hash.Hex(), "--tx", two.ID.String()))
	require.Empty(t, dead())
	park()
	require.Equal(t, "relayer-webhooks: 6 entries to be tried again\n", replay("--to", "api"))
	require.Equal(t, "relayer-webhooks: 6 entries to be tried again\n", replay("--all"))
	require.Equal(t, "relayer-webhooks: 0 entries to be tried again\n", replay("--all"))
	park()
	require.Equal(t, all[0].ID+": dropped\n", succeed(t, r.operator("dead-letters", "drop", all[0].ID)...))
	require.Len(t, dead(), 11)

	for want, args := range map[string][]string{
		"give ids, or --tx, --to":       {},
		"only ids select among several": {"--all"},
		`"y" is no transaction's id`:    {"--tx", "y"},
		"is not one of any, queue":      {"--all", "--of", "webhooks"},
	} {
		res := rollcall(t, r.operator(append([]string{"dead-letters", "replay"}, args...)...)...)
		require.Equal(t, cli.ExitUsage, res.code, "%v", args)
		require.Contains(t, res.stderr, want)
	}
	res = rollcall(t, r.operator("dead-letters", "replay", one.ID.String(), all[1].ID)...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, one.ID.String()+": no such entry")
	require.Contains(t, res.stdout, all[1].ID+": to be tried again\n")
	res = rollcall(t, r.operator("dead-letters", "replay", "--of", "relayer-webhooks", "--tx", "0x"+strings.Repeat("12", 32))...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "transaction not found")
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
	letters := func() []deadletter.Letter { return read[letterList](t, r.args("dead-letters", "list")...).DeadLetters }
	require.Len(t, letters(), 2)
	require.Equal(t, []string{"queue", "shop", "poison"}, []string{letters()[0].Of, letters()[0].To, letters()[0].Reason})
	require.Contains(t, succeed(t, r.args("dead-letters", "list")...), "poison")
	require.Equal(t, replayed.String()+": to be tried again\n", succeed(t, r.args("dead-letters", "replay", replayed.String())...))
	require.Equal(t, dropped.String()+": dropped\n", succeed(t, r.args("dead-letters", "drop", dropped.String())...))
	require.Empty(t, letters())
	for id, want := range map[uuid.UUID]string{dropped: "no such entry", replayed: "it waits already"} {
		res := rollcall(t, r.args("dead-letters", "drop", id.String())...)
		require.Equal(t, cli.ExitNotDone, res.code)
		require.Contains(t, res.stderr, want)
	}
	kill()

	// The transaction of an entry is gone, so the queue gave it up.
	_, err := r.db.Exec(t.Context(), `INSERT INTO relay_queue (id, lane, state, settled_at) VALUES ($1, 'shop', 'dead', now())`, dropped.String())
	require.NoError(t, err)
	_, err = r.db.Exec(t.Context(), `DELETE FROM relay_transactions WHERE id = $1`, dropped)
	require.NoError(t, err)
	require.Len(t, read[letterList](t, r.args("dead-letters", "list", "--tx", dropped.String())...).DeadLetters, 1)
	require.Equal(t, "queue of "+dropped.String()+": 1 entry dropped\n",
		succeed(t, r.args("dead-letters", "drop", "--of", "queue", "--tx", dropped.String())...))
	res := rollcall(t, r.args("dead-letters", "list", "--tx", dropped.String())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, dropped.String()+": transaction not found")
	r.write("shop")
	r.giveUp()
	require.Len(t, letters(), 3)
	require.Equal(t, "queue: 1 entry to be tried again\n", succeed(t, r.args("dead-letters", "replay", "--of", "queue", "--all")...))
	require.Contains(t, succeed(t, r.args("dead-letters", "drop", "--of", "client-webhooks", "--to", "shop", "-o", "json")...), `"count": 2`)
	res = rollcall(t, r.args("dead-letters", "drop")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, "give ids, or")

	other := testpostgres.New(t) // another program's
	res = rollcall(t, "dead-letters", "list", "--database-url", other.URL())
	require.NotZero(t, res.code)
	require.Contains(t, res.stderr, "neither relayers nor a relay path")
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
