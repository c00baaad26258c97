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
	t.report(pathPacedRow+", p99", "ms").within(20)
	t.report(pathSubmitRow, "/s").judgeAtLeast(1000)
	t.versus(pathPollingRow, pathConfirmedRow, "/s").atLeast(1)
	t.report(pathConfirmRow+", p50", "ms")
	t.report(pathConfirmRow+", p99", "ms")
	t.report(pathHooksRow, "/s").judgeAtLeast(3000)
	t.report(pathStatusRow, "/s").judgeAtLeast(10_000)
	t.report(pathStatusRow+", p99", "ms").within(10)
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
		answer(w, `[{"id":"pool","network_type":"evm","paused":false,"system_disabled":false}]`)
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.api+"/api/v1/webhooks/oz-relayer", strings.NewReader(webhookBody(id, "confirmed", 3)))
	if err != nil {
		return
	}
	req.Header.Set("X-Signature", sign(webhookBody(id, "confirmed", 3)))
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
}

func (t *trial) startRelayPath() *path {
	server := t.startPostgres()
	p := &path{t: t, api: t.addresses(1)[0], redis: testredis.Start(t), database: t.freshDatabase(server, "path")}
	t.start(t.TempDir(), []string{
		"API_LISTEN=" + p.api, "DATABASE_URL=" + p.database, "API_KEYS=bench:" + apiKey, "WEBHOOK_SECRET=" + webhookKey, "REDIS_URL=" + p.redis.URL(),
	}, "", t.rollcall, "api")
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

// consume lists stand-ins in Redis, and starts a consumer.
func (p *path) consume(relayers int) {
	t := p.t
	for i := range relayers {
		id := fmt.Sprintf("oz-relayer-%d", i)
		t.check(p.redis.Client().HSet(t.ctx, fmt.Sprintf("relayer:status:%d", i), "url", t.startStandIn(p.api).URL).Err())
		t.check(p.redis.Client().SAdd(t.ctx, "relayer:active", id).Err())
	}
	listen := t.addresses(1)[0]
	t.start(t.TempDir(), []string{
		"CONSUMER_LISTEN=" + listen, "DATABASE_URL=" + p.database, "CONSUMER_RELAYER_KEY=" + apiKey, "REDIS_URL=" + p.redis.URL(),
	}, "", t.rollcall, "consumer")
	t.ready(listen)
}

var pathPost = postRequest("/api/v1/relay/direct", "x-api-key: "+apiKey+"\r\n", fmt.Sprintf(`{"to":"%s","value":"1","data":"0x","gasLimit":100000}`, receiver.Hex()))

// accept posts as fast as possible, and then at a rate.
func (p *path) accept() {
	t := p.t
	t.sample(pathPostRow, t.postWith(64, p.api, t.burst/2, 0, func(int) []byte { return pathPost }, `"queued"`).PerSecond, "/s")
	paced := t.post(p.api, int(pathRate*t.paced.Seconds()), pathRate, func(int) []byte { return pathPost }, `"queued"`)
	t.sample(pathPacedRow+", p50", ms(paced.P50), "ms")
	t.sample(pathPacedRow+", p99", ms(paced.P99), "ms")
}

// submit starts a consumer with what was posted, and waits until relayers have all of it.
func (p *path) submit() {
	t := p.t
	waiting := p.count("open AND relayer_tx IS NULL")
	p.consume(3)
	var began time.Time
	t.until(2*time.Minute, func(context.Context) error {
		left := p.count("open AND relayer_tx IS NULL")
		if began.IsZero() && left < waiting {
			began, waiting = time.Now(), left // the first ones waited for the consumer's start
		}
		if left > 0 {
			return fmt.Errorf("%.0f transactions are not at a relayer", left)
		}
		return nil
	})
	t.sample(pathSubmitRow, waiting/time.Since(began).Seconds(), "/s")
	p.settle()
}

// settle waits until all are confirmed.
func (p *path) settle() {
	p.t.until(2*time.Minute, func(context.Context) error {
		if open := p.count("open"); open > 0 {
			return fmt.Errorf("%.0f transactions are not confirmed", open)
		}
		return nil
	})
}

func (p *path) count(where string) (n float64) {
	p.t.check(p.conn.QueryRow(p.t.ctx, "SELECT count(*) FROM relay_transactions WHERE "+where).Scan(&n))
	return n
}

// webhooks sends reports of transactions that are at a relayer.
func (p *path) webhooks() {
	t := p.t
	n := t.burst / 2
	_, err := p.conn.Exec(t.ctx, `UPDATE relay_transactions SET status = 'submitted', open = true, outstanding = true, reported_revision = 1, reported_at = '-infinity'
		WHERE id IN (SELECT id FROM relay_transactions ORDER BY id LIMIT $1)`, n)
	t.check(err)
	rows, err := p.conn.Query(t.ctx, "SELECT relayer_tx FROM relay_transactions WHERE open ORDER BY id")
	t.check(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	t.check(err)
	requests := make([][]byte, len(ids))
	for i, id := range ids {
		body := webhookBody(id, "mined", 9)
		requests[i] = postRequest("/api/v1/webhooks/oz-relayer", "X-Signature: "+sign(body)+"\r\n", body)
	}
	t.sample(pathHooksRow, t.postWith(64, p.api, len(requests), 0, func(n int) []byte { return requests[n] }, `"changed":true`).PerSecond, "/s")
}

// statuses reads transactions.
func (p *path) statuses() {
	t := p.t
	rows, err := p.conn.Query(t.ctx, "SELECT id::text FROM relay_transactions ORDER BY id DESC LIMIT 1000")
	t.check(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	t.check(err)
	requests := make([][]byte, len(ids))
	for i, id := range ids {
		requests[i] = fmt.Appendf(nil, "GET /api/v1/relay/status/%s HTTP/1.1\r\nHost: localhost\r\nx-api-key: %s\r\n\r\n", id, apiKey)
	}
	read := t.postWith(64, p.api, 5*t.burst, 0, func(n int) []byte { return requests[n%len(requests)] }, `"transactionId"`)
	t.sample(pathStatusRow, read.PerSecond, "/s")
	t.sample(pathStatusRow+", p99", ms(read.P99), "ms")
}

// confirm measures the whole path: as fast as it can, and the latency at half of that.
func (p *path) confirm() {
	t := p.t
	p.consume(3)
	began := time.Now()
	t.postWith(64, p.api, t.burst/2, 0, func(int) []byte { return pathPost }, `"queued"`)
	p.settle()
	rate := float64(t.burst/2) / time.Since(began).Seconds()
	t.sample(pathConfirmedRow, rate, "/s")
	since := time.Now()
	t.post(p.api, int(rate/2*t.paced.Seconds()), rate/2, func(int) []byte { return pathPost }, `"queued"`)
	p.settle()
	var p50, p99 float64
	t.check(p.conn.QueryRow(t.ctx, `SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY s), percentile_cont(0.99) WITHIN GROUP (ORDER BY s)
		FROM (SELECT 1000 * extract(epoch FROM updated_at - created_at)::float8 AS s FROM relay_transactions WHERE created_at >= $1) AS t`, since).Scan(&p50, &p99))
	t.sample(pathConfirmRow+", p50", p50, "ms")
	t.sample(pathConfirmRow+", p99", p99, "ms")
}
