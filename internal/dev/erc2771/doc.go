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
// Forwarder.bin and Forwarder.abi.json are evm.bytecode.object and abi of the output of solc 0.8.30+commit.73712a01 for
// Forwarder.sol, with --standard-json and the settings {"optimizer": {"enabled": true, "runs": 200}, "evmVersion":
// "cancun", "metadata": {"bytecodeHash": "none", "appendCBOR": false}}. Recipient's are made likewise. sources.sha256 holds
// the hash of each source at that time. After a change of a source,
//
//	SOLC=solc go test -run Artifacts ./internal/dev/erc2771 -update
//
// writes all of them. SOLC is a compiler of that version: a path, or "npx solc". A test compares the hashes. If there is a
// compiler, it also compares the artifacts.
//
// # What is not guaranteed
//
// The contracts were not audited, and are not for a chain with money on it. The Forwarder has no executeBatch. It accepts
// signatures of accounts with a key only, as OpenZeppelin's does, and not those of contracts (ERC-1271).
package erc2771
