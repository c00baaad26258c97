package director

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

func value(t *testing.T, m prometheus.Metric) float64 {
	var out dto.Metric
	require.NoError(t, m.Write(&out))
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// gauges lists the leader's gauges as "name{label} value".
func gauges(t *testing.T, reg prometheus.Gatherer) (list []string) {
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetGauge() != nil {
				list = append(list, fmt.Sprintf("%s{%s} %v", f.GetName(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue()))
			}
		}
	}
	slices.Sort(list)
	return list
}

func TestMetrics_DirectorStartsAndStops_ShowOnlyTheLeadersView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		b := setup(t, Config{Metrics: NewMetrics(reg)})
		require.Empty(t, gauges(t, reg))
		b.dir.register(relayers(3)...)
		b.net.set(refuses, url("a-01"))
		b.start()
		pause(time.Second)
		require.Equal(t, []string{
			"rollcall_active{relayer} 2",
			"rollcall_configured{relayer} 3",
			"rollcall_director_state{recovering} 0",
			"rollcall_director_state{running} 1",
			"rollcall_director_state{stalled} 0",
			"rollcall_guard_held_removals{relayer} 0",
		}, gauges(t, reg))
		require.NoError(t, b.stop())
		require.Empty(t, gauges(t, reg))
	})
}

func TestMetrics_LastServiceOfAKindLeaves_AreZero(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		b := setup(t, Config{Metrics: NewMetrics(reg), MinLive: map[string]int{"escrow": 1}})
		b.dir.register(relayer("a"), entry("other", "watcher", url("other"), nil))
		b.start()
		pause(time.Second)
		require.Contains(t, gauges(t, reg), "rollcall_active{watcher} 1")
		require.Contains(t, gauges(t, reg), "rollcall_active{relayer} 1")
		b.dir.deregister("a", "other")
		pause(time.Second)
		require.Equal(t, []string{
			"rollcall_active{escrow} 0",
			"rollcall_active{relayer} 0",
			"rollcall_configured{escrow} 0",
			"rollcall_configured{relayer} 0",
			"rollcall_director_state{recovering} 0",
			"rollcall_director_state{running} 0",
			"rollcall_director_state{stalled} 1",
			"rollcall_guard_held_removals{escrow} 0",
			"rollcall_guard_held_removals{relayer} 0",
		}, gauges(t, reg))
	})
}
