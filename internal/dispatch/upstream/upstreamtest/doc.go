// Package upstreamtest has a stand-in for one relayer: OpenZeppelin Relayer's HTTP API (v1.8, EVM) as the relay path uses
// it, on a real loopback connection and without a chain. Tests of upstream, fleet and the consumer call it, and make it fail
// by name.
//
// By default it behaves as OpenZeppelin's relayer does: it has no idempotency, answers a submission with 200 and a null
// hash, and lists the oldest transactions first. With Options.Scope it behaves as this project's relayer does: an
// Idempotency-Key names a transaction, and every authorized answer carries the scope.
//
// A transaction is pending until a test advances it, or for as long as Options.Mine says.
//
// Conformance is the suite that the stand-in and this project's relayer both pass, the latter in the tests of cmd/rollcall.
package upstreamtest
