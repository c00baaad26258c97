//go:build soak

package crashtest

import "testing"

// The limits as they are, with many faults.

func TestSoakKilled(t *testing.T) {
	w := setup(t)
	w.slow = 1
	w.inTurn(5, "a kill", w.kill)
}

func TestSoakPaused(t *testing.T) {
	w := setup(t)
	w.slow = 1
	w.inTurn(5, "a pause", w.pause)
}

func TestSoakStopped(t *testing.T) {
	w := setup(t)
	w.slow = 1
	w.handOvers(30)
}

func TestSoakNodesFail(t *testing.T) {
	w := setup(t)
	w.slow = 1
	w.failNodes(5)
}
