package foreman

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// ServerConfig configures the server for local processes.
type ServerConfig struct {
	// Listen is host:port; 127.0.0.1:7401 by default. Any client that reaches it may advertise, so addresses other
	// than loopback need AllowRemote.
	Listen      string
	AllowRemote bool
	// Hosts are the accepted host names of requests, in addition to localhost and loopback addresses. Others are
	// refused, because a web page could have made its own name resolve to loopback.
	Hosts []string
	// Metrics is served at /metrics, if set.
	Metrics http.Handler
	// Starting returns what the start waits for, as "starting: state folder"; it is called until Start. "starting" by default.
	Starting func() string
	// Logger receives the server's log; by default there is none.
	Logger *slog.Logger
}

// Parts are what the server offers to local processes.
type Parts struct {
	Foreman *Foreman
	// Gateway, if set, adds the directory's results for the services.
	Gateway func() gateway.Status
	// Ready returns why the process is not ready; nil if it is. By default the process is always ready.
	Ready func() error
}

// Server lets local processes advertise over HTTP:
//
//	POST   /v1/services        one service, a list or {services: [...]}, JSON or YAML: 202
//	DELETE /v1/services/{id}   and /v1/services?id=…&id=…: 200, also if they were not there
//	GET    /v1/services        and /v1/services/{id}: their status
//	GET    /healthz /readyz /metrics
//
// A POST adds or changes services, all or nothing, and stores them before it is answered. Errors are {"error":
// {"what", "where", "how"}}. Until Start every path but /metrics answers 503.
type Server struct {
	cfg    ServerConfig
	log    *slog.Logger
	http   *http.Server
	server *httpserver.Server
	// decoding has a value while a body is decoded. One at a time bounds the memory, which is many times the body's.
	decoding chan struct{}
	parts    atomic.Pointer[Parts] // nil until Start
}

const (
	// maxConnections is the maximum number of concurrent connections. At the limit, a new one replaces an idle one.
	maxConnections = 256
	// maxYAMLBody is the maximum size of a body in YAML, in bytes. Its tree of nodes takes about a hundred times the
	// memory; JSON has none.
	maxYAMLBody = 1 << 20
	stopTimeout = 2 * time.Second
)

// Open listens. The server answers requests once Run runs.
func Open(cfg ServerConfig) (*Server, error) {
	cfg.Listen = cmp.Or(cfg.Listen, "127.0.0.1:7401")
	if cfg.Starting == nil {
		cfg.Starting = func() string { return "starting" }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("advertisements: listen address %q is not host:port", cfg.Listen)
	}
	if !cfg.AllowRemote && !isLoopback(host) {
		return nil, fmt.Errorf("advertisements: %q is not a loopback address, and every process that reaches it may register services; "+
			"listen on 127.0.0.1, or allow remote advertisements", cfg.Listen)
	}
	s := &Server{cfg: cfg, log: cfg.Logger.With("component", "foreman"), decoding: make(chan struct{}, 1)}
	s.http = &http.Server{
		Handler: s.routes(),
		// The timeouts limit how long a process that sends or reads slowly holds a connection.
		ReadHeaderTimeout: 2 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.server, err = httpserver.Open(context.Background(), httpserver.Config{
		Listen: cfg.Listen, HTTP: s.http, Connections: maxConnections, Stop: stopTimeout, Logger: s.log,
	})
	if err != nil {
		return nil, fmt.Errorf("advertisements: %w", err)
	}
	return s, nil
}

// Start sets what the server offers. It is called once.
func (s *Server) Start(p Parts) { s.parts.Store(&p) }

// afterStart refuses requests until Start.
func (s *Server) afterStart(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.parts.Load() != nil {
			next.ServeHTTP(w, r)
			return
		}
		writeProblem(w, http.StatusServiceUnavailable, &Problem{
			What: "the gateway is " + s.cfg.Starting(), Where: "gateway", How: "nothing was changed; try again",
		})
	})
}

// Addr returns the address of the listener.
func (s *Server) Addr() net.Addr { return s.server.Addr() }

// Close stops listening. It is for a Server without Run.
func (s *Server) Close() error { return s.server.Close() }

// Run answers requests until ctx ends. Running requests then get a moment to finish.
func (s *Server) Run(ctx context.Context) error {
	if err := s.server.Run(ctx); err != nil {
		return fmt.Errorf("advertisements: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("POST /v1/services", s.advertise)
	api.HandleFunc("DELETE /v1/services/{id}", s.withdraw)
	api.HandleFunc("DELETE /v1/services", s.withdraw)
	api.HandleFunc("GET /v1/services", s.list)
	api.HandleFunc("GET /v1/services/{id}", s.show)
	api.HandleFunc("/v1/services", methodNotAllowed("GET, POST, DELETE"))
	api.HandleFunc("/v1/services/{id}", methodNotAllowed("GET, DELETE"))
	api.HandleFunc("/", notFound)

	mux := http.NewServeMux()
	mux.Handle("GET /healthz", s.afterStart(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, ok{"ok"}) })))
	mux.Handle("GET /readyz", s.afterStart(http.HandlerFunc(s.readyz)))
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	mux.Handle("/", s.afterStart(s.counted(s.guarded(api))))
	return mux
}

type ok struct {
	Status string `json:"status"`
}

// guarded refuses requests that a foreign web page may have sent.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if !isLoopback(host) && !slices.ContainsFunc(s.cfg.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			writeProblem(w, http.StatusForbidden, &Problem{What: fmt.Sprintf("unknown host %.100q", r.Host), Where: "header Host", How: "call this server localhost, or add the name to its hosts"})
			return
		}
		if err := http.NewCrossOriginProtection().Check(r); err != nil {
			writeProblem(w, http.StatusForbidden, &Problem{What: err.Error(), Where: "header Origin", How: "web pages may not advertise"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

func (s *Server) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &codeWriter{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(c, r)
		method := "other"
		if slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodDelete}, r.Method) {
			method = r.Method
		}
		s.parts.Load().Foreman.cfg.Metrics.requests.WithLabelValues(method, strconv.Itoa(c.code)).Inc()
	})
}

type codeWriter struct {
	http.ResponseWriter
	code int
}

func (w *codeWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

func (s *Server) advertise(w http.ResponseWriter, r *http.Request) {
	format, err := contentType(r.Header.Get("Content-Type"))
	if err != nil {
		writeProblem(w, http.StatusUnsupportedMediaType, err)
		return
	}
	limit, how := maxDocument, "split it: at most %d bytes are read"
	if format == YAML {
		limit, how = maxYAMLBody, "split it, or send JSON: at most %d bytes of YAML are read"
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)+1))
	if err != nil {
		writeProblem(w, http.StatusBadRequest, &Problem{What: "body cannot be read: " + oneLine(err.Error()), Where: "body", How: "send it whole, within 10 s"})
		return
	}
	if len(data) > limit {
		// Part of the body is drained first, because the client would otherwise see a reset instead of the 413.
		_, _ = io.CopyN(io.Discard, r.Body, 8*maxDocument)
		writeProblem(w, http.StatusRequestEntityTooLarge, &Problem{What: "body too large", Where: "body", How: fmt.Sprintf(how, limit)})
		return
	}
	services, err := s.decode(r.Context(), data, format)
	if err != nil {
		writeProblem(w, http.StatusBadRequest, err)
		return
	}
	if len(services) == 0 {
		writeProblem(w, http.StatusBadRequest, &Problem{What: "no service in the document", Where: "body", How: "a POST adds; to remove, use DELETE"})
		return
	}
	if err := s.parts.Load().Foreman.Advertise(services); err != nil {
		writeProblem(w, http.StatusConflict, err)
		return
	}
	s.log.Debug("services advertised", "services", len(services), "from", r.RemoteAddr)
	answer := struct {
		Services []serviceView `json:"services"`
	}{}
	refused := s.refusals()
	for _, service := range services {
		if status, ok := s.parts.Load().Foreman.Service(service.GetId()); ok { // not withdrawn in the meantime
			answer.Services = append(answer.Services, serviceView{status, refused[service.GetId()]})
		}
	}
	reply(w, http.StatusAccepted, answer)
}

// decode decodes a body once no other one is being decoded.
func (s *Server) decode(ctx context.Context, data []byte, format Format) ([]*rollcallv1.Service, error) {
	select {
	case s.decoding <- struct{}{}:
	case <-ctx.Done():
		return nil, &Problem{What: "canceled while other bodies were decoded", Where: "body", How: "send it again"}
	}
	defer func() { <-s.decoding }()
	return ParseDefinitions(data, format)
}

func contentType(header string) (Format, error) {
	media, _, err := mime.ParseMediaType(header)
	switch {
	case err == nil && media == "application/json":
		return JSON, nil
	case err == nil && media == "application/yaml":
		return YAML, nil
	}
	return 0, &Problem{What: fmt.Sprintf("content type %.100q", header), Where: "header Content-Type", How: "send application/json or application/yaml"}
}

func (s *Server) withdraw(w http.ResponseWriter, r *http.Request) {
	ids := r.URL.Query()["id"]
	if id := r.PathValue("id"); id != "" {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		writeProblem(w, http.StatusBadRequest, &Problem{What: "no id", Where: "query", How: "name what to remove: /v1/services/{id} or /v1/services?id=…&id=…"})
		return
	}
	for _, id := range ids {
		if err := rollcallv1.CheckDNSLabel(id); err != nil {
			writeProblem(w, http.StatusBadRequest, &Problem{What: "id " + oneLine(err.Error()), Where: "query", How: "name ids as they were advertised"})
			return
		}
	}
	removed, err := s.parts.Load().Foreman.Withdraw(ids)
	if err != nil {
		writeProblem(w, http.StatusConflict, err)
		return
	}
	s.log.Debug("services withdrawn", "services", removed, "from", r.RemoteAddr)
	reply(w, http.StatusOK, struct {
		Removed int `json:"removed"`
	}{removed})
}

// serviceView is a service in a GET response.
type serviceView struct {
	ServiceStatus
	// Refused is why the directory refuses the service.
	Refused string `json:"refused,omitempty"`
}

// gatewayView is the status of the gateway.
type gatewayView struct {
	ID         string     `json:"id"`
	Leader     string     `json:"leader,omitempty"`
	Epoch      uint64     `json:"epoch"`
	Synced     bool       `json:"synced"`
	Registered int        `json:"registered"`
	LastWrite  *time.Time `json:"last_write,omitempty"`
	Error      string     `json:"error,omitempty"`
}

// refusals returns the ids that the directory refuses, with its reasons.
func (s *Server) refusals() map[string]string {
	refused := map[string]string{}
	if status := s.parts.Load().Gateway; status != nil {
		for _, r := range status().Refused {
			refused[r.ID] = r.Reason
		}
	}
	return refused
}

func (s *Server) list(w http.ResponseWriter, _ *http.Request) {
	status := s.parts.Load().Foreman.Status()
	answer := struct {
		Status
		Services []serviceView `json:"services"` // replaces Status.Services
		Gateway  *gatewayView  `json:"gateway,omitempty"`
	}{Status: status, Services: []serviceView{}}
	refused := s.refusals()
	for _, service := range status.Services {
		answer.Services = append(answer.Services, serviceView{service, refused[service.ID]})
	}
	if current := s.parts.Load().Gateway; current != nil {
		g := current()
		answer.Gateway = &gatewayView{
			ID: g.ID, Leader: g.Leader.Node, Epoch: g.Leader.Epoch, Synced: g.Synced, Registered: g.Registered,
			LastWrite: moment(g.LastWrite, !g.LastWrite.IsZero()), Error: text(g.Err),
		}
	}
	reply(w, http.StatusOK, answer)
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	status, ok := s.parts.Load().Foreman.Service(r.PathValue("id"))
	if !ok {
		writeProblem(w, http.StatusNotFound, &Problem{What: fmt.Sprintf("service %.100q is not defined here", r.PathValue("id")), Where: "path", How: "GET /v1/services lists those that are"})
		return
	}
	reply(w, http.StatusOK, serviceView{status, s.refusals()[status.ID]})
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if ready := s.parts.Load().Ready; ready != nil {
		if err := ready(); err != nil {
			writeProblem(w, http.StatusServiceUnavailable, &Problem{What: "not ready: " + text(err), How: "wait; see GET /v1/services"})
			return
		}
	}
	reply(w, http.StatusOK, ok{"ready"})
}

func notFound(w http.ResponseWriter, r *http.Request) {
	writeProblem(w, http.StatusNotFound, &Problem{What: fmt.Sprintf("no such page, %.100q", r.URL.Path), Where: "path", How: "use /v1/services, /healthz, /readyz or /metrics"})
}

func methodNotAllowed(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		writeProblem(w, http.StatusMethodNotAllowed, &Problem{What: fmt.Sprintf("method %.20q", r.Method), Where: r.URL.Path, How: "use " + allowed})
	}
}

// writeProblem writes a *Problem. Any other error is an internal error of the foreman.
func writeProblem(w http.ResponseWriter, code int, err error) {
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		code, p = http.StatusInternalServerError, &Problem{What: oneLine(err.Error()), Where: "gateway", How: "nothing was changed; see the gateway's log and state folder"}
	}
	reply(w, code, map[string]*Problem{"error": p})
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
