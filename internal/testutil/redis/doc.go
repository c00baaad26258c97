// Package redis starts real redis-server processes for tests and makes them fail: they stop, are killed, freeze,
// restart with their data or empty, become replicas and are promoted.
//
// A server listens on its own loopback port, keeps its data in a temporary folder (append-only file, so that a kill
// loses nothing), and ends with the test. A test without redis-server fails; it never skips.
//
// Tests of mirror, director and of the binary call it, the benchmark and the drill. It calls proc.
package redis
