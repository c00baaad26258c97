package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

const (
	pathPostRow      = "relay path: POST accepted, 64 clients"
	pathPacedRow     = "relay path: POST accepted, at 1,000 a second"
	pathSubmitRow    = "relay path: queue to submitted, by one consumer"
	pathPollingRow   = "polling: eight workers post and poll until confirmed"
	pathConfirmRow   = "relay path: POST to confirmed, at half of that load"
	pathConfirmedRow = "relay path: POST to confirmed, 64 clients"
	pathHooksRow     = "relay path: webhooks of relayers received, 64 connections"
	pathStatusRow    = "relay path: statuses read, 64 clients"
)

const (
	// answerTime is how long a stand-in relayer takes for an answer, and confirmTime until it confirms a transaction.
	answerTime  = 20 * time.Millisecond
	confirmTime = 200 * time.Millisecond
	// pollEvery is how often the polling design asks, and pollers is how many workers it has.
	pollEvery = 50 * time.Millisecond
	pollers   = 8
	pathRate  = 1000
	// pathClients is how many clients call as fast as they can, and pathRelayers is the number of stand-ins.
	pathClients  = 64
	pathRelayers = 3
)

// relayPath measures an API and a consumer with their Postgres and Redis, and relayers that answer in 20 ms.
func relayPath(t *trial) {
	t.inRounds(polling, func(t *trial) {
		p := t.startRelayPath()
		p.accept()
		p.submit()
		p.webhooks()
		p.statuses()
	}, func(t *trial) { t.startRelayPath().confirm() })
	t.report(pathPostRow, "/s")
	t.report(pathPacedRow+", p50", "ms")
	t.report(pathPacedRow+", p99", "ms").valueAtMost(20)
	t.report(pathSubmitRow, "/s").valueAtLeast(1000)
	t.versus(pathPollingRow, pathConfirmedRow, "/s").atLeast(1)
	t.report(pathConfirmRow+", p50", "ms")
	t.report(pathConfirmRow+", p99", "ms")
	t.report(pathHooksRow, "/s").valueAtLeast(3000)
	t.report(pathStatusRow, "/s")
	// Other programs disturb these less than the rates above.
	for _, row := range []string{pathPostRow, pathSubmitRow, pathConfirmedRow, pathHooksRow, pathStatusRow} {
		for _, role := range append(pathRoles, "clients") {
			t.report(pathCost(row, role), "µs")
		}
	}
}

// standIn is a relayer that answers in a fixed time, and confirms each transaction a fixed time later. It sends its webhooks to
// an API, unless that is "".
type standIn struct {
	*httptest.Server
	api     string
	sent    sync.WaitGroup
	pending atomic.Int64
	mu      sync.Mutex
	txs     map[string]time.Time // by id: when it was accepted
}

func (t *trial) startStandIn(api string) *standIn {
	s := &standIn{api: api, txs: map[string]time.Time{}}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, data string) {
		w.Header().Set("Idempotency-Scope", "0123456789abcdef")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"success":true,"error":null,"data":`+data+`}`)
	}
	mux.HandleFunc("GET /api/v1/relayers", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, `[{"id":"pool","network":"evm:1337","network_type":"evm","paused":false,"system_disabled":false}]`)
	})
	mux.HandleFunc("GET /api/v1/relayers/pool/status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, fmt.Sprintf(`{"network_type":"evm","paused":false,"system_disabled":false,"pending_transactions_count":%d}`, s.pending.Load()))
	})
	mux.HandleFunc("GET /api/v1/relayers/pool/transactions/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		accepted := s.txs[r.PathValue("id")]
		s.mu.Unlock()
		status := "submitted"
		if time.Since(accepted) > confirmTime {
			status = "confirmed"
		}
		answer(w, s.body(r.PathValue("id"), status, accepted))
	})
	mux.HandleFunc("POST /api/v1/relayers/pool/transactions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		id, now := uuid.NewString(), time.Now()
		s.mu.Lock()
		s.txs[id] = now
		s.mu.Unlock()
		s.pending.Add(1)
		s.sent.Go(func() { s.report(t.ctx, id, now) })
		pause(r.Context(), answerTime)
		answer(w, s.body(id, "pending", now))
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() { s.Close(); s.sent.Wait() })
	return s
}

func (s *standIn) body(id, status string, at time.Time) string {
	return fmt.Sprintf(`{"id":"%s","hash":"0x%064x","status":"%s","created_at":"%s","value":"0x0"}`, id, at.UnixNano(), status, at.UTC().Format(time.RFC3339Nano))
}

// report confirms a transaction, and tells the API.
func (s *standIn) report(ctx context.Context, id string, accepted time.Time) {
	pause(ctx, confirmTime)
	s.pending.Add(-1)
	if s.api == "" || ctx.Err() != nil {
		return
	}
	body := webhookBody(id, "confirmed", 3) // its time changes each second
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.api+"/api/v1/webhooks/oz-relayer", strings.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("X-Signature", sign(body))
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

func webhookBody(id, status string, revision int) string {
	return fmt.Sprintf(`{"id":"w-%s","event":"transaction_update","timestamp":"%s","payload":{"payload_type":"transaction","id":"%s","status":"%s","revision":%d,"hash":"0x%064x"}}`,
		id, time.Now().UTC().Format(time.RFC3339), id, status, revision, 1)
}

func sign(body string) string {
	mac := hmac.New(sha256.New, []byte(webhookKey))
	mac.Write([]byte(body))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// polling measures the design that the relay path replaces: each worker gives a transaction to the relayer, and asks for it
// until it is confirmed.
func polling(t *trial) {
	s := t.startStandIn("")
	l := t.load(pollers)
	l.Window = max(l.Window, 3*time.Second)
	t.sample(pathPollingRow, t.run(l, func(ctx context.Context, _, _ int) (int, error) {
		resp, err := http.Post(s.URL+"/api/v1/relayers/pool/transactions", "application/json", strings.NewReader(`{}`))
		if err != nil {
			return 0, err
		}
		var got struct {
			Data struct {
				ID     string `json:"id"`
				Status string `json:"status"`
			} `json:"data"`
		}
		err = errors.Join(json.NewDecoder(resp.Body).Decode(&got), resp.Body.Close())
		for err == nil && got.Data.Status != "confirmed" {
			pause(ctx, pollEvery)
			var body []byte
			if body, err = httpGet(ctx, s.URL+"/api/v1/relayers/pool/transactions/"+got.Data.ID); err == nil {
				err = json.Unmarshal(body, &got)
			}
		}
		return 1, err
	}).PerSecond, "/s")
}

// path is an API and all that it needs. A consumer is started when it is measured.
type path struct {
	t        *trial
	api      string
	redis    *testredis.Server
	database string
	conn     *pgx.Conn
	pids     map[string]int // by role
}

func (t *trial) startRelayPath() *path {
	server := t.startPostgres()
	p := &path{t: t, api: t.addresses(1)[0], redis: testredis.Start(t), database: t.freshDatabase(server, "path")}
	p.pids = map[string]int{"Postgres": server.PID()}
	p.pids["API"] = t.start(t.TempDir(), []string{
		"API_LISTEN=" + p.api, "DATABASE_URL=" + p.database, "API_KEYS=bench:" + apiKey, "WEBHOOK_SECRET=" + webhookKey, "REDIS_URL=" + p.redis.URL(),
	}, "", t.rollcall, "api").PID()
	t.ready(p.api)
	p.conn = t.connect(p.database)
	return p
}

func (t *trial) ready(address string) {
	t.until(30*time.Second, func(ctx context.Context) error {
		_, err := httpGet(ctx, "http://"+address+"/ready")
		return err
	})
}

// consume lists stand-ins in Redis that report to an API, or to none, and starts a consumer. It asks relayers for nothing,
// because that would be another measurement.
func (p *path) consume(reportTo string, relayers int) {
	t := p.t
	for i := range relayers {
		id := fmt.Sprintf("oz-relayer-%d", i)
		t.check(p.redis.Client().HSet(t.ctx, fmt.Sprintf("relayer:status:%d", i), "url", t.startStandIn(reportTo).URL).Err())
		t.check(p.redis.Client().SAdd(t.ctx, "relayer:active", id).Err())
	}
	listen := t.addresses(1)[0]
	p.pids["consumer"] = t.start(t.TempDir(), []string{
		"CONSUMER_LISTEN=" + listen, "DATABASE_URL=" + p.database, "CONSUMER_RELAYER_KEY=" + apiKey, "REDIS_URL=" + p.redis.URL(),
		"CONSUMER_WEBHOOK_SILENCE=1h",
	}, "", t.rollcall, "consumer").PID()
	t.ready(listen)
}

// cost samples the processor time that each process uses for one of n operations.
func (p *path) cost(row string, n int, do func()) {
	of := map[string]processor{"clients": ownProcessor}
	for _, role := range pathRoles {
		of[role] = func() (time.Duration, error) {
			if pid, running := p.pids[role]; running {
				return processorOf(pid)()
			}
			return 0, nil
		}
	}
	for role, used := range p.t.processorTime(of, do) {
		p.t.sample(pathCost(row, role), float64(used.Microseconds())/float64(n), "µs")
	}
}

// pathRoles are the processes whose processor time is measured, beside this one. One may start during a measurement.
var pathRoles = []string{"API", "consumer", "Postgres"}

func pathCost(row, role string) string { return row + ": processor time each, " + role }

// pathPost returns a request for a transaction, with further fields.
func pathPost(more string) []byte {
	return postRequest("/api/v1/relay/direct", "x-api-key: "+apiKey+"\r\n",
		fmt.Sprintf(`{"to":"%s","value":"1","data":"0x","gasLimit":100000%s}`, receiver.Hex(), more))
}

// accept posts as fast as possible, and then at a rate.
func (p *path) accept() {
	t, request := p.t, pathPost("")
	p.cost(pathPostRow, t.burst/2, func() {
		t.sample(pathPostRow, t.postWith(pathClients, p.api, t.burst/2, 0, func(int) []byte { return request }, `"queued"`).PerSecond, "/s")
	})
	paced := t.post(p.api, int(pathRate*t.paced.Seconds()), pathRate, func(int) []byte { return request }, `"queued"`)
	t.sample(pathPacedRow+", p50", ms(paced.P50), "ms")
	t.sample(pathPacedRow+", p99", ms(paced.P99), "ms")
}

// submit starts a consumer with what was posted, and relayers that report nothing, and waits until they have all of it.
func (p *path) submit() {
	t := p.t
	waiting := int(p.number("SELECT count(*) FROM relay_transactions"))
	p.cost(pathSubmitRow, waiting, func() {
		p.consume("", pathRelayers)
		p.none("relayer_tx IS NULL")
	})
	t.sample(pathSubmitRow, p.number("SELECT count(*) / extract(epoch FROM max(submitted_at) - min(submitted_at))::float8 FROM relay_transactions"), "/s")
}

// none waits until no transaction is like this. It looks seldom, because counting takes Postgres' time.
func (p *path) none(where string) {
	for ended := time.Now().Add(2 * time.Minute); ; p.t.pause(200 * time.Millisecond) {
		left := p.number("SELECT count(*) FROM relay_transactions WHERE " + where)
		if left == 0 {
			return
		}
		if time.Now().After(ended) {
			p.t.Fatalf("%.0f transactions are still %s", left, where)
		}
	}
}

func (p *path) number(query string, args ...any) (n float64) {
	p.t.check(p.conn.QueryRow(p.t.ctx, query, args...).Scan(&n))
	return n
}

// webhooks reports what the relayers have, as mined and then as confirmed.
func (p *path) webhooks() {
	t := p.t
	ids := p.texts("SELECT relayer_tx FROM relay_transactions ORDER BY submitted_at LIMIT $1", t.burst/2)
	requests := make([][]byte, 2*len(ids))
	for i := range requests {
		body := webhookBody(ids[i%len(ids)], []string{"mined", "confirmed"}[i/len(ids)], 2+i/len(ids))
		requests[i] = postRequest("/api/v1/webhooks/oz-relayer", "X-Signature: "+sign(body)+"\r\n", body)
	}
	p.cost(pathHooksRow, len(requests), func() {
		t.sample(pathHooksRow, t.postWith(pathClients, p.api, len(requests), 0, func(n int) []byte { return requests[n] }, `"changed":true`).PerSecond, "/s")
	})
}

func (p *path) texts(query string, args ...any) []string {
	rows, err := p.conn.Query(p.t.ctx, query, args...)
	p.t.check(err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	p.t.check(err)
	return texts
}

// statuses reads transactions.
func (p *path) statuses() {
	t := p.t
	ids := p.texts("SELECT id::text FROM relay_transactions ORDER BY id DESC LIMIT 1000")
	requests := make([][]byte, len(ids))
	for i, id := range ids {
		requests[i] = fmt.Appendf(nil, "GET /api/v1/relay/status/%s HTTP/1.1\r\nHost: localhost\r\nx-api-key: %s\r\n\r\n", id, apiKey)
	}
	p.cost(pathStatusRow, 5*t.burst, func() {
		read := t.postWith(pathClients, p.api, 5*t.burst, 0, func(n int) []byte { return requests[n%len(requests)] }, `"transactionId"`)
		t.sample(pathStatusRow, read.PerSecond, "/s")
	})
}

// confirm measures the whole path: as fast as it can, and the latency at half of that.
func (p *path) confirm() {
	t := p.t
	p.consume(p.api, pathRelayers)
	n := t.burst / 2
	p.cost(pathConfirmedRow, n, func() {
		t.postWith(pathClients, p.api, n, 0, func(int) []byte { return pathPost("") }, `"queued"`)
		p.none("open")
	})
	rate := p.number("SELECT count(*) / extract(epoch FROM max(updated_at) - min(created_at))::float8 FROM relay_transactions")
	t.sample(pathConfirmedRow, rate, "/s")

	posted := make([]time.Time, int(rate/2*t.paced.Seconds()))
	t.post(p.api, len(posted), rate/2, func(n int) []byte {
		posted[n] = time.Now()
		return pathPost(fmt.Sprintf(`,"transactionId":"%d"`, n))
	}, `"queued"`)
	p.none("open")
	rows, err := p.conn.Query(t.ctx, "SELECT client_id::int, updated_at FROM relay_transactions WHERE client_id <> ''")
	t.check(err)
	took := newLatencies()
	var i int
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&i, &at}, func() error { took.add(at.Sub(posted[i])); return nil })
	t.check(err)
	t.sample(pathConfirmRow+", p50", ms(took.quantile(0.5)), "ms")
	t.sample(pathConfirmRow+", p99", ms(took.quantile(0.99)), "ms")
}
