package service

import (
	"context"
	"errors"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/params"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// Metrics are the metrics of a Service. A process registers them once. Key metrics are labeled by address, which
// configuration bounds, and cover all processes, because they come from the store. Request metrics cover this process.
type Metrics struct {
	enabled                             prometheus.Gauge
	ready                               prometheus.Gauge
	problem                             *prometheus.GaugeVec
	queued                              prometheus.Gauge
	pending, nextNonce, balance, least  *prometheus.GaugeVec
	keyEnabled, keyPaused, keyStuck     *prometheus.GaugeVec
	keyJump                             *prometheus.GaugeVec
	accepted, replayed, refused, failed prometheus.Counter
	abandoned                           prometheus.Counter
	limited                             *prometheus.CounterVec
	groupSize, groupDuration            prometheus.Histogram
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	key := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"relayer"})
	}
	submissions := f.NewCounterVec(prometheus.CounterOpts{
		Name: "rollcall_relayer_submissions_total",
		Help: "Requests to send a transaction, by outcome: accepted, replayed (its idempotency key was known), refused, " +
			"abandoned (the caller hung up before the answer; it may be stored), failed (nothing was stored, or the outcome is unknown).",
	}, []string{"outcome"})
	m := &Metrics{
		enabled: gauge("rollcall_relayer_enabled", "0 while RELAYER_ENABLED is false, 1 otherwise."),
		ready:   gauge("rollcall_relayer_ready", "1 while /health is 200, 0 otherwise."),
		problem: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_relayer_component_ok", Help: "1 while a component of the relayer has no problem, 0 otherwise: switch, database, nonces, keys, rpc, fees, rounds, sends, chain.",
		}, []string{"component"}),
		queued:     gauge("rollcall_relayer_queued", "Transactions that wait for a key, of all processes."),
		pending:    key("rollcall_relayer_key_pending", "Nonces of a key that were given out and are not mined."),
		nextNonce:  key("rollcall_relayer_key_next_nonce", "The nonce that a key's next transaction gets."),
		balance:    key("rollcall_relayer_key_balance_ether", "A key's balance as last read, in ether."),
		least:      key("rollcall_relayer_key_min_balance_ether", "Balance below which a key is disabled, in ether; 0 for none."),
		keyEnabled: key("rollcall_relayer_key_enabled", "0 while the system has taken a key out, 1 otherwise."),
		keyPaused:  key("rollcall_relayer_key_paused", "1 while an operator has paused a key, 0 otherwise."),
		keyStuck:   key("rollcall_relayer_key_stuck", "1 while a key's lowest nonce waits for too long, 0 otherwise."),
		keyJump:    key("rollcall_relayer_key_nonce_jump", "1 while a key is stopped because nodes count many more transactions than were given out, 0 otherwise."),
		accepted:   submissions.WithLabelValues("accepted"), replayed: submissions.WithLabelValues("replayed"),
		refused: submissions.WithLabelValues("refused"), failed: submissions.WithLabelValues("failed"),
		abandoned: submissions.WithLabelValues("abandoned"),
		limited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_rate_limited_total", Help: "Requests that met a limit or a budget, by its name, or that no key could pay for (funds).",
		}, []string{"limit"}),
		groupSize: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relayer_accept_batch_size", Help: "Transactions that one database transaction has accepted.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		groupDuration: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relayer_accept_batch_duration_seconds", Help: "Time of such a database transaction.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	// The series exist from the start, so that the first event is an increase.
	for _, name := range append(store.BudgetLimits(), "funds") {
		m.limited.WithLabelValues(name)
	}
	return m
}

// submitted counts a request; ctx is the caller's.
func (m *Metrics) submitted(ctx context.Context, replayed bool, err error) {
	limit, limited := errors.AsType[*relayer.LimitError](err)
	_, poor := errors.AsType[*relayer.FundsError](err)
	_, invalid := errors.AsType[*relayer.InvalidError](err)
	_, reverts := errors.AsType[*relayer.RevertError](err)
	switch {
	case err == nil && replayed:
		m.replayed.Inc()
	case err == nil:
		m.accepted.Inc()
	case limited:
		m.limited.WithLabelValues(limit.Limit).Inc()
		m.refused.Inc()
	case poor:
		m.limited.WithLabelValues("funds").Inc()
		m.refused.Inc()
	case invalid, reverts, errors.Is(err, relayer.ErrKeyReused), errors.Is(err, relayer.ErrDisabled), errors.Is(err, relayer.ErrPaused),
		errors.Is(err, relayer.ErrNotFound), errors.Is(err, relayer.ErrForgotten):
		m.refused.Inc()
	case errors.Is(err, context.Canceled) && errors.Is(ctx.Err(), context.Canceled):
		m.abandoned.Inc()
	default:
		m.failed.Inc()
	}
}

// show sets the gauges from a health check; keys are nil if the database did not respond.
func (m *Metrics) show(h *relayer.Health, keys []*relayer.Key) {
	m.ready.Set(float(h.Ready))
	for _, c := range h.Components {
		m.problem.WithLabelValues(c.Name).Set(float(c.Problem == ""))
	}
	for _, k := range keys {
		address := strings.ToLower(k.Address.Hex())
		m.pending.WithLabelValues(address).Set(float64(k.PendingCount))
		m.nextNonce.WithLabelValues(address).Set(float64(k.NextNonce))
		m.keyEnabled.WithLabelValues(address).Set(float(k.Enabled))
		m.keyJump.WithLabelValues(address).Set(float(!k.Enabled && strings.HasPrefix(k.DisabledReason, relayer.NonceJump)))
		m.keyPaused.WithLabelValues(address).Set(float(k.Paused))
		m.keyStuck.WithLabelValues(address).Set(float(!k.StuckSince.IsZero()))
		if k.Balance != nil {
			m.balance.WithLabelValues(address).Set(ether(k.Balance))
		}
		if k.MinBalance != nil {
			m.least.WithLabelValues(address).Set(ether(k.MinBalance))
		}
	}
}

func float(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func ether(wei *big.Int) float64 {
	f, _ := new(big.Float).Quo(new(big.Float).SetInt(wei), big.NewFloat(params.Ether)).Float64()
	return f
}
