package coordinator_test

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
)

// The leader reports how many coordinators may fail. The others report nothing, so that an alert on the maximum is right.
func TestMetrics_VotersFail_LowersTheTolerance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registries := map[string]*prometheus.Registry{}
		c := newSimCluster(t, 5, func(cfg *coordinator.Config) {
			registries[cfg.ID] = prometheus.NewRegistry()
			cfg.Registerer = registries[cfg.ID]
		})
		reports := func(id string) map[string]float64 {
			families, err := registries[id].Gather()
			require.NoError(t, err)
			values := map[string]float64{}
			for _, f := range families {
				if name := f.GetName(); name == "rollcall_voters" || name == "rollcall_failure_tolerance" {
					values[name] = f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			return values
		}
		leader, _ := c.leader()
		becomes := func(tolerance float64) {
			c.await("another tolerance", func() bool { return reports(leader)["rollcall_failure_tolerance"] == tolerance })
			require.Equal(t, map[string]float64{"rollcall_voters": 5, "rollcall_failure_tolerance": tolerance}, reports(leader))
		}
		becomes(2)
		var others []string
		for id := range registries {
			if id != leader {
				require.Empty(t, reports(id))
				others = append(others, id)
			}
		}
		stores := c.nodes[others[0]].stores
		c.stop(others[0])
		becomes(1)
		c.stop(others[1])
		becomes(0)
		again, _ := c.leader()
		require.Equal(t, leader, again)
		c.start(others[0], stores)
		becomes(1)
	})
}
