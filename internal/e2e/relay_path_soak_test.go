//go:build soak

package e2e

// How many transactions the test of the relay path posts, and how many a second.
const (
	relayPathTransactions = 5_000
	relayPathPerSecond    = 50
)
