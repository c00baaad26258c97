package publish

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics holds the metrics of the topic and of webhooks. A process registers them once.
type Metrics struct {
	published prometheus.Counter
	failed    *prometheus.CounterVec
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		published: f.NewCounter(prometheus.CounterOpts{Name: "relayer_events_published", Help: "Messages that the topic, or a webhook's receiver, has accepted from this process."}),
		failed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_escrow_publish_failures_total", Help: "Requests to the topic that failed, by the class of the answer: away, again or refused.",
		}, []string{"class"}),
	}
}
