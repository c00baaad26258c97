package consumer

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are a consumer's metrics.
type metrics struct {
	submissions, waits *prometheus.CounterVec
	resumed, parked    prometheus.Counter
	duration, delay    prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &metrics{
		submissions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_submissions_total", Help: "Requests to relayers, by outcome: accepted, rejected, not done or unknown.",
		}, []string{"outcome"}),
		waits: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_waits_total", Help: "Messages that were put back, by cause.",
		}, []string{"cause"}),
		resumed: counter("rollcall_relay_resumed_total", "Submissions that went on after an unknown outcome or the death of a consumer."),
		parked:  counter("rollcall_relay_parked_total", "Transactions that became unknown: an operator has to resolve them."),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_submission_duration_seconds", Help: "Duration of requests to relayers.",
			Buckets: []float64{.005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		delay: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_submission_delay_seconds", Help: "Time from the acceptance of a transaction to that by a relayer.",
			Buckets: []float64{.005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
	}
}
