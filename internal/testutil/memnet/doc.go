// Package memnet is an in-memory network whose links tests cut, slow down and heal. Inside a testing/synctest bubble
// every wait on it is durably blocked, so that minutes of timeouts and partitions take no time.
//
// A node is a name; an address is "node:port". A cut link is a black hole, as between real hosts: nothing is refused.
// Bytes and connection attempts wait until the link heals or a deadline passes, and neither side learns that the other
// has closed. Bytes that arrived before the cut can still be read.
package memnet
