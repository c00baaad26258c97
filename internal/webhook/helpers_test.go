package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childDatabase); url != "" {
		os.Exit(child(url, os.Getenv(childTarget), os.Getenv(childOwner)))
	}
	goleak.VerifyTestMain(testpostgres.Main(m))
}

const (
	secret   = "a-signing-key-of-32-characters-or-more"
	patience = 2 * time.Minute
)

// settings returns a Config with short pauses for receivers on the loopback interface.
func settings(targets ...Target) Config {
	return Config{
		Targets: targets, AllowPrivate: true, Timeout: 10 * time.Second,
		tuning: tuning{backoff: 10 * time.Millisecond, pause: 10 * time.Millisecond, maxPause: 50 * time.Millisecond},
	}
}

func newDeliverer(t testing.TB, db *testDB, cfg Config) *Deliverer {
	t.Helper()
	d, err := New(db.Pool, db.owner.Source, cfg)
	require.NoError(t, err)
	return d
}

// run runs a Deliverer until the test ends or stop is called.
func run(t testing.TB, db *testDB, cfg Config) (d *Deliverer, stop func()) {
	t.Helper()
	d = newDeliverer(t, db, cfg)
	return d, start(t, d)
}

// start runs a Deliverer until the test ends or stop is called.
func start(t testing.TB, d *Deliverer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// request is a request that a receiver got.
type request struct {
	header http.Header
	body   []byte
	webhook
}

// webhook holds the fields of a body that receivers read.
type webhook struct {
	ID      string `json:"id"`
	Event   string `json:"event"`
	Payload struct {
		Type     string `json:"payload_type"`
		ID       string `json:"id"`            // of the relayer's deliveries
		ClientID string `json:"transactionId"` // of the clients'
		Status   string `json:"status"`
		Revision int    `json:"revision"`
	} `json:"payload"`
	Timestamp time.Time `json:"timestamp"`
}

// receiver is a target. answer handles each request after it is recorded; nil answers 200.
type receiver struct {
	t      testing.TB
	server *httptest.Server
	answer func(w http.ResponseWriter, r request)

	mu      sync.Mutex
	got     []request
	taken   []request     // requests that were answered with 200
	changed chan struct{} // closed and replaced with each request
}

func newReceiver(t testing.TB, answer func(http.ResponseWriter, request)) *receiver {
	t.Helper()
	r := &receiver{t: t, answer: answer, changed: make(chan struct{})}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

func (r *receiver) target(name string) Target {
	return Target{Name: name, URL: r.server.URL + "/hook/token-of-the-path", SigningKeys: []string{secret}}
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // connection closed early
	}
	got := request{header: req.Header.Clone(), body: body}
	if err := json.Unmarshal(body, &got.webhook); err != nil {
		r.t.Errorf("body %s: %v", body, err)
	}
	got.Payload.ID = cmp.Or(got.Payload.ID, got.Payload.ClientID)
	key, _ := signature.NewKey(secret)
	if _, err := signature.Verify([]signature.Key{key}, req.Header, body, time.Now(), 0); err != nil {
		r.t.Errorf("signature: %v", err)
	}
	r.note(&r.got, got)
	sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	if r.answer != nil {
		r.answer(sw, got)
	}
	if sw.status == http.StatusOK {
		r.note(&r.taken, got)
	}
}

func (r *receiver) note(list *[]request, got request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*list = append(*list, got)
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait returns when enough returns true for the requests.
func (r *receiver) wait(what string, enough func(got, taken []request) bool) (got, taken []request) {
	r.t.Helper()
	limit := time.After(patience)
	for {
		r.mu.Lock()
		got, taken, changed := r.got, r.taken, r.changed
		r.mu.Unlock()
		if enough(got, taken) {
			return got, taken
		}
		select {
		case <-changed:
		case <-limit:
			r.t.Fatalf("%s: not within %v; %d requests, %d of them taken", what, patience, len(got), len(taken))
		}
	}
}

func (r *receiver) waitTaken(n int) []request {
	r.t.Helper()
	_, taken := r.wait(strconv.Itoa(n)+" taken", func(_, taken []request) bool { return len(taken) >= n })
	return taken
}

// change writes a change of a subject and its deliveries like an owner does: in one statement.
func change(t testing.TB, db *testDB, id uuid.UUID, revision int, targets ...string) {
	t.Helper()
	require.NoError(t, tryChange(t.Context(), db, id, revision, targets...))
}

func tryChange(ctx context.Context, db *testDB, id uuid.UUID, revision int, targets ...string) error {
	_, err := db.Exec(ctx, db.owner.Change, id, revision, targets)
	return err
}

func newTx(t testing.TB) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	require.NoError(t, err)
	return id
}

// only returns the delivery of a transaction's revision.
func only(t testing.TB, db *testDB, tx uuid.UUID, revision int) deadletter.Letter {
	t.Helper()
	list, err := db.letters(t).List(t.Context(), deadletter.Filter{Transaction: tx})
	require.NoError(t, err)
	for _, d := range list {
		if d.Revision == revision {
			return d
		}
	}
	t.Fatalf("no delivery of revision %d", revision)
	return deadletter.Letter{}
}

// eventually waits until a condition on the database is true.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// journal is a log that tests can read.
type journal struct {
	mu   sync.Mutex
	text []byte
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = append(j.text, p...)
	return len(p), nil
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.text)
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (j *journal) std() *log.Logger { return log.New(j, "", 0) }
