package keymonitor

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a Monitor. A process registers them once.
type Metrics struct {
	switches *prometheus.CounterVec
	failures prometheus.Counter
	topUps   *prometheus.CounterVec
	toppedUp prometheus.Counter
	spent    *prometheus.GaugeVec
	cost     *prometheus.GaugeVec // without labels: it does not exist in a process that never read fees
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		switches: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_key_state_changes_total", Help: "Keys that the system has taken out or in again, by what they became: enabled or disabled.",
		}, []string{"to"}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relayer_balance_check_failures_total", Help: "Reads of balances that failed.",
		}),
		topUps: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_topups_total", Help: "Top-ups that a key needed, by outcome: sent, limited (a ceiling), unfunded (the funding key lacks ether), paused (the funding key is, or it is disabled), failed.",
		}, []string{"outcome"}),
		toppedUp: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relayer_topped_up_ether_total", Help: "Ether that this process has sent to keys.",
		}),
		spent: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relayer_budget_spent_ether", Help: "What today's (UTC) budgets have spent and reserved, of all processes, by scope (caller, key, topup) and subject; the process that follows the chain has it.",
		}, []string{"scope", "subject"}),
	}
	m.cost = f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rollcall_relayer_transaction_cost_ether", Help: "What a transaction of 100,000 gas may cost at the chain's present prices, in ether; the process that follows the chain has it.",
	}, nil)
	for _, to := range []string{"enabled", "disabled"} {
		m.switches.WithLabelValues(to)
	}
	for _, outcome := range []string{"sent", "limited", "unfunded", "paused", "failed"} {
		m.topUps.WithLabelValues(outcome)
	}
	return m
}
