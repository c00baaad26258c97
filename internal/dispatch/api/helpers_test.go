package api

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/process"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...) }

var (
	shopKey   = strings.Repeat("s", 32)
	otherKey  = strings.Repeat("o", 32)
	readerKey = strings.Repeat("r", 32)
	oldSecret = strings.Repeat("w", 32)
	newSecret = strings.Repeat("n", 32)
)

// server is an API with a store in a database of its own.
type server struct {
	t     *testing.T
	http  *httptest.Server
	store *store.Store
	db    *pgxpool.Pool
	log   *bytes.Buffer // read it when the requests have ended
}

func start(t *testing.T, edit func(*Config), forwards Forwards) *server {
	t.Helper()
	t.Parallel()
	s := &server{t: t, log: new(bytes.Buffer)}
	s.db = testpostgres.New(t, testpostgres.Migrated(store.Migrations()), testpostgres.Migrated(queue.Migrations())).Pool(t)
	s.store = store.New(s.db, store.Config{Enqueue: queue.EnqueueSQL, Targets: []string{"shop"}})
	cfg := Config{
		Keys:    []apikey.Key{{Name: "shop", Key: shopKey}, {Name: "other", Key: otherKey}, {Name: "watcher", Key: readerKey, Role: apikey.Reader}},
		Secrets: []signature.Key{secret(t, newSecret), secret(t, oldSecret)}, Version: "test",
		Health: func() process.Health { return process.Health{Ready: true, Status: "healthy"} }, Logger: slog.New(tracing.LogIDs(slog.NewTextHandler(s.log, nil))),
	}
	if edit != nil {
		edit(&cfg)
	}
	h, err := NewHandler(cfg)
	require.NoError(t, err)
	h.Start(s.store, forwards)
	s.http = httptest.NewServer(h)
	t.Cleanup(func() {
		s.http.Close()
		h.Wait()
	})
	return s
}

func secret(t *testing.T, text string) signature.Key {
	t.Helper()
	k, err := signature.NewKey(text)
	require.NoError(t, err)
	return k
}

// do sends a request with a client's key and further headers, and returns the answer.
func (s *server) do(method, path, key, body string, headers ...string) (status int, answer []byte, h http.Header) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.http.URL+path, strings.NewReader(body))
	require.NoError(s.t, err)
	if key != "" {
		r.Header.Set("X-Api-Key", key)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.http.Client().Do(r)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return resp.StatusCode, answer, resp.Header
}

// post sends a direct request, and returns the accepted transaction's id.
func (s *server) post(body string, headers ...string) string {
	s.t.Helper()
	status, answer, _ := s.do(http.MethodPost, "/api/v1/relay/direct", shopKey, body, headers...)
	require.Equal(s.t, http.StatusAccepted, status, "%s", answer)
	var a dispatch.Summary
	require.NoError(s.t, json.Unmarshal(answer, &a))
	require.Equal(s.t, dispatch.Queued, a.Status)
	return a.TransactionID
}

// refuses sends a request, which must fail with a status, a code and a field.
func (s *server) refuses(status int, code, field, method, path, key, body string, headers ...string) (message string) {
	s.t.Helper()
	got, answer, _ := s.do(method, path, key, body, headers...)
	var f failure
	require.NoError(s.t, json.Unmarshal(answer, &f), "%s", answer)
	require.Equal(s.t, []any{status, code, field}, []any{got, f.Error.Code, f.Error.Field}, "%s: %s", body, answer)
	require.NotEmpty(s.t, f.Error.Message)
	return f.Error.Message
}

// atRelayer makes a transaction submitted at a relayer under an id.
func (s *server) atRelayer(publicID, relayerTx string) uuid.UUID {
	s.t.Helper()
	tx, err := s.store.Get(s.t.Context(), "shop", publicID)
	require.NoError(s.t, err)
	route := dispatch.Route{Relayer: "oz-relayer-0", URL: "http://127.0.0.1:3000", RelayerID: "pool", Scope: "scope"}
	begun, err := s.store.Begin(s.t.Context(), []store.Start{{ID: tx.ID, Holder: uuid.New(), Route: route, Lease: time.Minute}})
	require.NoError(s.t, err)
	require.Equal(s.t, store.Fresh, begun[0].State)
	route.RelayerTx = relayerTx
	require.NoError(s.t, s.store.Accepted(s.t.Context(), []store.Acceptance{{ID: tx.ID, Attempt: begun[0].Transaction.Attempt, Route: route}}))
	return tx.ID
}

// count returns the result of a query.
func (s *server) count(query string, args ...any) (n int) {
	s.t.Helper()
	require.NoError(s.t, s.db.QueryRow(s.t.Context(), query, args...).Scan(&n))
	return n
}
