package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Config configures a Server. Fields without a default are required.
type Config struct {
	// Listen is the address to serve at, host:port; port 0 takes a free one.
	Listen string
	// HTTP has the handler and the timeouts. The server owns it, and sets its ConnState and ConnContext.
	HTTP *http.Server
	// Connections is the maximum number of concurrent connections.
	Connections int
	// Overloaded replaces the handler while every connection has a request. Default: the handler.
	Overloaded http.Handler
	// Stop is how long running requests may continue after Run's context ends.
	Stop   time.Duration
	Logger *slog.Logger
}

// Server serves HTTP at one address. It listens from Open on, and serves during Run.
type Server struct {
	cfg      Config
	listener *listener
}

// Open starts listening.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP at %s: %w", cfg.Listen, err)
	}
	s := &Server{cfg: cfg, listener: newListener(socket, cfg.Connections)}
	if cfg.Overloaded == nil {
		s.cfg.Overloaded = cfg.HTTP.Handler
	}
	next := cfg.HTTP.Handler
	cfg.HTTP.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(overLimit{}) == nil {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		s.cfg.Overloaded.ServeHTTP(w, r)
	})
	cfg.HTTP.ConnState = s.listener.follow
	cfg.HTTP.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if c, ok := c.(*conn); ok && c.extra {
			return context.WithValue(ctx, overLimit{}, true)
		}
		return ctx
	}
	return s, nil
}

// overLimit marks the context of requests on connections beyond the limit.
type overLimit struct{}

// Addr returns the address that the server listens at.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, finishes running requests, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.cfg.HTTP.Serve(s.listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve HTTP at %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Stop)
	defer cancel()
	if err := s.cfg.HTTP.Shutdown(stop); err != nil {
		s.cfg.Logger.Warn("requests cut off at shutdown", "err", err)
		_ = s.cfg.HTTP.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP at %s: %w", s.Addr(), err)
	}
	return nil
}

// Close stops listening and closes all connections.
func (s *Server) Close() error {
	err := errors.Join(s.cfg.HTTP.Close(), s.listener.Close())
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
