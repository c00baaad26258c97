package foreman

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a foreman and its server.
type Metrics struct {
	services       *prometheus.GaugeVec
	files          *prometheus.GaugeVec
	passed, failed prometheus.Counter
	requests       *prometheus.CounterVec
}

// NewMetrics builds the metrics and registers them with reg unless it is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		services: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_foreman_services", Help: "Services defined on this host, by state: offered to the directory, or held until a local check passes.",
		}, []string{"state"}),
		files: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_foreman_files", Help: "Definition files, by state: good, or broken and used in their last good version.",
		}, []string{"state"}),
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_foreman_requests_total", Help: "HTTP requests to advertise, withdraw and list services, by method and status code.",
		}, []string{"method", "code"}),
	}
	checks := f.NewCounterVec(prometheus.CounterOpts{
		Name: "rollcall_foreman_checks_total", Help: "Local checks of services not offered yet, by result.",
	}, []string{"result"})
	m.passed, m.failed = checks.WithLabelValues("passed"), checks.WithLabelValues("failed")
	m.count(0, 0, 0, 0)
	return m
}

func (m *Metrics) count(offered, held, good, broken int) {
	m.services.WithLabelValues("offered").Set(float64(offered))
	m.services.WithLabelValues("held").Set(float64(held))
	m.files.WithLabelValues("good").Set(float64(good))
	m.files.WithLabelValues("broken").Set(float64(broken))
}
