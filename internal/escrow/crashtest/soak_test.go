//go:build soak

package crashtest

import (
	"testing"
	"time"
)

// The full form of the claim: many faults, and the limits as they are promised.

var promised = limits{10 * time.Second, 15 * time.Second, time.Second}

func TestSoakKilled(t *testing.T) {
	w := setup(t)
	w.limits = promised
	w.inTurn(7, "a kill", w.kill)
}

func TestSoakPaused(t *testing.T) {
	w := setup(t)
	w.limits = promised
	w.inTurn(7, "a pause", w.pause)
}

func TestSoakStopped(t *testing.T) {
	w := setup(t)
	w.limits = promised
	w.three()
	l := w.load()
	var handed []time.Duration
	for range 40 {
		l.further(2)
		leader := w.leader()
		handed = append(handed, w.handOver(leader))
		leader.restart()
	}
	l.stop()
	w.check()
	w.handed(handed)
}

func TestSoakNodesFail(t *testing.T) {
	w := setup(t)
	w.limits = promised
	var methods []string
	for range 6 {
		methods = append(methods, "all", "eth_getLogs", "eth_getBlockByNumber")
	}
	w.failNodes(methods...)
}
