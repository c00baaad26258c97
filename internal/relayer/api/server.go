package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
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

	// net/http itself reads the rest of a body of up to so much before it answers.
	maxDiscarded = 256 << 10
	// maxIgnored, in bytes, and ignoreTimeout bound what is read of a larger one after the answer.
	maxIgnored    = 16 << 20
	ignoreTimeout = 3 * time.Second // of a stop's, too
)

// Open starts listening at a host:port; port 0 takes a free one.
func Open(ctx context.Context, listen string, h *Handler) (*httpserver.Server, error) {
	return httpserver.Open(ctx, httpserver.Config{
		Listen: listen, Connections: maxConnections, Crowded: http.HandlerFunc(h.overloaded), Stop: stopTimeout, Logger: h.log,
		HTTP: &http.Server{
			Handler:           drainBody(h, ignoreTimeout),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
		},
	})
}

// drainBody reads what a client still sends when it has its answer, up to [maxIgnored] and for as long as patience. Many
// clients read only once they have sent everything. A connection that is closed while something of theirs is unread is
// reset, and the answer is lost with it.
func drainBody(next http.Handler, patience time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Who expects a 100 sends nothing after another answer, or its next request.
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
			_, _ = io.CopyN(io.Discard, body, maxIgnored) // to a client that went away there is nothing to say
		}
	})
}

// overloaded answers while there are more requests than the server takes: whoever asks for its health hears of it, all others
// are sent away.
func (h *Handler) overloaded(w http.ResponseWriter, r *http.Request) {
	if isPublic(r.URL.Path) {
		h.ServeHTTP(w, r)
		return
	}
	c := &exchange{w: w, r: r, route: noRoute}
	c.Header().Set("Retry-After", "1")
	c.answer(http.StatusServiceUnavailable, openzeppelin.Failed("too many requests at once; nothing was stored: try again"))
	c.release()
}
