package clusterport

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The reasons are values of the refused metric's label.
const (
	reasonSilent    = "silent"
	reasonUnknown   = "unknown_protocol"
	reasonTLS       = "tls"
	reasonEvicted   = "too_many"
	reasonNotServed = "not_served"
)

// Metrics are the metrics of a port.
type Metrics struct {
	refused      *prometheus.CounterVec
	acceptErrors prometheus.Counter
	pending      prometheus.Gauge
	expiry       prometheus.Gauge
}

// NewMetrics builds the metrics and registers them with reg unless it is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_cluster_port_refused_total",
			Help: "Connections closed before they reached gRPC or Raft.",
		}, []string{"reason"}),
		acceptErrors: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_cluster_port_accept_errors_total",
			Help: "Failed accepts, such as for want of file descriptors.",
		}),
		pending: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_cluster_port_pending_connections",
			Help: "Connections whose protocol is not known yet.",
		}),
		expiry: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_tls_certificate_expiry_timestamp_seconds",
			Help: "When the certificate in use ends, in Unix time; 0 without TLS.",
		}),
	}
	for _, reason := range []string{reasonSilent, reasonUnknown, reasonTLS, reasonEvicted, reasonNotServed} {
		m.refused.WithLabelValues(reason)
	}
	return m
}
