package health

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// Component is a dependency besides the database.
type Component struct {
	// Problem returns the current problem, at once; nil if there is none. The component logs it.
	Problem func() error
	// Class returns the part of a problem that strangers may read. Default: that the component is unavailable.
	Class func(error) string
}

// Store is the part of the store that a Monitor calls.
type Store interface {
	Depth(ctx context.Context) (store.Depth, error)
}

// Config configures a Monitor. Fields without a default are required.
type Config struct {
	Store Store
	// Components are the other dependencies. Default: none.
	Components map[string]Component
	// Interval is how often the store is read. Default 1 s.
	Interval   time.Duration
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// readTimeout bounds a reading of the store.
const readTimeout = 5 * time.Second

// Monitor watches dependencies. Its methods are safe for concurrent use.
type Monitor struct {
	cfg           Config
	count, oldest *prometheus.GaugeVec
	blocked       prometheus.Gauge

	mu       sync.Mutex
	database string // the class of its problem; "" if it has none
}

// New returns a Monitor, which reports that it is starting until Run has read the store.
func New(cfg Config) *Monitor {
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	f := promauto.With(cfg.Registerer)
	return &Monitor{
		cfg: cfg, database: "starting",
		count: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_transactions", Help: "Transactions that are not final, by status.",
		}, []string{"status"}),
		oldest: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_oldest_transaction_age_seconds", Help: "Age of the oldest transaction of each status that is not final.",
		}, []string{"status"}),
		blocked: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_relay_blocked_transactions", Help: "Queued transactions that wait until an operator resolves an equal call, whose outcome is unknown.",
		}),
	}
}

// Run watches until ctx ends, and returns nil then.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	for {
		m.read(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (m *Monitor) read(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	depth, err := m.cfg.Store.Depth(limited)
	if ctx.Err() != nil {
		return
	}
	now := ""
	if err != nil {
		now = cmp.Or(postgres.Class(err), "fails")
	} else {
		for _, s := range dispatch.Statuses {
			if !s.Final() {
				m.count.WithLabelValues(string(s)).Set(float64(depth.Counts[s]))
				m.oldest.WithLabelValues(string(s)).Set(depth.Oldest[s].Seconds())
			}
		}
		m.blocked.Set(float64(depth.Blocked))
	}
	m.mu.Lock()
	before := m.database
	m.database = now
	m.mu.Unlock()
	switch {
	case now != "" && now != before:
		m.cfg.Logger.Warn("database not readable", "component", "health", "err", err)
	case now == "" && before != "":
		m.cfg.Logger.Info("database readable", "component", "health")
	}
}

// Health returns the health as of now.
func (m *Monitor) Health() process.Health {
	m.mu.Lock()
	r := process.Health{Status: "healthy", Ready: m.database == "", Components: map[string]string{"database": m.database}}
	m.mu.Unlock()
	for name, c := range m.cfg.Components {
		r.Components[name] = ""
		if err := c.Problem(); err != nil {
			r.Components[name] = "unavailable"
			if c.Class != nil {
				r.Components[name] = c.Class(err)
			}
		}
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(r.Components)) {
		if p := r.Components[name]; p != "" {
			problems = append(problems, name+": "+p)
			r.Status = "degraded"
		}
	}
	if !r.Ready {
		r.Status = "unhealthy"
	}
	r.Reason = strings.Join(problems, "; ")
	return r
}
