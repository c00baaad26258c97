package queue

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// metrics holds the metrics of a process's queue. It implements [outbox.Observer].
type metrics struct {
	received, deadLetters, dispatched prometheus.Counter
	verdicts                          *prometheus.CounterVec
	handling, wait, lag               prometheus.Histogram
	messages, available               *prometheus.GaugeVec
	oldest                            prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
	return &metrics{
		received: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_received_total", Help: "Entries that this process gave to a handler.",
		}),
		verdicts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_verdicts_total", Help: "Results of handlers: done, later, failed or dead.",
		}, []string{"verdict"}),
		deadLetters: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_dead_letters_total", Help: "Entries that this process gave up; an operator can replay them.",
		}),
		dispatched: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_queue_dispatched_total", Help: "Ids of entries that this process sent and the broker confirmed.",
		}),
		handling: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_queue_handler_duration_seconds", Help: "Time of a handler.", Buckets: seconds,
		}),
		wait: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_queue_wait_seconds", Help: "Time from a transaction's entry to its first handler.", Buckets: seconds,
		}),
		lag: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relay_queue_dispatch_lag_seconds", Help: "Time from an entry to its first or repeated message at the broker.", Buckets: seconds,
		}),
		messages: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_queue_messages",
			Help: "Entries of all processes, by state: waiting, delayed, handled or dead. At most 1,000 of each client are counted, and fewer with more than 30 clients.",
		}, []string{"state"}),
		oldest: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_relay_queue_oldest_seconds", Help: "Age of the oldest entry that is not dead.",
		}),
		available: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relay_queue_available", Help: "1 while the part (worker, receiver, dispatcher, broker or notifier) reaches its backend, 0 otherwise.",
		}, []string{"part"}),
	}
}

// Began implements [outbox.Observer].
func (m *metrics) Began(w outbox.Work) {
	m.received.Inc()
	if w.Attempts == 1 {
		m.wait.Observe(w.Age().Seconds())
	}
}

// Handled implements [outbox.Observer].
func (m *metrics) Handled(_ outbox.Work, r outbox.Result, took time.Duration) {
	m.handling.Observe(took.Seconds())
	verdict := r.Kind.String()
	switch r.Kind {
	case outbox.KindFinished:
		verdict = "done"
	case outbox.KindRetry:
		verdict = "failed"
	}
	m.verdicts.WithLabelValues(verdict).Inc()
}

// Died implements [outbox.Observer].
func (m *metrics) Died(outbox.Work, string) { m.deadLetters.Inc() }

// Sent implements [outbox.Observer].
func (m *metrics) Sent(_ string, age time.Duration) {
	m.dispatched.Inc()
	m.lag.Observe(max(0, age.Seconds()))
}

// counted shows the numbers of entries.
func (m *metrics) counted(counts []outbox.Count) {
	var all outbox.Count
	for _, c := range counts {
		all.Waiting, all.Delayed, all.Working, all.Dead = all.Waiting+c.Waiting, all.Delayed+c.Delayed, all.Working+c.Working, all.Dead+c.Dead
		all.Oldest = max(all.Oldest, c.Oldest)
	}
	for state, n := range map[string]int{"waiting": all.Waiting, "delayed": all.Delayed, "handled": all.Working, "dead": all.Dead} {
		m.messages.WithLabelValues(state).Set(float64(n))
	}
	m.oldest.Set(all.Oldest.Seconds())
}

// forgetWorker ends the reports about a worker that has ended: its last one may be that a backend is away.
func (m *metrics) forgetWorker() {
	m.available.DeleteLabelValues("worker")
	m.available.DeleteLabelValues("receiver")
}

// Available implements [outbox.Observer].
func (m *metrics) Available(part string, available bool) {
	value := 0.0
	if available {
		value = 1
	}
	m.available.WithLabelValues(part).Set(value)
}
