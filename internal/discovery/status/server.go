package status

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The limits of a client. Slow headers, or an unexpected body, end the connection. The number of connections is
// limited, so that they cannot use up the file descriptors that Raft needs.
const (
	headerTimeout  = 2 * time.Second
	requestTimeout = 5 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 30 * time.Second
	maxHeaderBytes = 8 << 10
	maxConnections = 1024
	stopTimeout    = 2 * time.Second
)

// Config is the configuration of the server. Fields without a default are required.
type Config struct {
	// Listen is the listen address, host:port; port 0 selects a free port.
	Listen string
	// Node is the coordinator's id.
	Node    string
	Version string
	// Interval is this node's configured time between two health checks of a service; reported while there is no
	// leader.
	Interval time.Duration
	// Status returns the leader's status, or an error if there is no leader or the leader does not respond. Calls do not
	// overlap.
	Status func(context.Context) (*rollcallv1.GetStatusResponse, error)
	// Led reports whether there is a known leader.
	Led func() bool
	// Directory is the node's own replica, for reports without a leader.
	Directory interface{ State() *fsm.State }
	// Ready returns why the node should get no requests; nil if it should.
	Ready func() error
	// Gatherer provides /metrics; prometheus.DefaultGatherer by default.
	Gatherer prometheus.Gatherer
	Logger   *slog.Logger // discards by default
}

// Server serves on one address. It has a socket from Open on, and serves during Run.
type Server struct {
	*httpserver.Server
	cfg    Config
	log    *slog.Logger
	source *source
}

// Open starts listening.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.DefaultGatherer
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := newServer(cfg)
	var err error
	s.Server, err = httpserver.Open(ctx, httpserver.Config{
		Listen: cfg.Listen, Connections: maxConnections, Stop: stopTimeout, Logger: s.log,
		HTTP: &http.Server{
			Handler:           rejectBody(s.routes()),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       requestTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		},
	})
	if err != nil {
		s.source.close()
		return nil, err
	}
	return s, nil
}

func newServer(cfg Config) *Server {
	return &Server{
		cfg: cfg, log: cfg.Logger.With("component", "status"),
		source: newSource(cfg.Status, cfg.Led, func(a *rollcallv1.GetStatusResponse, age time.Duration) page {
			return newReport(cfg, a, 0, age, nil).page()
		}),
	}
}

// Close stops listening and closes open connections.
func (s *Server) Close() error {
	s.source.close()
	s.source.running.Wait()
	return s.Server.Close()
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, "rollcall coordinator "+s.cfg.Node+": /status /healthz /readyz /metrics")
	})
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.cfg.Ready(); err != nil {
			text(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		text(w, http.StatusOK, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.log.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
	}))
	return mux
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	p, err := s.source.latest()
	if err != nil {
		local := s.cfg.Directory.State()
		a := &rollcallv1.GetStatusResponse{Cluster: local.Cluster(), Epoch: local.Epoch()}
		p = newReport(s.cfg, a, local.Count(rollcallv1.KindRelayer), 0, err).page()
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(p.body)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.code)
	w.Write(p.body)
}

// rejectBody refuses requests with a body, without reading it, because no handler here uses one.
func rejectBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			text(w, http.StatusRequestEntityTooLarge, "send no body")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func text(w http.ResponseWriter, code int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, line)
}
