//go:build soak

package crashtest

import (
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// Providers limit the items of batches, refuse batches, and forget what they accepted, while processes and the database fail.
func TestSoakProviders(t *testing.T) {
	for name, rules := range map[string][endpoints][]proxy.Rule{
		"limit calls":    {{limitsCalls(200)}, {limitsCalls(100)}},
		"refuse batches": {{refusesLargeBatches}, {refusesBatches}},
		"forget":         {{forgets(1)}, {forgets(0.1)}},
		"all":            {{limitsCalls(200), forgets(0.1)}, {refusesLargeBatches, forgets(0.1)}},
	} {
		t.Run(name, func(t *testing.T) {
			sc := open(t, setting{keys: 16, relayers: 4, inFlight: 1000, confirmations: 12, geth: pool(100_000), rules: rules})
			sc.storm(3000, 32, plan{length: 30 * time.Second, killEvery: 5 * time.Second, freezeEvery: 15 * time.Second, freezeFor: 10 * time.Second, restarts: 2}, 10*time.Minute)
		})
	}
}
