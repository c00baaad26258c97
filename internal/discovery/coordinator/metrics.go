package coordinator

import (
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of a coordinator. go-metrics publishes Raft's own separately.
type Metrics struct {
	reg prometheus.Registerer

	leaderChanges prometheus.Counter
	confirmations prometheus.Counter
	unchanged     prometheus.Counter
	batch         prometheus.Histogram
	commandOps    prometheus.Histogram
}

// NewMetrics builds the metrics and registers them unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		reg: reg,
		leaderChanges: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_leadership_changes_total", Help: "Epochs that this node has established."}),
		confirmations: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_term_confirmations_total", Help: "Rounds in which the leader asked a quorum to confirm its term."}),
		unchanged: f.NewCounter(prometheus.CounterOpts{
			Name: "rollcall_registrations_unchanged_total", Help: "Registrations answered without a Raft entry."}),
		batch: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_registration_batch_services", Help: "Services in a registration.",
			Buckets: []float64{1, 3, 10, 30, 100, 300, 1000, 3000, 10000}}),
		commandOps: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_command_operations", Help: "Operations that share a Raft entry.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11)}),
	}
}

// follow publishes values of the node and Raft.
func (m *Metrics) follow(n *Node, r *raft.Raft) {
	if m.reg == nil {
		return
	}
	gauge := func(name, help string, f func() float64) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	gauge("rollcall_leader", "1 while this node is the established leader.", func() float64 {
		if n.currentLeader() != nil {
			return 1
		}
		return 0
	})
	m.reg.MustRegister(quorumCollector{n, r})
	gauge("rollcall_epoch", "Last epoch this node has applied.", func() float64 { return float64(n.machine.State().Epoch()) })
	gauge("rollcall_directory_services", "Services in the directory.", func() float64 { return float64(n.machine.State().Len()) })
	gauge("rollcall_raft_term", "Current term.", func() float64 { return float64(r.CurrentTerm()) })
	gauge("rollcall_raft_commit_index", "Commit index.", func() float64 { return float64(r.CommitIndex()) })
	gauge("rollcall_raft_last_index", "Last index of the log.", func() float64 { return float64(r.LastIndex()) })
	gauge("rollcall_raft_applied_index", "Last command applied to the directory.", func() float64 { return float64(n.machine.State().Index()) })
	if disk, ok := n.stores.Closer.(interface {
		LogBytes() int64
		SnapshotBytes() int64
	}); ok {
		gauge("rollcall_raft_log_bytes", "Size of the log's file.", func() float64 { return float64(disk.LogBytes()) })
		gauge("rollcall_raft_snapshot_bytes", "Size of all snapshots.", func() float64 { return float64(disk.SnapshotBytes()) })
	}
}

var (
	votersDesc    = prometheus.NewDesc("rollcall_voters", "Coordinators with a vote, on the leader.", nil, nil)
	toleranceDesc = prometheus.NewDesc("rollcall_failure_tolerance",
		"Coordinators that may fail until the cluster has no leader, of those that answer now, on the leader.", nil, nil)
)

// quorumCollector reports the cluster's state as its leader knows it. Other nodes report nothing, because they do not ask the members.
type quorumCollector struct {
	n *Node
	r *raft.Raft
}

// Describe implements prometheus.Collector.
func (c quorumCollector) Describe(ch chan<- *prometheus.Desc) { ch <- votersDesc; ch <- toleranceDesc }

// Collect implements prometheus.Collector.
func (c quorumCollector) Collect(ch chan<- prometheus.Metric) {
	if c.n.currentLeader() == nil {
		return
	}
	voters, tolerance := c.n.tolerance(c.r)
	ch <- prometheus.MustNewConstMetric(votersDesc, prometheus.GaugeValue, float64(voters))
	ch <- prometheus.MustNewConstMetric(toleranceDesc, prometheus.GaugeValue, float64(tolerance))
}
