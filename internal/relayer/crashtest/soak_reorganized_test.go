//go:build soak

package crashtest

import (
	"fmt"
	"testing"
)

// Reorganizations of 3, 20, 70 and 200 blocks, with more hits. Relayers are killed while they take transactions back
// and while they send them again, and the operator's command half-way. One of 20 blocks removes final transactions and
// leaves the anchor.
func TestSoakReorganization(t *testing.T) {
	for i, r := range []reorganization{
		{depth: 3, times: 6, hits: 150, kills: true},
		{depth: 20, times: 3, hits: 300, kills: true},
		{depth: 70, times: 3, hits: 500, kills: true, interrupted: true},
		{depth: 70, times: 2, hits: 300, interrupted: true, shorter: true},
		{depth: 200, times: 2, hits: 800, kills: true, interrupted: true},
	} {
		t.Run(fmt.Sprintf("%d-%d", i, r.depth), func(t *testing.T) {
			sc := open(t, setting{keys: 8, relayers: 4, inFlight: 1000, confirmations: finalDepth, geth: archive()})
			sc.underReorganization(r)
		})
	}
}
