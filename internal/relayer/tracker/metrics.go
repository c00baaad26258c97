package tracker

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a Tracker. A process registers them once.
type Metrics struct {
	following prometheus.Gauge
	round     prometheus.Gauge
	block     prometheus.Gauge
	lag       prometheus.Histogram
	rounds    *prometheus.CounterVec
	nonceLag  *prometheus.GaugeVec

	bumps, resends, filled, displaced, raised, reorgs, finalReorgs, reorged, rejected, fillLimited, recounted prometheus.Counter
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		following: gauge("rollcall_relayer_tracker_active", "1 while this process follows the chain for its pool, 0 otherwise. One process of a pool does."),
		round:     gauge("rollcall_relayer_tracker_block_timestamp_seconds", "When this process last updated the store to the chain's head; 0 before."),
		block:     gauge("rollcall_relayer_tracker_block", "Number of the block that the store was last updated to."),
		lag: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relayer_head_lag_seconds", Help: "Time from the notification of a block to the commit of its changes.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		rounds: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_tracker_rounds_total", Help: "Rounds of the tracker, by outcome: ok or failed.",
		}, []string{"outcome"}),
		nonceLag: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relayer_key_nonce_lag", Help: "By how many nonces a key's next one is ahead of what the chain has mined.",
		}, []string{"relayer"}),
		bumps:       counter("rollcall_relayer_bumps_total", "Transactions that got a higher fee, or a no-op in their place."),
		resends:     counter("rollcall_relayer_resends_total", "Transactions sent again, because no node had accepted them, or a node's pool lacked them."),
		filled:      counter("rollcall_relayer_gaps_filled_total", "Nonces without a transaction that were filled with a no-op."),
		fillLimited: counter("rollcall_relayer_gaps_limited_total", "Times that a gap was not filled because the key's no-ops of the hour were used up."),
		displaced:   counter("rollcall_relayer_nonce_conflicts_total", "Nonces that another sender's transaction used for good."),
		raised:      counter("rollcall_relayer_nonce_advanced_total", "Times that another sender used a key beyond the allocated nonces."),
		reorgs:      counter("rollcall_relayer_reorgs_total", "Reorganizations that removed a transaction's block."),
		finalReorgs: counter("rollcall_relayer_final_reorgs_total", "Reorganizations that removed a block of final transactions."),
		reorged:     counter("rollcall_relayer_transactions_reorged_total", "Transactions that a reorganization made pending again."),
		rejected:    counter("rollcall_relayer_permanently_rejected_total", "Transactions that no node will ever accept: a no-op takes their nonce."),
		recounted:   counter("rollcall_relayer_queue_corrections_total", "Counters of waiting transactions that differed from the rows and were corrected; any is a fault of the relayer, or a change by hand."),
	}
	for _, outcome := range []string{"ok", "failed"} {
		m.rounds.WithLabelValues(outcome)
	}
	return m
}

// show sets the gauges from a round.
func (m *Metrics) show(r *round) {
	m.nonceLag.Reset()
	for i, k := range r.keys {
		m.nonceLag.WithLabelValues(strings.ToLower(k.Address.Hex())).Set(float64(k.NextNonce) - float64(r.counts[i]))
	}
}

// idle resets the gauges that only the tracking process sets.
func (m *Metrics) idle() {
	m.following.Set(0)
	m.nonceLag.Reset()
}
