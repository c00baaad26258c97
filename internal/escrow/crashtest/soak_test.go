//go:build soak

package crashtest

import (
	"testing"
	"time"
)

// The full form of the claim: many faults, and the limits as they are promised.

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
		handed = append(handed, w.handOver(w.leader()))
	}
	l.stop()
	w.check()
	w.handed(handed)
}

func TestSoakNodesFail(t *testing.T) {
	w := setup(t)
	w.limits = promised
	w.failNodes(6)
}
