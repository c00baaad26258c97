// Package erc2771 holds the two contracts of gasless transactions for development and tests: a Forwarder with the interface
// of OpenZeppelin Contracts' ERC2771Forwarder (version 5), and a Recipient, which counts calls by id and records the signer
// of each. It creates them on a chain, and makes the data of calls to them.
//
// The development cluster creates both on its chain, so they are not in testutil. The product links neither: package forward
// works with any forwarder of that interface, at a configured address. Tests of forward, and of the relay path, use this
// package too. It calls go-ethereum alone.
//
// # Artifacts
//
// Package solidity documents how they are compiled, and checks that they are those of the sources. After a change of a source,
//
//	SOLC=solc go test -run Artifacts ./internal/dev/erc2771 -update
//
// writes them.
//
// # What is not guaranteed
//
// The contracts were not audited, and are not for a chain with money on it. The Forwarder has no executeBatch. It accepts
// signatures of accounts with a key only, as OpenZeppelin's does, and not those of contracts (ERC-1271).
package erc2771
