package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/statuscache"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/batch"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/platform/ratelimit"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/process"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// Store is the part of the store that the API calls.
type Store interface {
	Repeated(ctx context.Context, tx *dispatch.Transaction) (*dispatch.Transaction, error)
	Accept(ctx context.Context, txs []*dispatch.Transaction) ([]store.Accepted, error)
	Get(ctx context.Context, client, publicID string) (*dispatch.Transaction, error)
	List(ctx context.Context, f store.Filter) ([]*dispatch.Transaction, error)
	Apply(ctx context.Context, reports []dispatch.Update) ([]store.Applied, error)
	Chain(ctx context.Context) (uint64, error)
	Senders(ctx context.Context, relayerTx string) ([]store.Sender, error)
}

// Config configures the API. Fields without a default are required.
type Config struct {
	Keys []apikey.Key
	// Secrets verify the webhooks of relayers. Any of them may have signed, so that one can be replaced without a pause.
	Secrets []signature.Key
	// MaxWebhook is the maximum size of a webhook's body, in bytes, up to 1 MiB. Default: [DefaultMaxWebhook].
	MaxWebhook int
	// Global and Client limit requests for a transaction, of all clients and of each. Default: no limit.
	Global, Client ratelimit.Rate
	// Cache holds answers about transactions. Default: none.
	Cache *statuscache.Cache
	// Tracer makes a span of each request. Default: none.
	Tracer trace.Tracer
	// Version is the program's version, for the API's description.
	Version string
	// Stored is called after a transaction was stored, so that the queue need not wait for its poll. Default: nothing.
	Stored func()
	// Health returns the health that /health and /ready report, at once.
	Health func() process.Health
	// Metrics is served at /metrics without a key.
	Metrics    http.Handler
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// requestTimeout limits a request.
const requestTimeout = 20 * time.Second

// Handler serves the API's requests.
type Handler struct {
	cfg     Config
	keys    apikey.Set
	log     *slog.Logger
	metrics *metrics
	mux     *http.ServeMux
	refused refusedWebhooks

	started atomic.Pointer[parts] // nil until Start

	unverified        *unverified
	lists             chan struct{} // holds one element for each list of transactions that is answered
	slowReaderTimeout time.Duration // for a list

	mu      sync.Mutex // guards the buckets
	global  *rate.Limiter
	clients map[string]*rate.Limiter // one for each name of a key
}

// parts are what a Handler needs to serve clients.
type parts struct {
	store    Store
	accepts  *batch.Group[*dispatch.Transaction, store.Accepted]
	reports  *batch.Group[dispatch.Update, store.Applied]
	forwards Forwards // nil: no gasless transactions
}

// NewHandler returns a Handler, which answers that it is starting until Start. It fails for keys that [apikey.Check] rejects.
func NewHandler(cfg Config) (*Handler, error) {
	keys, err := apikey.NewSet(cfg.Keys)
	if err != nil {
		return nil, err
	}
	if len(cfg.Secrets) == 0 {
		return nil, errors.New("no webhook secret: no relayer could report")
	}
	if cfg.Tracer == nil {
		cfg.Tracer = tracing.Off()
	}
	if cfg.Stored == nil {
		cfg.Stored = func() {}
	}
	bodies := newUnverified(int64(min(cmp.Or(cfg.MaxWebhook, DefaultMaxWebhook), maxBody)))
	h := &Handler{
		cfg: cfg, keys: keys, log: cfg.Logger.With("component", "api"), metrics: newMetrics(cfg.Registerer, bodies), mux: http.NewServeMux(),
		unverified: bodies, refused: newRefusedWebhooks(),
		global: cfg.Global.Bucket(), clients: map[string]*rate.Limiter{},
		lists: make(chan struct{}, maxLists), slowReaderTimeout: slowReaderTimeout,
	}
	for _, r := range routes {
		pattern := r.method + " " + r.path
		h.mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) { h.serve(w, req, r) })
	}
	if cfg.Metrics != nil {
		h.mux.Handle("GET /metrics", cfg.Metrics)
	}
	h.mux.HandleFunc("GET /api-docs/openapi.json", h.describe)
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, r, errNoRoute) })
	return h, nil
}

// Start sets the store and, unless nil, the forwards. It is called once.
func (h *Handler) Start(s Store, f Forwards) {
	h.started.Store(&parts{
		store: s, forwards: f,
		accepts: batch.New(batch.Config{}, s.Accept),
		reports: batch.New(batch.Config{}, s.Apply),
	})
}

// Wait waits for the batches of requests that have ended. Call it when the server has stopped.
func (h *Handler) Wait() {
	if p := h.started.Load(); p != nil {
		p.accepts.Wait()
		p.reports.Wait()
	}
}

// call is one request of a client.
type call struct {
	*parts
	w      http.ResponseWriter
	r      *http.Request
	client string
}

// route is one of the API's routes.
type route struct {
	method, path string
	handle       func(*Handler, context.Context, *call) error
	public       bool // needs no key
	writes       bool // needs a key that may submit
}

const (
	base      = "/api/v1"
	requestID = "X-Request-Id"
)

// routes are the routes, without [base].
var routes = []route{
	{http.MethodPost, "/relay/direct", (*Handler).direct, false, true},
	{http.MethodPost, "/relay/gasless", (*Handler).gasless, false, true},
	{http.MethodGet, "/relay/gasless/nonce/{address}", (*Handler).nonce, false, false},
	{http.MethodGet, "/relay/status/{id}", (*Handler).status, false, false},
	{http.MethodGet, "/relay/transactions", (*Handler).transactions, false, false},
	{http.MethodPost, "/webhooks/oz-relayer", (*Handler).webhook, true, false},
	{http.MethodGet, "/health", (*Handler).health, true, false},
	{http.MethodGet, "/ready", (*Handler).health, true, false},
}

// ServeHTTP serves one request. A path may begin with [base].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rest, ok := strings.CutPrefix(r.URL.Path, base); ok && strings.HasPrefix(rest, "/") {
		r2, u := *r, *r.URL
		u.Path, u.RawPath = rest, strings.TrimPrefix(u.RawPath, base)
		r2.URL = &u
		r = &r2
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set(requestID, httpserver.RequestID(r.Header))
	h.mux.ServeHTTP(w, r)
}

// serve runs a route's handler under the time limit.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, to route) {
	start := time.Now()
	recorder := &recorder{ResponseWriter: w}
	ctx, span := h.cfg.Tracer.Start(tracing.Extract(r.Context(), traceparent(r.Header)), to.method+" "+to.path, trace.WithSpanKind(trace.SpanKindServer))
	c := &call{parts: h.started.Load(), w: recorder, r: r.WithContext(ctx)}
	defer func() {
		if panicked := recover(); panicked != nil {
			h.log.ErrorContext(ctx, "request panicked", "route", to.path, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
			if recorder.status == 0 {
				fail(recorder, r, errors.New("panic"))
			}
		}
		h.metrics.observe(to.path, recorder.status, time.Since(start))
		span.SetAttributes(attribute.Int("http.response.status_code", recorder.status), attribute.String("rollcall.client", c.client))
		span.End()
	}()
	if err := h.run(c, to); err != nil {
		if status, internal := fail(recorder, r, err); internal && r.Context().Err() == nil {
			h.log.WarnContext(ctx, "request not served", "route", to.path, "code", status, "client", c.client, "request_id", w.Header().Get(requestID), "err", err)
		}
	}
}

func (h *Handler) run(c *call, to route) error {
	if !to.public {
		var role apikey.Role
		if c.client, role = h.keys.Find(keyOf(c.r)); c.client == "" {
			return errUnauthorized
		}
		if to.writes && role == apikey.Reader {
			return errRole
		}
	}
	if c.parts == nil && to.path != "/health" && to.path != "/ready" {
		return errStarting
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	return to.handle(h, ctx, c)
}

// keyOf returns a request's key: that of the header x-api-key, or a bearer.
func keyOf(r *http.Request) string {
	if keys := r.Header["X-Api-Key"]; len(keys) > 0 {
		if len(keys) > 1 {
			return ""
		}
		return keys[0]
	}
	return apikey.Bearer(r)
}

// admit takes one request from the rates of a client.
func (h *Handler) admit(client string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	bucket, known := h.clients[client]
	if !known {
		bucket = h.cfg.Client.Bucket()
		h.clients[client] = bucket
	}
	if refusal := ratelimit.Take(time.Now(), 1, ratelimit.Limit{Name: "global rate limit", Bucket: h.global},
		ratelimit.Limit{Name: "rate limit of the client", Bucket: bucket}); refusal != nil {
		return &dispatch.LimitError{Limit: refusal.Limit, After: refusal.After}
	}
	return nil
}

// recorder records the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader records and writes the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the writer for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
