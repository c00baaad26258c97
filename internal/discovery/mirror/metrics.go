package mirror

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are shared by the Writers of all epochs of a process.
type Metrics struct {
	writes    *prometheus.CounterVec // by op
	errors    *prometheus.CounterVec // by reason
	refusals  *prometheus.CounterVec // by reason
	repairs   *prometheus.CounterVec // by reason
	lag       prometheus.Histogram
	connected prometheus.Gauge
	seq       prometheus.Gauge
}

// NewMetrics builds the mirror's metrics and registers them with reg unless it is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, v := range values {
			c.WithLabelValues(v)
		}
		return c
	}
	return &Metrics{
		writes: counter("rollcall_mirror_writes_total", "Writes that Redis applied.", "op",
			string(OpClaim), string(OpChange), string(OpStatus), string(OpHeartbeat)),
		errors: counter("rollcall_mirror_errors_total",
			"Operations on Redis that failed: unreachable (no answer), or refused (it answered with an error).", "reason",
			reasonUnreachable, reasonRefused),
		refusals: counter("rollcall_mirror_fenced_writes_total",
			"Writes held back or refused by the fence.", "reason",
			reasonUnconfirmed, string(Mismatch), string(Expired), string(Older), string(Foreign)),
		repairs: counter("rollcall_mirror_repairs_total",
			"Differences repaired: drift (one for each member that someone else had put in or taken out), or rewrite "+
				"(one for each time Redis had lost or regressed as a whole).", "reason",
			reasonDrift, reasonRewrite),
		lag: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "rollcall_mirror_lag_seconds",
			Help:    "Time from a change of the active set being known to it standing in Redis.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
		connected: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_mirror_connected", Help: "1 while this node leads and its writes reach Redis.",
		}),
		seq: f.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_mirror_seq", Help: "Seq of the last write that Redis applied.",
		}),
	}
}

// The constants are label values in addition to operations and outcomes.
const (
	reasonUnreachable = "unreachable"
	reasonRefused     = "refused"
	reasonUnconfirmed = "unconfirmed"
	reasonDrift       = "drift"
	reasonRewrite     = "rewrite"
)
