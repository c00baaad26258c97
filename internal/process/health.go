package process

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
)

// Health is the health of a process. Anyone may read it, so it has classes of problems instead of their causes.
type Health struct {
	Ready      bool              `json:"ready"`
	Status     string            `json:"status"` // healthy, degraded or unhealthy
	Reason     string            `json:"reason,omitempty"`
	Components map[string]string `json:"components"` // the class of the problem of each; "" if it has none
}

// Starting returns the text about the start: the stage, and the problem that it waits for, such as "starting: database: unreachable".
// It is safe for concurrent use.
func (p *Process) Starting() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starting()
}

func (p *Process) starting() string {
	parts := []string{"starting", p.stage, p.problem}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// ReportHealth has [Process.Health] return the result of report from now on.
func (p *Process) ReportHealth(report func() Health) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report = report
}

// Health returns the health of the process: that it starts, until ReportHealth. It is safe for concurrent use.
func (p *Process) Health() Health {
	p.mu.Lock()
	report := p.report
	if report == nil {
		defer p.mu.Unlock()
		h := Health{Status: "unhealthy", Reason: p.starting(), Components: map[string]string{}}
		if p.stage != "" {
			h.Components[p.stage] = cmp.Or(p.problem, "starting")
		}
		return h
	}
	p.mu.Unlock()
	return report()
}

// ServeHealth serves [Process.Health] at /health and /ready, with 503 unless it is ready, and the metrics at /metrics, at a host:port. It
// takes the place of Serve for a role that serves nothing else but some pages, by their patterns.
func (p *Process) ServeHealth(listen string, pages map[string]http.Handler) error {
	mux := http.NewServeMux()
	for pattern, page := range pages {
		mux.Handle(pattern, page)
	}
	mux.HandleFunc("GET /health", p.writeHealth)
	mux.HandleFunc("GET /ready", p.writeHealth)
	mux.Handle("GET /metrics", p.Metrics())
	web, err := httpserver.Open(p.ctx, httpserver.Config{
		Listen: listen, Connections: 64, Stop: 2 * time.Second, Logger: p.Log,
		HTTP: &http.Server{
			Handler:           mux,
			ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: 90 * time.Second,
			MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug),
		},
	})
	if err != nil {
		return err
	}
	p.Serve(web)
	return nil
}

func (p *Process) writeHealth(w http.ResponseWriter, _ *http.Request) {
	now := p.Health()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !now.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(now) // the client has gone
}
