package director

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Metrics count the work of directors across the epochs of a process, and show the state of the current one. Without a
// running director that state is absent, because a node that does not lead has no data about the fleet.
type Metrics struct {
	failed, deregistered prometheus.Counter
	recoveries           prometheus.Counter
	stalls, holds        prometheus.Counter

	present atomic.Pointer[Director]
}

var (
	configuredDesc = prometheus.NewDesc("rollcall_configured",
		"Services in the directory, on the leader.", []string{"kind"}, nil)
	activeDesc = prometheus.NewDesc("rollcall_active",
		"Services in the set last written to Redis, on the leader.", []string{"kind"}, nil)
	stateDesc = prometheus.NewDesc("rollcall_director_state",
		"1 for the state that the director is in, on the leader.", []string{"state"}, nil)
	heldDesc = prometheus.NewDesc("rollcall_guard_held_removals",
		"Removals that the mass-failure guard holds back, on the leader.", []string{"kind"}, nil)
)

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	removals := f.NewCounterVec(prometheus.CounterOpts{
		Name: "rollcall_removals_total",
		Help: "Live services that stopped being listed, by reason: health (their checks failed) or deregistered.",
	}, []string{"reason"})
	m := &Metrics{
		failed:       removals.WithLabelValues("health"),
		deregistered: removals.WithLabelValues("deregistered"),
		recoveries: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_service_recoveries_total", Help: "Services that were down and are up again.",
		}),
		stalls: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_director_stalls_total", Help: "Times that a kind fell below the required number of live services.",
		}),
		holds: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_guard_holds_total", Help: "Times that the mass-failure guard began to hold removals.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

func (m *Metrics) enter(d *Director) { m.present.Store(d) }
func (m *Metrics) leave(d *Director) { m.present.CompareAndSwap(d, nil) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{configuredDesc, activeDesc, stateDesc, heldDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	d := m.present.Load()
	if d == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value int, label string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), label)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// A kind with a required minimum is shown with zeros, because an alert on a missing series would not fire.
	shown := map[string]kind{"relayer": {}}
	for name := range d.cfg.MinLive {
		shown[name] = kind{}
	}
	for name, k := range d.kinds {
		shown[name] = *k
	}
	for name, k := range shown {
		gauge(configuredDesc, k.services, name)
		gauge(activeDesc, d.writer.ActiveOf(name), name)
		gauge(heldDesc, k.held, name)
	}
	for state, word := range map[rollcallv1.DirectorState]string{
		rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING: "recovering",
		rollcallv1.DirectorState_DIRECTOR_STATE_STALLED:    "stalled",
		rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING:    "running",
	} {
		value := 0
		if d.state == state {
			value = 1
		}
		gauge(stateDesc, value, word)
	}
}
