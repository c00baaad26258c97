// Package escrowchain holds the contracts that the escrow monitor watches, for development and tests: a factory, which creates escrows
// with the events that package events has built in, and an emitter of any log. It creates them on a chain, and sends transactions to them.
//
// The development cluster creates the factory on its chain, so they are not in testutil. The product links none of them.
//
// Package solidity documents how the artifacts are compiled, and checks that they are those of the sources. After a change of a source,
//
//	SOLC=solc go test -run Artifacts ./internal/dev/escrowchain -update
//
// writes them.
//
// # What is not guaranteed
//
// The contracts were not audited, and are not for a chain with money on it.
package escrowchain
