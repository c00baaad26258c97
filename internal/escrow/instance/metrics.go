package instance

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
)

// activeAge is the age of a heartbeat up to which an instance counts as active: five heartbeats.
const activeAge = 15 * time.Second

// metrics are those that every instance reads from the database, and relayer_is_leader. Those without the prefix rollcall have the names
// of the documents.
type metrics struct {
	blocks, repeated, elections          prometheus.Gauge
	monitored, registered, active        prometheus.Gauge
	lagBlocks, lagSeconds, halted, parks prometheus.Gauge
	heartbeats, oldest, dead, halt       *prometheus.GaugeVec

	shown map[string]bool // the instances with a heartbeat
}

func newMetrics(reg prometheus.Registerer, leading func() bool) *metrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "relayer_is_leader", Help: "1 while this instance has the lease to read the chain."}, func() float64 {
		return number(leading())
	})
	const same = " Every instance of the chain reports the same."
	return &metrics{
		blocks:     gauge("relayer_blocks_processed", "Blocks whose events are stored, since the first start."+same),
		repeated:   gauge("event_deduplication_hits", "Logs that were met again in the same block without a requested repetition, since the first start."+same),
		elections:  gauge("leader_election_count", "Elections of a reader of the chain, since the first start."+same),
		monitored:  gauge("relayer_escrows_monitored", "Escrows on the chain that are neither released nor refunded."+same),
		registered: gauge("total_escrows_registered", "Escrows on the chain."+same),
		active:     gauge("total_active_instances", "Instances with a heartbeat of the last 15 seconds."+same),
		lagBlocks: gauge("rollcall_escrow_lag_blocks",
			"Blocks whose events are not stored yet: final ones, and with instant delivery those up to the head. While the stored block does not move, each instance asks its own nodes every two minutes."),
		lagSeconds: gauge("rollcall_escrow_lag_seconds", "Age of the newest block whose events are stored; what a chain takes to make a block final is part of it."+same),
		halted:     gauge("rollcall_escrow_halted", "1 while nothing is stored or published, because the chain contradicts a final block."+same),
		halt: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_escrow_halt", Help: "1 with the cause while the chain is halted: the block with both hashes; missing otherwise." + same,
		}, []string{"cause"}),
		parks: gauge("rollcall_escrow_parked", "Logs that do not decode, at most 10,000."+same),
		heartbeats: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "relayer_last_heartbeat_age", Help: "Age of the latest heartbeat of each instance, in seconds." + same,
		}, []string{"instance"}),
		oldest: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_escrow_oldest_unpublished_seconds",
			Help: "Age of the oldest message that was not accepted yet, by partition of this instance's TOTAL_PARTITIONS; one partition without that.",
		}, []string{"partition"}),
		dead: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_escrow_dead_letters",
			Help: "Messages that were given up, and that hold back the later ones of their escrows, by target; of all targets at most 10,000." + same,
		}, []string{"target"}),
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// show sets the metrics of an overview, and the lag in blocks.
func (m *metrics) show(o store.Overview, lag uint64) {
	m.blocks.Set(float64(o.Blocks))
	m.repeated.Set(float64(o.Repeated))
	m.elections.Set(float64(o.Epoch))
	m.lagBlocks.Set(float64(lag))
	m.lagSeconds.Set(o.CursorAge.Seconds())
	m.halted.Set(number(o.Halted != ""))
	m.halt.Reset()
	if o.Halted != "" {
		m.halt.WithLabelValues(o.Halted).Set(1)
	}
	active, shown := 0, map[string]bool{}
	for _, i := range o.Instances {
		shown[i.ID] = true
		m.heartbeats.WithLabelValues(i.ID).Set(i.Age.Seconds())
		if i.Age <= activeAge {
			active++
		}
	}
	m.active.Set(float64(active))
	for id := range m.shown {
		if !shown[id] {
			m.heartbeats.DeleteLabelValues(id)
		}
	}
	m.shown = shown
}

// count sets the metrics of totals, with the ages of the oldest messages in each of total static partitions.
func (m *metrics) count(t store.Totals, total int) {
	m.registered.Set(float64(t.Registered))
	m.monitored.Set(float64(t.Monitored))
	m.parks.Set(float64(t.Parked))
	m.dead.Reset() // a target that is no longer configured disappears with its last one
	for target, n := range t.Dead {
		m.dead.WithLabelValues(target).Set(float64(n))
	}
	oldest := make([]time.Duration, total)
	for partition, age := range t.Oldest {
		at := &oldest[partition%total]
		*at = max(*at, age)
	}
	for partition, age := range oldest {
		m.oldest.WithLabelValues(strconv.Itoa(partition)).Set(age.Seconds())
	}
}
