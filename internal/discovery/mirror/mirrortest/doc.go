// Package mirrortest has an in-memory mirror.Store and the conformance suite that it shares with Redis. Tests can fail,
// delay and repeat the store's operations by name.
//
// Tests of mirror and director call it.
package mirrortest
