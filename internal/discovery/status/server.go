package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

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

// Cluster is the part of a node that the server reports on. All fields are required.
type Cluster struct {
	// Status returns the leader's status, or an error if there is no leader or the leader does not respond. Calls do not
	// overlap.
	Status func(context.Context) (*rollcallv1.GetStatusResponse, error)
	// Led reports whether there is a known leader.
	Led func() bool
	// Directory is the node's own replica, for reports without a leader.
	Directory interface{ State() *fsm.State }
	// Ready returns why the node should get no requests; nil if it should.
	Ready func() error
}

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
	// Metrics is served at /metrics, if set.
	Metrics http.Handler
	// Starting returns what the start waits for, as "starting: disk"; it is called until Start. "starting" by default.
	Starting func() string
	Logger   *slog.Logger // discards by default
}

// Server serves on one address. It has a socket from Open on, and serves during Run. Until Start it answers that the coordinator
// is starting.
type Server struct {
	*httpserver.Server
	cfg     Config
	log     *slog.Logger
	started atomic.Pointer[started] // nil until Start
}

// started is what the server needs to report on a node.
type started struct {
	Cluster
	source *source
}

// Open starts listening.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Starting == nil {
		cfg.Starting = func() string { return "starting" }
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
		return nil, err
	}
	return s, nil
}

// Start sets the node that the server reports on. It is called once, before Close.
func (s *Server) Start(c Cluster) {
	s.started.Store(&started{c, newSource(c.Status, c.Led, func(a *rollcallv1.GetStatusResponse, age time.Duration) page {
		return newReport(s.cfg, a, 0, age, nil).page()
	})})
}

// errStarting returns why there is no report on a node yet.
func (s *Server) errStarting() error { return errors.New("the coordinator is " + s.cfg.Starting()) }

func newServer(cfg Config) *Server {
	return &Server{cfg: cfg, log: cfg.Logger.With("component", "status")}
}

// Close stops listening and closes open connections.
func (s *Server) Close() error {
	if node := s.started.Load(); node != nil {
		node.source.close()
		node.source.running.Wait()
	}
	return s.Server.Close()
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, "rollcall coordinator "+s.cfg.Node+": /status /healthz /readyz /metrics")
	})
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("GET /healthz", s.probe(func(*started) error { return nil }))
	mux.HandleFunc("GET /readyz", s.probe(func(node *started) error { return node.Ready() }))
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	return mux
}

// probe answers 200, or 503 with the problem, or with the stage of the start.
func (s *Server) probe(problem func(*started) error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var err error
		if node := s.started.Load(); node != nil {
			err = problem(node)
		} else {
			err = s.errStarting()
		}
		if err != nil {
			text(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		text(w, http.StatusOK, "ok")
	}
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	p := s.current()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(p.body)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.code)
	w.Write(p.body)
}

// current returns the response to a request for the status.
func (s *Server) current() page {
	node := s.started.Load()
	if node == nil {
		r := newReport(s.cfg, new(rollcallv1.GetStatusResponse), 0, 0, s.errStarting())
		r.Notes = []string{s.errStarting().Error()} // nothing else is known
		return r.page()
	}
	p, err := node.source.latest()
	if err != nil {
		local := node.Directory.State()
		a := &rollcallv1.GetStatusResponse{Cluster: local.Cluster(), Epoch: local.Epoch()}
		return newReport(s.cfg, a, local.Count(rollcallv1.KindRelayer), 0, err).page()
	}
	return p
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
