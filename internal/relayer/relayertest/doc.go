// Package relayertest assembles whole relayers for tests: processes of one pool in this process, on a real Postgres and
// a real chain. Tests can wrap every part to inject faults.
//
// Tests of service, tracker, keymonitor, admin and of the commands call it.
package relayertest
