// Package memnet is a network in memory whose links tests cut, slow down and heal. Inside a testing/synctest bubble
// everything that waits on it is durably blocked, so that minutes of timeouts and partitions take no time.
//
// A node is a name; an address is "node:port", and what stands before the port is the node. A cut link is a
// black hole, as between real hosts: nothing is refused, bytes and connection attempts wait until the link heals
// or somebody's deadline passes, and neither side hears of the other's closing. Bytes that arrived before the cut
// can still be read.
package memnet
