package webhook

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// Metrics holds the metrics of deliveries, by target. A process registers them once.
type Metrics struct {
	attempts              *prometheus.CounterVec
	deadLettersTotal      *prometheus.CounterVec
	duration, delay       *prometheus.HistogramVec
	inFlight, down        *prometheus.GaugeVec
	due, deadLetters, age *prometheus.GaugeVec
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"target"})
	}
	return &Metrics{
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_webhook_attempts_total", Help: "Attempts to deliver a webhook, by outcome: delivered or failed.",
		}, []string{"target", "outcome"}),
		deadLettersTotal: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_webhook_dead_letters_total", Help: "Webhooks that this process gave up; an operator can replay them.",
		}, []string{"target"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rollcall_webhook_attempt_duration_seconds", Help: "Time of an attempt, from its begin to the answer.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"target"}),
		delay: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rollcall_webhook_delay_seconds", Help: "Time from a change to the answer of the target that accepted it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 28800, 86400},
		}, []string{"target"}),
		inFlight:    gauge("rollcall_webhook_in_flight", "Attempts running now."),
		down:        gauge("rollcall_webhook_target_down", "1 while a target fails whatever it is sent, 0 otherwise."),
		due:         gauge("rollcall_webhook_due", "Webhooks not delivered yet, of all processes; 1000 means that many or more."),
		deadLetters: gauge("rollcall_webhook_dead_letters", "Webhooks given up and not replayed, of all processes; 1000 means that many or more."),
		age:         gauge("rollcall_webhook_oldest_due_seconds", "Age of the oldest webhook not delivered yet."),
	}
}

// show sets the gauges. prefix is that of the lanes.
func (m *Metrics) show(counts []outbox.Count, prefix string) {
	m.due.Reset()
	m.deadLetters.Reset()
	m.age.Reset()
	for _, c := range counts {
		target := strings.TrimPrefix(c.Lane, prefix)
		m.due.WithLabelValues(target).Set(float64(min(c.Waiting+c.Delayed+c.Blocked+c.Working, outbox.CountLimit)))
		m.deadLetters.WithLabelValues(target).Set(float64(c.Dead))
		m.age.WithLabelValues(target).Set(c.Oldest.Seconds())
	}
}
