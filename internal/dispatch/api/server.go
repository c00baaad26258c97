package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
)

// Bounds of a client.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 15 * time.Second
	writeTimeout   = requestTimeout + 5*time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 2048
	stopTimeout    = 10 * time.Second
)

// Open starts listening at a host:port; port 0 selects a free one.
func Open(ctx context.Context, listen string, h *Handler) (*httpserver.Server, error) {
	return httpserver.Open(ctx, httpserver.Config{
		Listen: listen, Connections: maxConnections, Overloaded: http.HandlerFunc(h.overloaded), Stop: stopTimeout, Logger: h.log,
		HTTP: &http.Server{
			Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
			MaxHeaderBytes: maxHeaderBytes, ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
		},
	})
}

// overloaded answers while there are more requests than the server accepts: health and metrics, and a rejection of all others.
func (h *Handler) overloaded(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health", "/ready", base + "/health", base + "/ready", "/metrics":
		h.ServeHTTP(w, r)
	default:
		fail(w, r, &statusError{http.StatusServiceUnavailable, "unavailable", "too many requests at once; nothing was stored: try again"})
	}
}

// health answers whether the API can accept transactions: 200 or 503.
func (h *Handler) health(_ context.Context, c *call) error {
	now := h.cfg.Health()
	status := http.StatusOK
	if !now.Ready {
		status = http.StatusServiceUnavailable
	}
	answer(c.w, status, now)
	return nil
}
