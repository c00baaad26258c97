package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/rollcall-dev/rollcall/internal/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer/ozapi"
)

// Bounds of what a client may take.
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

// Open starts listening at a host:port; port 0 takes a free one.
func Open(ctx context.Context, listen string, h *Handler) (*httpserver.Server, error) {
	return httpserver.Open(ctx, httpserver.Config{
		Listen: listen, Connections: maxConnections, Crowded: http.HandlerFunc(h.crowded), Stop: stopTimeout, Logger: h.log,
		HTTP: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
		},
	})
}

// crowded answers while there are more requests than the server takes: whoever asks for its health hears of it, all others
// are sent away.
func (h *Handler) crowded(w http.ResponseWriter, r *http.Request) {
	if isPublic(r.URL.Path) {
		h.ServeHTTP(w, r)
		return
	}
	c := &call{w: w, r: r, route: noRoute}
	c.Header().Set("Retry-After", "1")
	c.answer(http.StatusServiceUnavailable, ozapi.Failed("too many requests at once; nothing was stored: try again"))
	c.release()
}
