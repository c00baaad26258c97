package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rollcall_relayer_http_request_duration_seconds",
			Help:    "Time from a request's header to the end of its answer, by the route's pattern, method and status code.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25},
		}, []string{"route", "method", "code"}),
		inFlight: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_relayer_http_requests_in_flight", Help: "Requests being answered now.",
		}),
	}
}

// observe counts a request under its route's pattern, because paths that callers invent must not create series.
func (m *metrics) observe(c *exchange, took time.Duration) {
	m.duration.WithLabelValues(c.route.name(), knownMethod(c.r.Method), strconv.Itoa(c.code)).Observe(took.Seconds())
}

func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}
