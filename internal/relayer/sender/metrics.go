package sender

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Metrics are the metrics of a Sender. A process registers them once.
type Metrics struct {
	attempts   *prometheus.CounterVec
	broadcasts *prometheus.CounterVec
	lost       *prometheus.CounterVec
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_attempts_total", Help: "Signed transactions that this process has stored, by purpose: send, replace or noop.",
		}, []string{"purpose"}),
		broadcasts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_broadcasts_total", Help: "Transactions sent to nodes, by the outcome: accepted, already_known, insufficient_funds, unknown and so on.",
		}, []string{"outcome"}),
		lost: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_sender_failures_total", Help: "Transactions for which a step failed, by step: sign, store or record. The process that follows the chain continues them.",
		}, []string{"step"}),
	}
	for _, p := range []relayer.Purpose{relayer.PurposeSend, relayer.PurposeReplace, relayer.PurposeNoop} {
		m.attempts.WithLabelValues(string(p))
	}
	for _, o := range []evm.Outcome{evm.Accepted, evm.Unknown, evm.InsufficientFunds, evm.Refused} {
		m.broadcasts.WithLabelValues(outcomeLabel(o))
	}
	for _, step := range []string{"sign", "store", "record"} {
		m.lost.WithLabelValues(step)
	}
	return m
}

func outcomeLabel(o evm.Outcome) string { return strings.ReplaceAll(o.String(), " ", "_") }
