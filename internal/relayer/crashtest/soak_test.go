//go:build soak

package crashtest

import (
	"testing"
	"time"
)

// The full form of the claim.
func TestSoak(t *testing.T) {
	sc := open(t, setting{
		keys: 16, relayers: 4, inFlight: 20_000, confirmations: 12, geth: pool(100_000),
		postgres: map[string]string{"shared_buffers": "128MB"}, env: priced(), rules: dearGas,
	})
	c := sc.storm(20_000, 64, plan{
		length: 4 * time.Minute, killEvery: 4 * time.Second, freezeEvery: 25 * time.Second, freezeFor: 20 * time.Second,
		shiftEvery: 1500 * time.Millisecond, restarts: 2,
		isolations: 5, isolateFor: 10 * time.Second, dearTimes: 6, dearFor: 8 * time.Second,
	}, 10*time.Minute)
	c.complete(t)
}

// geth at its default limits accepts transactions and drops them later. A key has far more pending than the pool
// guarantees an account.
func TestSoakDefaultPool(t *testing.T) {
	sc := open(t, setting{keys: 16, relayers: 4, inFlight: 1000, confirmations: 12})
	sc.storm(12_000, 64, plan{length: 30 * time.Second, killEvery: 10 * time.Second, restarts: 2}, 10*time.Minute)
}

// Many keys, each within geth's guarantee for an account, and together beyond its capacity.
func TestSoakDefaultPoolManyKeys(t *testing.T) {
	sc := open(t, setting{keys: 400, relayers: 4, inFlight: 16, confirmations: 12})
	sc.storm(8_000, 64, plan{length: 20 * time.Second, killEvery: 10 * time.Second, restarts: 2}, 10*time.Minute)
}
