package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
)

// These are the bounds of a client.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 15 * time.Second
	writeTimeout   = maxRequestTimeout + 5*time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 2048
	stopTimeout    = 10 * time.Second

	maxRequestTimeout = 30 * time.Second

	// maxDiscarded, in bytes, is the size up to which net/http itself reads the rest of a body before it responds.
	maxDiscarded = 256 << 10
	// maxIgnored, in bytes, and ignoreTimeout bound how much of a larger body is read after the response.
	maxIgnored    = 16 << 20
	ignoreTimeout = 3 * time.Second // also delays a stop
)

// Open starts listening at a host:port; port 0 selects a free one.
func Open(ctx context.Context, listen string, h *Handler) (*httpserver.Server, error) {
	return httpserver.Open(ctx, httpserver.Config{
		Listen: listen, Connections: maxConnections, Overloaded: http.HandlerFunc(h.overloaded), Stop: stopTimeout, Logger: h.log,
		HTTP: &http.Server{
			Handler:           drainBody(h, h.ignoreTimeout),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
		},
	})
}

// drainBody reads the rest of a request's body after the response, up to [maxIgnored] and for at most patience. Many
// clients read only after they have sent everything. A connection that is closed with unread data is reset, and the client
// loses the response.
func drainBody(next http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A client that expects a 100 sends nothing after another response, or sends its next request.
		if r.ContentLength >= 0 && r.ContentLength <= maxDiscarded || r.Header.Get("Expect") != "" {
			next.ServeHTTP(w, r)
			return
		}
		body, control := r.Body, http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil { // to read on after the answer
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
		if control.Flush() == nil && control.SetReadDeadline(time.Now().Add(patience)) == nil {
			_, _ = io.CopyN(io.Discard, body, maxIgnored) // an error is ignored, because the client has gone
		}
	})
}

// overloaded responds while there are more requests than the server accepts. It serves public paths, such as health, and
// rejects all others.
func (h *Handler) overloaded(w http.ResponseWriter, r *http.Request) {
	if isPublic(r.URL.Path) {
		h.ServeHTTP(w, r)
		return
	}
	c := &exchange{w: w, r: r, route: noRoute, requestID: httpserver.RequestID(r.Header)}
	c.Header().Set("X-Request-Id", c.requestID)
	c.Header().Set("Retry-After", "1")
	c.fail(&httpError{http.StatusServiceUnavailable, "too many requests at once; nothing was stored: try again"})
	c.release()
}
