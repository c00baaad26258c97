// Package lincheck checks that a history of calls to the directory is linearizable: there is one order of the calls,
// consistent with real time, in which each answer is correct. It contains a minimal second specification of the
// directory, for tests that kill and cut nodes.
//
// Clients are divided into shards, so that the check stays fast: those of a shard compete only for its ids.
//
// Tests of the coordinator and of the binary call it. It calls porcupine.
package lincheck
