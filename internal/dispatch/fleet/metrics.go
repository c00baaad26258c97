package fleet

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are a fleet's metrics.
type metrics struct {
	submitted *prometheus.CounterVec
	opened    *prometheus.CounterVec
	failures  prometheus.Counter
	readable  prometheus.Gauge
	mirrorAge atomic.Int64 // of the mirror at the last read, ns
}

func newMetrics(reg prometheus.Registerer, f *Fleet) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		submitted: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_relayer_submissions_total", Help: "Requests to each relayer, by outcome.",
		}, []string{"relayer", "outcome"}),
		opened: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relay_breaker_opened_total", Help: "How often the circuit breaker of each relayer was opened by a fault.",
		}, []string{"relayer"}),
		failures: auto.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_relay_redis_failures_total", Help: "Failed reads of the live relayers from Redis.",
		}),
		readable: auto.NewGauge(prometheus.GaugeOpts{
			Name: "rollcall_relay_redis_up", Help: "1 if the last read of the live relayers from Redis succeeded, else 0.",
		}),
	}
	if reg != nil {
		reg.MustRegister(newClockCollector(f))
	}
	gauge := func(name, help string, value func() float64) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	gauge("rollcall_relay_relayers", "Relayers that may be chosen, apart from pauses and open breakers.", func() float64 {
		n := 0
		for _, m := range f.list() {
			if !m.mismatched() {
				n++
			}
		}
		return float64(n)
	})
	gauge("rollcall_relay_relayers_unusable",
		"Relayers that Redis lists and that cannot be used: no valid URL, no API key, another id or network than configured, another chain, or a host that is not allowed.",
		func() float64 { return float64(f.unusable()) })
	if reg != nil {
		reg.MustRegister(refusedCollector{f, prometheus.NewDesc("rollcall_relay_relayer_refused",
			"1 for each relayer that Redis lists and that gets neither the API key nor transactions, because of its host or its chain; 16 at most.",
			[]string{"service", "cause"}, nil)})
	}
	gauge("rollcall_relay_relayers_unread", "Relayers that Redis lists and that are not read, because there are too many.", func() float64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return float64(f.unread)
	})
	gauge("rollcall_relay_relayers_age_seconds", "Time since the live relayers were last read from Redis.", func() float64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.readAt.IsZero() {
			return -1
		}
		return time.Since(f.readAt).Seconds()
	})
	gauge("rollcall_relay_mirror_age_seconds", "Age of the discovery cluster's last update in Redis, at the last read.", func() float64 {
		return time.Duration(m.mirrorAge.Load()).Seconds()
	})
	return m
}

// read records a read of Redis.
func (m *metrics) read(err error, age time.Duration) {
	if err != nil {
		m.failures.Inc()
		m.readable.Set(0)
		return
	}
	m.readable.Set(1)
	m.mirrorAge.Store(int64(age))
}
