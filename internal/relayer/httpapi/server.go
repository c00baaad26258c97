package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// Bounds of what a client may take. Connections past the limit wait, so that they cannot use up the file descriptors
// that the database needs.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 15 * time.Second
	writeTimeout   = maxRequestTimeout + 5*time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 2048
	stopTimeout    = 10 * time.Second

	maxRequestTimeout = 30 * time.Second
)

// Server serves the API on one address. It has a socket from Open on, and serves during Run.
type Server struct {
	log      *slog.Logger
	listener net.Listener
	http     *http.Server
}

// Open starts listening at a host:port; port 0 takes a free one.
func Open(ctx context.Context, listen string, h *Handler) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP at %s: %w", listen, err)
	}
	return &Server{log: h.log, listener: listener, http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}}, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, finishes the requests it has begun, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(netutil.LimitListener(s.listener, maxConnections)) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve HTTP at %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(stop); err != nil {
		s.log.Warn("requests cut off at shutdown", "err", err)
		_ = s.http.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP at %s: %w", s.Addr(), err)
	}
	return nil
}

// Close stops listening and drops what is open.
func (s *Server) Close() error {
	err := errors.Join(s.http.Close(), s.listener.Close())
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
