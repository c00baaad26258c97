package store

import (
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Metrics are the metrics of a Store. A process registers them once.
type Metrics struct {
	statuses *prometheus.CounterVec
	mined    prometheus.Histogram
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	m := &Metrics{
		statuses: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_relayer_transactions_total",
			Help: "Status changes of transactions that this process has stored, by the new status; no-ops and top-ups are included.",
		}, []string{"status"}),
		mined: f.NewHistogram(prometheus.HistogramOpts{
			Name: "rollcall_relayer_time_to_mined_seconds", Help: "Time from the acceptance of a caller's transaction to the record that it is mined; again after a reorganization.",
			Buckets: []float64{.1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 900, 3600},
		}),
	}
	for _, s := range relayer.Statuses {
		m.statuses.WithLabelValues(string(s))
	}
	return m
}

// statusCountsSQL is a statement suffix. It counts the rows of relayer_txs that the CTE "changed" returns, by status.
const statusCountsSQL = ` SELECT status, count(*)::int, coalesce(array_agg(greatest(0, extract(epoch FROM updated_at - created_at)))
	FILTER (WHERE status = 'mined' AND kind = 'transaction'), '{}')::float8[],
	coalesce(array_agg(DISTINCT relayer_address) FILTER (WHERE status = 'confirmed'), '{}') FROM changed GROUP BY status`

// statusCounts holds the rows of statusCountsSQL, to be counted when the transaction has committed.
type statusCounts map[string]changes

// changes are the changes to one status.
type changes struct {
	n     int
	mined []float64 // how long each took to be mined, seconds
	keys  []string  // of confirmed transactions
}

func (s statusCounts) read(rows pgx.Rows) error {
	var status string
	var c changes
	_, err := pgx.ForEachRow(rows, []any{&status, &c.n, &c.mined, &c.keys}, func() error {
		s[status] = c
		c = changes{}
		return nil
	})
	return err
}

// recordStatusCounts adds the counts to the metrics, and returns the number of changes.
func (s *Store) recordStatusCounts(t statusCounts) (n int) {
	for status, changes := range t {
		n += changes.n
		s.metrics.statuses.WithLabelValues(status).Add(float64(changes.n))
		for _, seconds := range changes.mined {
			s.metrics.mined.Observe(seconds)
		}
	}
	return n
}
