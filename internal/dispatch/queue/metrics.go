package queue

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics holds the metrics of a process's queue. A process registers them once.
type Metrics struct {
	received, deadLetters, dispatched prometheus.Counter
	verdicts                          *prometheus.CounterVec
	handling                          prometheus.Histogram
	wait, lag                         prometheus.Histogram
	messages, available               *prometheus.GaugeVec
	oldest                            *prometheus.GaugeVec
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
	return &Metrics{
		received: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_received_total", Help: "Messages that this process gave to a handler.",
		}),
		verdicts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_verdicts_total", Help: "Results of handlers: done, later, failed or dead.",
		}, []string{"verdict"}),
		deadLetters: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_dead_letters_total", Help: "Messages that this process gave up; an operator can replay them.",
		}),
		dispatched: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_dispatched_total", Help: "Entries of the outbox that this process sent and the broker confirmed.",
		}),
		handling: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_queue_handler_duration_seconds", Help: "Time of a handler.", Buckets: seconds,
		}),
		wait: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_queue_wait_seconds", Help: "Time from a transaction's entry to its first handler.", Buckets: seconds,
		}),
		lag: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_queue_dispatch_lag_seconds", Help: "Time from an entry of the outbox to the broker's confirmation.", Buckets: seconds,
		}),
		messages: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_queue_messages",
			Help: "Messages of all processes, by state: waiting, delayed, handled, dead, or outbox. At most 100,000 of the table are counted.",
		}, []string{"state"}),
		oldest: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_queue_oldest_seconds", Help: "Age of the oldest entry of the table: queue or outbox.",
		}, []string{"table"}),
		available: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_queue_available", Help: "1 while the part (consumer, results, dispatcher, outbox or collector) reaches its backend, 0 otherwise.",
		}, []string{"part"}),
	}
}

// Start records that a handler starts, and returns the function that records its verdict.
func (m *Metrics) Start(msg Message) func(Verdict) {
	begin := time.Now()
	m.received.Inc()
	if msg.Attempts == 1 {
		m.wait.Observe(max(0, begin.Sub(msg.EnqueuedAt).Seconds()))
	}
	return func(v Verdict) {
		m.handling.Observe(time.Since(begin).Seconds())
		m.verdicts.WithLabelValues(v.Kind.String()).Inc()
	}
}

// Dispatched records an entry that the broker confirmed.
func (m *Metrics) Dispatched(enqueuedAt time.Time) {
	m.dispatched.Inc()
	m.lag.Observe(max(0, time.Since(enqueuedAt).Seconds()))
}

// Depth sets the number of messages in a state.
func (m *Metrics) Depth(state string, n int) { m.messages.WithLabelValues(state).Set(float64(n)) }

// Oldest sets the age of the oldest entry of a table, 0 if it is empty.
func (m *Metrics) Oldest(table string, age time.Duration) {
	m.oldest.WithLabelValues(table).Set(max(0, age.Seconds()))
}
