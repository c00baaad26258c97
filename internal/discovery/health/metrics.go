package health

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts checks. A process registers it once and shares it between its checkers.
type Metrics struct {
	successes, failures prometheus.Counter
	duration, lateness  prometheus.Histogram
	voidLate, voidLocal prometheus.Counter
	stalls              prometheus.Counter
	inFlight, behind    prometheus.Gauge
}

// NewMetrics builds the metrics and registers them with reg unless it is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	voids := f.NewCounterVec(prometheus.CounterOpts{
		Name: "rollcall_check_inconclusive_total",
		Help: "Failed checks that say nothing about the service, by cause: late (this process was) or local (it lacked files, ports or buffers).",
	}, []string{"cause"})
	return &Metrics{
		successes: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_check_successes_total", Help: "Health checks that found the service healthy.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_check_failures_total", Help: "Health checks that found the service unhealthy.",
		}),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_check_duration_seconds", Help: "Time from the dial to the end of a health check.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .2, .3, .4, .5, .6, 1},
		}),
		lateness: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_check_start_delay_seconds", Help: "Time from when a health check was due to when it began.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}),
		voidLate:  voids.WithLabelValues("late"),
		voidLocal: voids.WithLabelValues("local"),
		stalls: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_check_stalls_total", Help: "Times that the checker's own timer fired more than 50 ms late.",
		}),
		inFlight: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_checks_in_flight", Help: "Health checks running now.",
		}),
		behind: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_check_schedule_lag_seconds", Help: "How late the health check is that is due for longest and has not begun.",
		}),
	}
}
