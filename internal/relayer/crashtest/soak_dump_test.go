//go:build soak

package crashtest

import "testing"

// Dumps are restored under killed relayers, under running ones, and with a lagging node. One is so old that keys stop
// until an operator resyncs them.
func TestSoakRestoredDump(t *testing.T) {
	for name, r := range map[string]restoration{
		"killed": {before: 300, after: 100, later: 200, mined: 50, groups: 3, killed: 4},
		"lagged": {before: 300, after: 100, later: 200, mined: 50, groups: 3, killed: 4, lag: 6},
		"alive":  {before: 300, after: 100, later: 200, mined: 50, groups: 1},
		"some":   {before: 300, after: 100, later: 200, mined: 50, groups: 5, killed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			sc := open(t, setting{keys: 8, relayers: 4, inFlight: 4, confirmations: 3, geth: pool(10_000)})
			sc.restoreUnderLoad(r)
		})
	}
	for name, killed := range map[string]int{"jump killed": 3, "jump alive": 0} {
		t.Run(name, func(t *testing.T) {
			sc := open(t, setting{keys: 2, relayers: 3, inFlight: 16, confirmations: 3, geth: pool(10_000)})
			sc.restoreUnderLoad(restoration{before: 250, after: 250, later: 100, mined: 200, groups: 2, killed: killed, jump: true})
		})
	}
}
