package api

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the API's metrics.
type metrics struct {
	duration *prometheus.HistogramVec
	webhooks *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, unverified *unverified) *metrics {
	f := promauto.With(r)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rollcall_relay_webhook_unverified_bytes", Help: "Memory for the bodies of webhooks whose signatures are not verified yet, of 16 MiB.",
	}, func() float64 { return float64(unverified.held.Load()) })
	m := &metrics{
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rollcall_relay_api_request_duration_seconds", Help: "Duration of the relay API's requests.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}, []string{"route", "code"}),
		webhooks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_webhooks_total",
			Help: "Webhooks of relayers, by result: applied, repeated (or late), kept (of a transaction that is not known yet), other, refused, unread (above the size, the time or the memory for bodies), invalid, failed.",
		}, []string{"result"}),
	}
	for _, result := range []string{"applied", "repeated", "kept", "other", "refused", "unread", "invalid", "failed"} {
		m.webhooks.WithLabelValues(result)
	}
	return m
}

func (m *metrics) observe(route string, status int, took time.Duration) {
	m.duration.WithLabelValues(route, strconv.Itoa(status)).Observe(took.Seconds())
}
