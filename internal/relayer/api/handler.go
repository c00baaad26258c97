package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// Config configures the API. Fields without a default are required.
type Config struct {
	// Service is the relayer. Without one the Handler responds that the relayer is starting, until Start.
	Service relayer.Service
	// Starting returns the reason that /health reports until Start, such as "starting: database". "starting" by default.
	Starting func() string
	Keys     []apikey.Key
	// Version is the program's version, for the API's description.
	Version string
	// Limit bounds callers' requests to nodes and signers: it accepts this many calls of a caller, or fails with a
	// [relayer.LimitError]. Default: no limit.
	Limit func(caller string, calls int) error
	// RequestTimeout bounds the duration of a request; 25 s by default, at most 30 s.
	RequestTimeout time.Duration
	// Metrics, if not nil, is served at /metrics without a key.
	Metrics http.Handler
	// Registerer registers the API's own metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	Logger     *slog.Logger // discards by default
}

// Handler serves the API's requests.
type Handler struct {
	service  relayer.Service // set once started is true
	started  atomic.Bool
	starting func() string // why it is not started yet
	keys     apikey.Set
	limit    func(caller string, calls int) error
	timeout  time.Duration
	log      *slog.Logger
	metrics  *metrics
	mux      *http.ServeMux
	openAPI  []byte

	lists, rpcs       semaphore
	slowReaderTimeout time.Duration // for a response that holds a slot
	ignoreTimeout     time.Duration // for the rest of a large request after its response
}

// NewHandler returns a Handler. It fails for keys that [apikey.Check] rejects.
func NewHandler(cfg Config) (*Handler, error) {
	keys, err := apikey.NewSet(cfg.Keys)
	if err != nil {
		return nil, err
	}
	if cfg.RequestTimeout > maxRequestTimeout {
		return nil, fmt.Errorf("a request timeout of %v is above %v", cfg.RequestTimeout, maxRequestTimeout)
	}
	h := &Handler{
		starting: cfg.Starting,
		keys:     keys,
		limit:    cfg.Limit,
		timeout:  cmp.Or(cfg.RequestTimeout, 25*time.Second),
		log:      cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("component", "api"),
		metrics:  newMetrics(cfg.Registerer),
		mux:      http.NewServeMux(),

		lists:             newSemaphore(maxLists, "too many lists of transactions at once"),
		rpcs:              newSemaphore(maxRPCs, "too many calls of nodes at once"),
		slowReaderTimeout: slowReaderTimeout,
		ignoreTimeout:     ignoreTimeout,
	}
	if h.starting == nil {
		h.starting = func() string { return "starting" }
	}
	if h.limit == nil {
		h.limit = func(string, int) error { return nil }
	}
	if cfg.Service != nil {
		h.Start(cfg.Service)
	}
	if h.openAPI, err = describe(cfg.Version); err != nil {
		return nil, err
	}
	allowed := map[string][]string{} // methods by path
	for i := range routes {
		r := &routes[i]
		h.mux.Handle(r.method+" "+r.path, h.serve(r))
		allowed[r.path] = append(allowed[r.path], r.method)
		if r.method == http.MethodGet {
			allowed[r.path] = append(allowed[r.path], http.MethodHead)
		}
	}
	for path, methods := range allowed {
		if path == pendingPath {
			continue // Other methods are those of a transaction called pending, and ServeMux routes them so too.
		}
		allow := []string{strings.Join(methods, ", ")}
		h.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Allow"] = allow
			callOf(w).fail(&httpError{http.StatusMethodNotAllowed, "no such method here: there are " + allow[0]})
		})
	}
	for _, u := range unsupported {
		h.mux.HandleFunc(u.pattern, func(w http.ResponseWriter, _ *http.Request) { callOf(w).fail(notImplemented(u.instead)) })
	}
	if cfg.Metrics != nil {
		h.mux.Handle("GET /metrics", cfg.Metrics)
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		callOf(w).fail(errNoRoute)
	})
	return h, nil
}

// callOf returns the exchange that the mux passes on.
func callOf(w http.ResponseWriter) *exchange {
	c, _ := w.(*exchange)
	return c
}

// publicPaths need no key; one that ends in a slash covers all paths below it. They are OpenZeppelin's, and this relayer's
// own.
var publicPaths = []string{"/api/v1/health", "/api/v1/ready", "/health", "/metrics", "/api-docs/", "/swagger-ui/"}

func isPublic(path string) bool {
	for _, p := range publicPaths {
		if path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

var (
	noRoute    = new(route)
	errNoRoute = &httpError{http.StatusNotFound, "no such route: /api-docs/openapi.json lists them"}
)

// ServeHTTP serves one request: it authenticates the caller, routes the request, and records it in log and metrics.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	// The path is used as written: a character that a proxy treats as part of a name must not become a slash here.
	if escaped := normalizePath(r.URL.EscapedPath()); escaped != r.URL.EscapedPath() {
		if path, err := url.PathUnescape(escaped); err == nil {
			r2 := *r
			r2.URL = &url.URL{Path: path, RawPath: escaped, RawQuery: r.URL.RawQuery}
			r = &r2
		}
	}
	// The trace goes with the request's context: into log lines about the request, and to the transaction that it posts. Two headers
	// count as none.
	if sent := r.Header["Traceparent"]; len(sent) == 1 {
		r = r.WithContext(tracing.Extract(r.Context(), sent[0]))
	}
	c := &exchange{w: w, r: r, route: noRoute}
	header := w.Header()
	header["X-Content-Type-Options"] = noSniff
	header["Cache-Control"] = noStore
	h.metrics.inFlight.Inc()
	defer func() {
		panicked := recover()
		if panicked != nil {
			h.panicked(c, panicked)
		}
		h.metrics.inFlight.Dec()
		h.done(r.Context(), c, time.Since(start))
		c.release()
		if panicked == http.ErrAbortHandler { //nolint:errorlint // net/http compares this very value
			panic(http.ErrAbortHandler)
		}
	}()
	c.requestID = httpserver.RequestID(r.Header)
	header["X-Request-Id"] = []string{c.requestID}
	if !isPublic(r.URL.Path) {
		if c.caller, c.role = h.keys.Find(apikey.Bearer(r)); c.caller == "" {
			c.unauthorized()
			return
		}
		if scoped(r.URL.Path) && h.started.Load() {
			c.scopeErr = h.checkScope(c)
		}
	}
	if escaped := r.URL.EscapedPath(); path.Clean(escaped) != escaped {
		c.fail(errNoRoute) // ServeMux would redirect, in HTML
		return
	}
	h.mux.ServeHTTP(c, r)
}

// normalizePath normalizes a path as OpenZeppelin's does: successive slashes become one, and a trailing one is dropped.
func normalizePath(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// checkScope sets the response's header Idempotency-Scope, and compares it with the request's.
func (h *Handler) checkScope(c *exchange) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), h.timeout)
	defer cancel()
	scope, err := h.service.IdempotencyScope(ctx, c.caller)
	if err != nil {
		return err
	}
	if scope != "" {
		c.Header()[idempotencyScope] = []string{scope}
	}
	switch required := c.r.Header[idempotencyScope]; {
	case len(required) == 0:
		return nil
	case len(required) > 1:
		return relayer.Invalidf(idempotencyScope, "is there twice")
	case scope == "":
		return fmt.Errorf("%w: the idempotency scope is not known yet", relayer.ErrUnavailable)
	case required[0] != scope:
		return relayer.ErrOtherScope
	}
	return nil
}

// serve runs a route's handler under the time limit.
func (h *Handler) serve(r *route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		c := callOf(w)
		c.r, c.route = req, r
		if !r.public && c.caller == "" { // for any reason that the path looked public
			c.unauthorized()
			return
		}
		if !r.public && c.role > r.requiredRole() {
			c.fail(errRole)
			return
		}
		if !r.public && !h.started.Load() {
			c.Header().Set("Retry-After", "1")
			c.fail(errStarting)
			return
		}
		if c.scopeErr != nil {
			c.fail(c.scopeErr)
			return
		}
		ctx, cancel := context.WithTimeout(req.Context(), h.timeout)
		defer cancel()
		if err := r.handle(h, ctx, c); err != nil {
			c.fail(err)
		}
	}
}

// errStarting is the response to every request but health until Start.
var errStarting = &httpError{http.StatusServiceUnavailable, "the relayer is starting, see /health; nothing was stored: try again"}

// Start sets the handler's relayer. It is called once, if Config had none.
func (h *Handler) Start(s relayer.Service) {
	h.service = s
	h.started.Store(true)
}

// health returns the relayer's health, or why there is none yet.
func (h *Handler) health() relayer.Health {
	if h.started.Load() {
		return h.service.Health()
	}
	return relayer.Health{Reason: h.starting()}
}

var errRole = &httpError{http.StatusForbidden, "this API key may not do that"}

func (e *exchange) unauthorized() {
	e.Header()["Www-Authenticate"] = []string{"Bearer"}
	e.Header()["Connection"] = []string{"close"} // an idle one would keep a slot that callers need
	e.refuse(http.StatusUnauthorized, "send a valid key as a bearer token in the header Authorization", "", openzeppelin.Unauthorized())
}

func (h *Handler) panicked(c *exchange, value any) {
	if value == http.ErrAbortHandler { //nolint:errorlint // net/http compares this very value
		return
	}
	h.log.ErrorContext(c.r.Context(), "a request panicked", "route", c.route.name(), "request_id", c.requestID, "panic", fmt.Sprint(value),
		"stack", string(debug.Stack()))
	if c.code == 0 {
		c.fail(errors.New("panic"))
		c.err = nil // it was logged above
	}
}

// done counts and logs a request. Bodies and keys are not logged.
func (h *Handler) done(ctx context.Context, c *exchange, took time.Duration) {
	h.metrics.observe(c, took)
	level, message := slog.LevelDebug, "request answered"
	switch {
	case c.err != nil && c.code == http.StatusInternalServerError:
		level, message = slog.LevelError, "request failed"
	case c.err != nil && c.r.Context().Err() == nil:
		level, message = slog.LevelWarn, "request not served"
	}
	if !h.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", knownMethod(c.r.Method)), slog.String("route", c.route.name()), slog.Int("code", c.code),
		slog.String("caller", c.caller), slog.String("request_id", c.requestID), slog.Duration("took", took),
	}
	if c.err != nil {
		attrs = append(attrs, slog.Any("err", c.err))
	}
	h.log.LogAttrs(ctx, level, message, attrs...) //nolint:sloglint // one of three constants
}
