package keymonitor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// While the tracker is idle, the process that follows the chain keeps the budgets and the cost. A former one drops them soon.
func TestRun_TrackerIdleThenElsewhere_DropsMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reg := prometheus.NewRegistry()
		m := New(Config{Metrics: NewMetrics(reg), Interval: time.Second})
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		m.cfg.Metrics.cost.WithLabelValues().Set(1)
		m.cfg.Metrics.spent.WithLabelValues("topup", "").Set(1)
		has := func(name string) bool {
			families, err := reg.Gather()
			require.NoError(t, err)
			for _, f := range families {
				if f.GetName() == name {
					return len(f.GetMetric()) > 0
				}
			}
			return false
		}
		both := []string{"rollcall_relayer_transaction_cost_ether", "rollcall_relayer_budget_spent_ether"}
		m.Idle()
		for range 120 {
			synctest.Wait()
			for _, name := range both {
				require.True(t, has(name), name)
			}
			<-time.After(time.Second)
			m.Idle()
		}
		<-time.After(15 * time.Second)
		synctest.Wait()
		for _, name := range both {
			require.False(t, has(name), name)
		}
		cancel()
		require.NoError(t, <-ended)
	})
}
