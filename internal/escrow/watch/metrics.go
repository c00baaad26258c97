package watch

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of a process's reading.
type metrics struct {
	unconfirmed, disagreements, unproven prometheus.Counter
	falseLists                           *prometheus.CounterVec
	finals                               *prometheus.GaugeVec
	alone                                prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		unconfirmed:   f.NewCounter(prometheus.CounterOpts{Name: "rollcall_escrow_unconfirmed_total", Help: "Ranges of blocks whose logs were not confirmed, so that they were read again."}),
		disagreements: f.NewCounter(prometheus.CounterOpts{Name: "rollcall_escrow_disagreements_total", Help: "Blocks for which two endpoints gave different logs."}),
		unproven:      f.NewCounter(prometheus.CounterOpts{Name: "rollcall_escrow_unproven_blocks_total", Help: "Blocks whose logs only one endpoint gave and nothing proved, because no other endpoint is configured."}),
		falseLists:    f.NewCounterVec(prometheus.CounterOpts{Name: "rollcall_escrow_false_lists_total", Help: "Lists of logs that were false, by endpoint."}, []string{"endpoint"}),
		finals:        f.NewGaugeVec(prometheus.GaugeOpts{Name: "rollcall_escrow_final_block", Help: "Newest block that an endpoint calls final; only the instance that reads the chain reports it."}, []string{"endpoint"}),
		alone:         f.NewGauge(prometheus.GaugeOpts{Name: "rollcall_escrow_single_node", Help: "1 if a single node is configured, so that no other one confirms its answers."}),
	}
}
